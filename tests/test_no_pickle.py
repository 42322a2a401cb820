"""No pickle is read, by the package or by what it calls: reading one runs whatever program is in it."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.command import run as command
from tests.pickles import PickleError, unpickling_refused
from tests.runs.toys import language_run, translation_run

ROOT = Path(__file__).parent.parent


def test_accelerate_saves_and_loads_nothing():
    """Its checkpoints are pickles. Ruff forbids the functions that read pickles, but knows no methods."""
    sources = [path for folder in ("g2lstm", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 100
    for path in sources:
        assert not re.search(r"\.(load|save)_state\(", path.read_text()), path


@pytest.fixture
def no_pickle(monkeypatch):
    """Any pickle that is read raises, also in C, where Python's own hook tells of it."""

    def refuse(*_, **__):
        raise PickleError("a pickle is read")

    class Refused:  # a class, because libraries derive their own from it
        __init__ = refuse

    for name in ("load", "loads"):
        monkeypatch.setattr(pickle, name, refuse)
    for name in ("Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, Refused)
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(np, "load", refuse)
    with unpickling_refused():
        yield


def everything(folder):
    """The commands that read a run, but for the page, on a language model and on one that translates."""
    language, translation = folder / "lm/run", folder / "mt/run"
    yield "generate", language, "--tokens", "3"
    yield "translate", translation
    for number, run in enumerate((language, translation)):
        yield "eval", run, "--json"
        yield "compress", run, "small", "--no-score", "--out", folder / f"small{number}"
        yield "eval", folder / f"small{number}", "--json"
        yield "gates", run, "--samples", "2"
        yield "export", run
        yield "report", run, "--out", folder / f"report{number}.html"
        yield "train", run / "recipe.toml", "--out", run, "--resume"
        yield "train", run / "recipe.toml", "--out", run, "--resume"


def test_no_command_reads_a_pickle(tmp_path, monkeypatch, no_pickle):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    language_run(tmp_path / "lm", "model.layers=1")
    translation_run(tmp_path / "mt", "model.layers=1")
    for arguments in everything(tmp_path):
        done = command(*arguments, standard_input="ein haus\n")
        assert done.returncode == 0, done.stderr


def test_the_hook_would_hear_of_a_pickle(no_pickle):
    content = pickle.dumps(Path("x"))
    with pytest.raises(PickleError):
        pickle.loads(content)
    import _pickle

    with pytest.raises(PickleError):
        _pickle.loads(content)
