"""The examples run, and do what they say."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_two_lines(capsys):
    accuracy = runpy.run_path(str(EXAMPLES / "two_lines.py"))["main"](steps=400)
    assert accuracy > 0.98
    assert "(lstm): LSTM(32, 32" in capsys.readouterr().out


@pytest.mark.slow
def test_c(tmp_path):
    """The Makefile trains, exports, compiles, tests and runs."""
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("there is no cc or no make")
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("tagger*"))
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["make", "-C", tmp_path / "examples" / "c", f"PYTHON={sys.executable}"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "allowed: passed\n" in done.stdout
    assert '\na "BAD CAT" sat on "TOP OF" a hat\n' in done.stdout
    assert len((EXAMPLES / "c" / "main.c").read_text().splitlines()) <= 22


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:hard gates change the output")
@pytest.mark.parametrize("notebook", sorted((EXAMPLES / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_run_from_top_to_bottom(notebook, monkeypatch, capsys):
    if shutil.which("cc") is None:
        pytest.skip("there is no cc")
    monkeypatch.chdir(notebook.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None)
    cells, names = json.loads(notebook.read_text())["cells"], {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
            printed = "".join("".join(one.get("text", "")) for one in cell["outputs"])
            assert capsys.readouterr().out.count("\n") == printed.count("\n")  # the page shows what it prints
