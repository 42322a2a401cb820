"""What works with torch, numpy and safetensors alone, and what is said about the rest."""

import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from g2lstm.errors import G2Error, needs

PYPROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
CORE = {"torch", "numpy", "safetensors"}


def optional_packages():
    """The modules of everything that pyproject.toml names but the core does not need."""
    stated = [*PYPROJECT["dependencies"], *(r for of in PYPROJECT["optional-dependencies"].values() for r in of)]
    names = {r.partition(">")[0].partition("[")[0].lower().replace("_", "-") for r in stated} - CORE - {"g2lstm"}
    modules = packages_distributions()
    return sorted(m for m, of in modules.items() if {d.lower().replace("_", "-") for d in of} & names and m != "g2lstm")


def run_without(modules, code):
    block = f"import sys\nfor name in {modules!r}: sys.modules[name] = None\n"
    return subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True, check=False)


def test_the_core_needs_only_torch_numpy_and_safetensors():
    assert {"pydantic", "typer", "tokenizers", "onnx"} <= set(optional_packages())
    done = run_without(
        optional_packages(),
        """
import torch, g2lstm, g2lstm.files
model = g2lstm.convert_(torch.nn.Sequential(torch.nn.LSTM(3, 8)))
with g2lstm.record_gates(model) as record:
    model(torch.randn(4, 2, 3))[0].sum().backward()
small = g2lstm.compress(model.eval(), "gates=int8; cell=int8")
print(len(record["0"]), g2lstm.stream(small[0]).sequence(torch.randn(5, 3).numpy()).shape)
for name in ("load", "train"):
    try:
        getattr(g2lstm, name)
    except g2lstm.G2Error as error:
        print(error)
""",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "1 (5, 8)"
    for name, line in zip(("load", "train"), lines[1:], strict=True):
        assert line.startswith(f"g2lstm.{name} needs the packages of the extra 'text', but ")
        assert line.endswith(" is not installed: pip install 'g2lstm[text]'")


def test_the_command_line_without_its_packages_says_what_to_install():
    done = run_without(["typer"], "from g2lstm.__main__ import main\nmain()")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "g2lstm: the command line needs the packages of the extra 'text', but typer is not installed: "
        "pip install 'g2lstm[text]'\n"
    )


def test_needs_leaves_our_own_mistakes_alone():
    match = r"^a chart needs .* extra 'view', but no_such is not .*'g2lstm\[view\]'$"
    with pytest.raises(G2Error, match=match), needs("view", "a chart"):
        import no_such  # noqa: F401
    with pytest.raises(ModuleNotFoundError), needs("view", "a chart"):
        import g2lstm.no_such  # noqa: F401
