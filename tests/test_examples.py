"""The examples run, and do what they say."""

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
