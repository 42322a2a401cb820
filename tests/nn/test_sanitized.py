"""The kernels touch no memory that is not theirs, and do nothing that C++ leaves undefined.

Compiled with AddressSanitizer and UndefinedBehaviorSanitizer, they end the process at the first mistake; the tests of
the kernels, properties included, run with them.
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
FLAGS = ["-std=c++17", "-O1", "-g", "-march=native", "-fno-math-errno", "-fno-trapping-math"]
FLAGS += ["-shared", "-fPIC", "-fopenmp", "-pthread", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """Runs Python on a copy of the package whose only kernel has the sanitizers."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is needed")
    libraries = [
        subprocess.check_output([compiler, f"-print-file-name={library}"], text=True).strip()
        for library in ("libasan.so", "libubsan.so")
    ]
    if not all(map(os.path.isabs, libraries)):
        pytest.skip("g++ has no sanitizers here")
    tree = tmp_path_factory.mktemp("sanitized")
    for part in ("g2lstm", "tests"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    code = sorted((tree / "g2lstm/nn/csrc").glob("*.cpp"))
    target = tree / "g2lstm/nn" / f"{next(iter(kernel.BUILDS.values()))}.so"
    subprocess.run([compiler, *FLAGS, *code, "-o", target], check=True)
    settings = {"PYTHONPATH": str(tree), "LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0"}

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tree, env={**os.environ, **settings}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


@pytest.mark.slow
def test_a_mistake_would_be_found(sanitized):
    code = "import torch; from g2lstm.nn import kernel; noise = torch.empty(8, dtype=torch.float64)\n"
    code += "kernel.find().library.g2lstm_noise_float64(1, 3, noise.data_ptr(), 4096, 2**50, 1)"
    assert "AddressSanitizer" in sanitized("-c", code).stderr


@pytest.mark.slow
def test_the_tests_of_the_kernels_find_none(sanitized):
    # A compiler that is started with the sanitizers preloaded reports its own leaks.
    done = sanitized("-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-k", "not compiled_layers", *CHECKED)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
