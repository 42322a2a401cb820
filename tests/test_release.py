"""What is released: pinned and declared dependencies; distributions that hold what they should, install and work."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.utils import canonicalize_name

from g2lstm.nn.kernel import BUILDS
from g2lstm.version import __version__
from tests.requirements import CORE, PYPROJECT, closure

ROOT = Path(__file__).parent.parent
TOY = [
    "--set", "model.embedding=16", "--set", "model.hidden=16", "--set", "train.minutes=", "--set", "train.epochs=1",
    "--set", "train.batch_size=64",
]  # fmt: skip


def test_constraints_pin_all_that_is_installed_and_no_more():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(name): version for name, version in (li.split("==") for li in lines if li[0] != "#")}
    needed = closure(["g2lstm[dev]", *CORE, *PYPROJECT["build-system"]["requires"]])
    assert needed - set(pins) == set()
    assert set(pins) - needed == set()
    for name in needed:
        assert metadata.version(name).split("+")[0] == pins[name], name


@pytest.mark.parametrize("name", ["README.md", "docs/images/badges.svg", "CITATION.cff"])
def test_the_version_is_the_same_everywhere(name):
    assert re.search(rf"version\b\D{{0,60}}\b{re.escape(__version__)}\b", (ROOT / name).read_text(), re.IGNORECASE)


def test_what_cibuildwheel_asks_of_a_wheel_is_answered(tmp_path):
    python, *words = shlex.split(PYPROJECT["tool"]["cibuildwheel"]["test-command"])
    assert python == "python"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_all_pins_but_torch_have_hashes():
    """pip refuses a file with another hash; compiled files have one for the Python and the platform of CI."""
    pins = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    hashed = (ROOT / "hashes.txt").read_text().splitlines()[1:]
    assert [line.split()[0] for line in hashed] == [pin for pin in pins if not pin.startswith("torch==")]
    marker = ' ; python_version == "3.11" and sys_platform == "linux" and platform_machine == "x86_64"'
    for line in hashed:
        assert re.fullmatch(rf"\S+==\S+({re.escape(marker)})? --hash=sha256:[0-9a-f]{{64}}", line), line
    makefile = (ROOT / "Makefile").read_text()
    assert "--no-deps --require-hashes --requirement hashes.txt" in makefile


class Built(NamedTuple):
    source: Path
    wheel: Path
    tree: Path
    has_compiler: bool
    said: str


@pytest.fixture(scope="module", params=["compiler", "no compiler"])
def built(request, tmp_path_factory):
    """A source distribution, the wheel made from it, the tree, whether there was a compiler, what the build said."""
    folder = tmp_path_factory.mktemp("release")
    tree = folder / "tree"
    for name in ("g2lstm", "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tree)
    has_compiler = request.param == "compiler"
    environment = {} if has_compiler else {"CC": "/bin/false", "CXX": "/bin/false"}
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", tree],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (source,) = (folder / "dist").glob("*.tar.gz")
    (wheel,) = (folder / "dist").glob("*.whl")
    return Built(source, wheel, tree, has_compiler, done.stdout + done.stderr)


@pytest.mark.slow
def test_distributions_hold_the_package_and_nothing_else(built):
    files = {str(path.relative_to(built.tree)) for path in (built.tree / "g2lstm").rglob("*") if path.is_file()}
    expected = {name for name in files if not name.endswith(".so")}
    assert expected < files, "the checkout should have kernels, which the distributions must leave behind"
    with tarfile.open(built.source) as archive:
        names = {member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()}
    beside = {"LICENSE", "README.md", "CHANGELOG.md", "MANIFEST.in", "constraints.txt", "pyproject.toml", "setup.py"}
    made = {name for name in names if name.startswith("g2lstm.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert names == expected | beside | made
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    kernels = {name for name in names if name.endswith(".so")}
    assert names - kernels == expected
    rooms = {path.parent.parent.name for path in built.tree.glob("g2lstm/*/csrc/*.cpp")}
    assert {Path(name).parent.name for name in kernels} == (rooms if built.has_compiler else set())


@pytest.mark.slow
def test_one_wheel_serves_every_python(built):
    name, version, *tags = built.wheel.stem.split("-")
    assert (name, version) == ("g2lstm", __version__)
    assert tags == ["py3", "none", sysconfig.get_platform().replace("-", "_").replace(".", "_")]
    with zipfile.ZipFile(built.wheel) as archive:
        kernels = [Path(file).name for file in archive.namelist() if Path(file).name.startswith("_kernel")]
    assert sorted(kernels) == (sorted(f"{file}.so" for file in BUILDS.values()) if built.has_compiler else [])


@pytest.mark.slow
def test_a_build_without_a_compiler_says_so(built):
    note = "g2lstm.nn._kernel_generic is not compiled; g2lstm works without it, slower."
    assert (note in built.said) != built.has_compiler


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Runs a program of a new environment that has the wheel and, from this one, what it depends on; and its folder."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, built.wheel], check=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    # A path alone: the file by which this environment points to the checkout is not read from there.
    (packages / "dependencies.pth").write_text(str(Path(pytest.__file__).parent.parent))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["G2LSTM_CACHE"] = str(folder / "cache")

    def run(program, *arguments):
        done = subprocess.run(
            [python.parent / program, *arguments],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run, packages / "g2lstm"


@pytest.mark.slow
def test_the_wheel_works(built, installed):
    run, package = installed
    assert run("python", "-c", "import g2lstm; print(g2lstm.__file__)").strip() == str(package / "__init__.py")
    assert "Usage: g2lstm" in run("g2lstm", "--help")
    assert "ptb-small" in run("g2lstm", "train", "list")
    native = json.loads(run("g2lstm", "info", "--json"))["backends"]["native"]
    if built.has_compiler:
        assert native.startswith("compiled for")
    else:
        assert native.startswith("torch operations, which take 1.5 to 2.5 times as long (not compiled: no C++ compiler")
    run("g2lstm", "train", "embedded", *TOY, "--out", "toy")
    run("g2lstm", "compress", "toy", "small", "--no-score")
    plain, small = (json.loads(run("g2lstm", "eval", name, "--json"))["perplexity"] for name in ("toy", "toy+small"))
    assert small == pytest.approx(plain, rel=0.1)
    assert run("g2lstm", "generate", "toy+small", "--prompt", "the", "--tokens", "5", "--seed", "1").startswith("the ")
    assert run("python", "-c", "import g2lstm.view.server") == ""


@pytest.mark.slow
def test_kernels_that_are_gone_are_done_without(installed):
    run, package = installed
    for kernel in package.rglob("*.so"):
        kernel.unlink()
    native = json.loads(run("g2lstm", "info", "--json"))["backends"]["native"]
    assert native.startswith(
        "torch operations, which take 1.5 to 2.5 times as long (not compiled: no C++ compiler when g2lstm was installed"
    )
    code = "import torch, g2lstm; x = torch.randn(3, 2, 4); g2lstm.G2LSTM(4, 4)(x)[0].sum().backward(); print('done')"
    assert run("python", "-c", code) == "done\n"


@pytest.mark.slow
def test_the_runtime_needs_no_torch(built, installed, tmp_path):
    """From the package index, into an empty environment without dependencies: it writes and translates."""
    run, _ = installed
    run("g2lstm", "train", "embedded", *TOY, "--out", "words")
    run("g2lstm", "train", "embedded-mt", *TOY, "--out", "pairs")
    for name in ("words", "pairs"):
        run("g2lstm", "compress", name, "small", "--no-score")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    programs = tmp_path / "venv" / "bin"
    install = [programs / "pip", "install", "--quiet", "--no-deps", "--constraint", ROOT / "constraints.txt"]
    subprocess.run([*install, built.wheel, "numpy", "safetensors", "tokenizers"], check=True)
    folder = Path(run("python", "-c", "import os; print(os.getcwd())").strip())
    code = """
