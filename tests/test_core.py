"""What works with torch, numpy and safetensors alone, and what is said about the rest."""

import os
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from g2lstm.errors import G2Error, needs
from tests import requirements
from tests.test_architecture import CORE, FILES

ROOT = Path(__file__).parent.parent
BLOCKER = """
import sys

class Finder:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {blocked!r} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Finder, sys.meta_path)
"""


def without_extras(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs code where nothing can be imported that `pip install g2lstm` does not bring."""
    return with_only(requirements.closure(requirements.CORE), code, folder)


def with_only(kept: set[str], code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs code where nothing can be imported but these distributions."""
    owners = packages_distributions()
    blocked = {module for module, names in owners.items() if not kept & {canonicalize_name(name) for name in names}}
    assert {"typer", "pydantic", "onnx"} <= blocked
    code = BLOCKER.format(blocked=blocked - {"g2lstm"}) + code
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_core_needs_only_torch_numpy_and_safetensors(tmp_path):
    """Every module of it can be imported, the README's examples run, and the other public names say what they need."""
    parts = [path.relative_to(ROOT).with_suffix("").parts for path in FILES]
    modules = [".".join(part).removesuffix(".__init__") for part in parts if part[1] in CORE]
    examples = "".join(
        re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    )
    assert all(name in examples for name in ("convert_", "freeze_", "record_gates", "compress", "save", "stream"))
    done = without_extras(
        f"""
import torch, {", ".join(modules)}
model = torch.nn.LSTM(4, 4)
{examples}
for name in ("load", "train"):
    try:
        getattr(g2lstm, name)
    except g2lstm.G2Error as error:
        print(error)
""",
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for name, line in zip(("load", "train"), done.stdout.splitlines()[-2:], strict=True):  # below the examples'
        assert line.startswith(f"g2lstm.{name} needs the packages of the extra 'text', but ")
        assert line.endswith(" is not installed: pip install 'g2lstm[text]'")


def test_the_command_line_without_its_packages_says_what_to_install(tmp_path):
    done = without_extras("from g2lstm.__main__ import main\nmain()", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"g2lstm: the command line needs the packages of the extra 'text', but \w+ is not installed: "
        r"pip install 'g2lstm\[text\]'\n",
        done.stderr,
    )


def test_needs_leaves_our_own_mistakes_alone():
    match = r"^a chart needs .* extra 'view', but no_such is not .*'g2lstm\[view\]'$"
    with pytest.raises(G2Error, match=match), needs("view", "a chart"):
        import no_such  # noqa: F401
    with pytest.raises(ModuleNotFoundError), needs("view", "a chart"):
        import g2lstm.no_such  # noqa: F401
