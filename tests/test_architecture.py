"""The package as a whole: which way imports go, what each part of it needs, how long files are."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests import requirements

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "g2lstm"
FILES = sorted(PACKAGE.rglob("*.py"))
CORE = ["errors", "version", "files", "nn", "compression"]


def test_imports_go_one_way():
    """`make check` runs the same contracts, which are in pyproject.toml."""
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-logo", "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_files_are_short():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert len(lengths) > 50
    assert {name: length for name, length in lengths.items() if length > 350} == {}, "does each hold one idea?"


def external_imports(path: Path, owners: Mapping[str, list[str]]) -> Iterator[tuple[str, bool]]:
    """The distributions that a file imports, each with whether that happens as soon as the file is imported."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for top in {name.split(".")[0] for name in names} - {"g2lstm"} - sys.stdlib_module_names:
            yield canonicalize_name(owners[top][0]), node.col_offset == 0


def test_every_package_imports_what_its_extra_brings():
    """The core imports nothing else, not even inside a function; other packages may import other extras there."""
    core = requirements.direct(requirements.CORE)
    extras = {name: core | requirements.direct(requirements.EXTRAS[name]) for name in ("text", "view", "export")}
    assert core == {"torch", "numpy", "safetensors"}
    owners = metadata.packages_distributions()
    for path in FILES:
        part = path.relative_to(PACKAGE).with_suffix("").parts[0]
        at_once = core if part in CORE else extras.get(part, extras["text"])
        later = core if part in CORE else set.union(*extras.values())
        for name, is_at_once in external_imports(path, owners):
            assert name in (at_once if is_at_once else later), f"{path} imports {name}"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_importing_the_package_is_silent_and_light():
    """Heavy optional dependencies load inside the command that needs them."""
    heavy = ["matplotlib", "plotly", "fastapi", "accelerate", "onnx", "tensorboard", "sacrebleu", "pooch", "tokenizers"]
    code = f"""
import sys, g2lstm
assert "torch" not in sys.modules
g2lstm.G2LSTM
assert "torch._dynamo" not in sys.modules, "the compiler would double the time that an import takes"
print(sorted(set({heavy}) & set(sys.modules)))
"""
    done = python(code)
    assert (done.stdout, done.stderr) == ("[]\n", "")


BLOCKER = """
import sys

class Finder:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {blocked!r} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Finder, sys.meta_path)
"""


def without_extras(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code where nothing can be imported that `pip install g2lstm` does not bring."""
    core = requirements.closure(requirements.CORE)
    owners = metadata.packages_distributions()
    blocked = {module for module, names in owners.items() if not core & {canonicalize_name(name) for name in names}}
    assert {"typer", "pydantic", "tokenizers", "onnx"} <= blocked
    return python(BLOCKER.format(blocked=blocked - {"g2lstm"}) + code)


def test_the_core_runs_without_the_extras():
    parts = [path.relative_to(ROOT).with_suffix("").parts for path in FILES]
    modules = [".".join(part).removesuffix(".__init__") for part in parts if part[1] in CORE]
    examples = "".join(
        re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    )
    assert "convert_" in examples
    done = without_extras(f"import torch, {', '.join(modules)}\nmodel = torch.nn.LSTM(4, 4)\n{examples}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("code", ["import g2lstm; g2lstm.load('run')", "import g2lstm.__main__ as m; m.main()"])
def test_what_needs_an_extra_says_which(code):
    done = without_extras(code)
    assert "needs the packages of the extra 'text'" in done.stderr
    assert "pip install 'g2lstm[text]'" in done.stderr


def test_only_tasks_know_which_task_it_is():
    """Everyone else calls a method of the `Task` or of the `Trained` model."""
    asks = re.compile(
        r"isinstance\([^)]*(LanguageModel|TranslationModel|LmRecipe|MtRecipe)"
        r"""|\.task\w* *(==|!=) *["']|\btask *(==|!=) *["']"""
    )
    # Data sets are for one task each, and this benchmark makes up the data of the task that it is asked for.
    others = {"text/registry.py", "text/pairs.py", "lab/bench/data.py"}
    found = {str(path.relative_to(PACKAGE)) for path in FILES if asks.search(path.read_text())}
    assert {name for name in found if not name.startswith("tasks/")} <= others
