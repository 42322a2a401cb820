"""The examples run, and do what they say."""

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_two_lines(capsys):
    accuracy = runpy.run_path(str(EXAMPLES / "two_lines.py"))["main"](steps=400)
    assert accuracy > 0.98
    assert "(lstm): LSTM(32, 32" in capsys.readouterr().out
