"""The kernels touch no memory that is not theirs, do nothing that C++ leaves undefined, and their threads never race.

Compiled with AddressSanitizer and UndefinedBehaviorSanitizer, or with ThreadSanitizer, they end the process at the
first mistake; the tests of the kernels, properties included, run with them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from g2lstm.nn import kernel

ROOT = Path(__file__).parents[2]
CHECKED = ["tests/nn/test_kernel.py", "tests/nn/test_bfloat16.py", "tests/compression/test_kernel.py"]
CHECKED += ["tests/tasks/mt/test_session.py"]
FLAGS = ["-std=c++17", "-O1", "-g", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-fopenmp"]
SANITIZERS = {  # their libraries, their settings, and how to start Python
    "address,undefined": (["libasan.so", "libubsan.so"], {"ASAN_OPTIONS": "detect_leaks=0"}, []),
    # It knows nothing of libraries that were compiled without it, and needs memory to be where it expects it.
    "thread": (["libtsan.so"], {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1"}, ["setarch", "-R"]),
}
# OpenMP's threads as ThreadSanitizer can follow them: GCC's own library waits in ways that it doesn't know.
OPENMP = """
#include <thread>
#include <vector>
static thread_local int number = 0, count = 1;
extern "C" void GOMP_parallel(void (*work)(void*), void* data, unsigned threads, unsigned) {
  const auto one = [=](int k) { number = k; count = int(threads); work(data); number = 0; count = 1; };
  std::vector<std::thread> others;
  for (unsigned k = 1; k < threads; ++k) others.emplace_back(one, int(k));
  one(0);
  for (std::thread& each : others) each.join();
}
extern "C" int omp_get_thread_num() { return number; }
extern "C" int omp_get_num_threads() { return count; }
"""


def sanitized(sanitizers, tree):
    """Runs Python on a copy of the package whose only kernel has these sanitizers."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is needed")
    names, settings, start = SANITIZERS[sanitizers]
    libraries = [subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip() for name in names]
    if not all(map(os.path.isabs, libraries)):
        pytest.skip("g++ has no sanitizers here")
    if start and (shutil.which(start[0]) is None or subprocess.run([*start, "true"], check=False).returncode != 0):
        pytest.skip("addresses can't be fixed here")
    for part in ("g2lstm", "tests"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    if sanitizers == "thread":
        (tree / "g2lstm/nn/csrc/openmp.cpp").write_text(OPENMP)
    flags = [*FLAGS, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    code = sorted((tree / "g2lstm/nn/csrc").glob("*.cpp"))
    target = tree / "g2lstm/nn" / f"{next(iter(kernel.BUILDS.values()))}.so"
    subprocess.run([compiler, *flags, *code, "-shared", "-pthread", "-Wl,-Bsymbolic", "-o", target], check=True)
    environment = {**os.environ, **settings, "PYTHONPATH": str(tree), "LD_PRELOAD": " ".join(libraries)}

    def run(*arguments):
        return subprocess.run(
            [*start, sys.executable, *arguments],
            cwd=tree, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


@pytest.fixture(scope="module")
def checking_memory(tmp_path_factory):
    return sanitized("address,undefined", tmp_path_factory.mktemp("sanitized"))


@pytest.fixture(scope="module")
def checking_threads(tmp_path_factory):
    return sanitized("thread", tmp_path_factory.mktemp("sanitized"))


@pytest.mark.slow
def test_a_mistake_would_be_found(checking_memory):
    code = "import torch; from g2lstm.nn import kernel; noise = torch.empty(8, dtype=torch.float64)\n"
    code += "kernel.find().library.g2lstm_noise_float64(1, 3, noise.data_ptr(), 4096, 2**50, 2**62, 1)"
    assert "AddressSanitizer" in checking_memory("-c", code).stderr


@pytest.mark.slow
def test_the_tests_of_the_kernels_find_none(checking_memory):
    # A compiler that is started with the sanitizers preloaded reports its own leaks.
    done = checking_memory("-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-k", "not compiled_layers", *CHECKED)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
def test_a_race_would_be_found(checking_threads):
    code = "import threading, numpy; from g2lstm.nn import kernel; noise, n = numpy.empty(2**20), 2**20\n"
    code += "call, together = kernel.find().library.g2lstm_noise_float64, threading.Barrier(2)\n"
    code += "fill = lambda: together.wait() + call(1, 3, noise.ctypes.data, n, 2**60, 2**62, 1)\n"
    code += "both = [threading.Thread(target=fill) for _ in range(2)]\n"
    code += "for one in both: one.start()\nfor one in both: one.join()"
    assert "ThreadSanitizer: data race" in checking_threads("-c", code).stderr


@pytest.mark.slow
def test_threads_never_race(checking_threads):
    chosen = ["-k", "thread or session", "tests/compression/test_team.py", *CHECKED]
    done = checking_threads("-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *chosen)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