import sys
from g2lstm.runtime import load
print(load("words+small").generate("the", tokens=20, seed=1))
print(load("pairs+small").translate("das haus ist alt ."))
assert "torch" not in sys.modules
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [programs / "python", "-W", "error", "-c", code],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout == run("python", "-c", code.replace("g2lstm.runtime", "g2lstm").split("assert")[0])


@pytest.mark.slow
def test_the_core_installs_with_torch_alone(built, tmp_path):
    """From the package index, into an empty environment: the README's first example runs, commands name their extra."""
    if not built.has_compiler:
        return
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    programs = tmp_path / "venv" / "bin"
    install = [programs / "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", built.wheel]
    subprocess.run(install, check=True)
    listed = json.loads(subprocess.check_output([programs / "pip", "list", "--format", "json"]))
    names = {canonicalize_name(one["name"]) for one in listed}
    assert names - {"pip", "setuptools"} == {"g2lstm", *closure(CORE)} - {"setuptools"}
    (example, *_) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    code = f"import torch\nmodel = torch.nn.Sequential(torch.nn.LSTM(4, 4))\n{example}\nprint(model)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [programs / "python", "-W", "error", "-c", code],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "LSTM(4, 4)" in done.stdout, done.stderr
    done = subprocess.run(
        [programs / "g2lstm", "info"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pip install 'g2lstm[text]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
