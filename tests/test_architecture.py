"""The package as a whole: what each part of it needs, how long files are; import-linter checks which way imports go."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from tests import requirements
from tests.runs.toys import language_run

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "g2lstm"
FILES = sorted(PACKAGE.rglob("*.py"))
CORE = ["errors", "version", "files", "nn", "compression"]
# Libraries of our guests: whoever calls their callback has them.
GUESTS = {
    "training/lightning.py": "lightning",
    "training/huggingface.py": "transformers",
    "lab/bench/peers.py": "openvino",
}


def test_files_are_short():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert len(lengths) > 50
    assert {name: length for name, length in lengths.items() if length > 350} == {}, "does each hold one idea?"


def external_imports(path: Path, owners: Mapping[str, list[str]]) -> Iterator[tuple[str, bool]]:
    """The distributions that a file imports, each with whether that happens as soon as the file is imported."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        own = {"g2lstm", GUESTS.get(str(path.relative_to(PACKAGE)))}
        for top in {name.split(".")[0] for name in names} - own - sys.stdlib_module_names:
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


def test_importing_the_package_and_loading_a_run_are_silent_and_light(tmp_path):
    """Heavy optional dependencies load inside the command that needs them, and the compiler not at all."""
    heavy = ["matplotlib", "plotly", "fastapi", "accelerate", "onnx", "tensorboard", "sacrebleu", "pooch", "tokenizers"]
    code = f"""
import sys, g2lstm
assert "torch" not in sys.modules
g2lstm.G2LSTM
assert "torch._dynamo" not in sys.modules, "the compiler would double the time that an import takes"
print(sorted(set({heavy}) & set(sys.modules)))
g2lstm.load({str(language_run(tmp_path))!r})
assert "torch._dynamo" not in sys.modules
"""
    done = python(code)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_only_tasks_know_which_task_it_is():
    """Everyone else calls a method of the `Task` or of the `Trained` model."""
    asks = re.compile(
        r"isinstance\([^)]*(LanguageModel|TranslationModel|LmRecipe|MtRecipe)"
        r"""|\.task\w* *(==|!=) *["']|\btask *(==|!=) *["']"""
    )
    others = {"text/datasets.py", "text/corpus.py"}  # data sets are for one task each
    found = {str(path.relative_to(PACKAGE)) for path in FILES if asks.search(path.read_text())}
    assert {name for name in found if not name.startswith("tasks/")} <= others
