"""No pickle is read, by the package or by what it calls: reading one runs whatever program is in it."""

import ast
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.command import run as command
from tests.pickles import PickleError, unpickling_refused
from tests.runs.toys import language_run, translation_run
from tests.test_architecture import FILES

ROOT = Path(__file__).parent.parent
SOURCES = [*FILES, *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml", "pandas"}
# Of torch, numpy and accelerate; each reads or sends pickles, if only by default.
CALLS = {
    "torch.load", "torch.save", "torch.jit.load", "torch.package", "torch.hub.load", "np.load", "numpy.load", "np.save",
    "np.lib.format.read_array", "load_state", "save_state", "all_gather_object", "gather_object",
    "broadcast_object_list", "scatter_object_list", "send_object_list", "recv_object_list", "DataLoader", "Unpickler",
    "eval", "exec",
}  # fmt: skip


def called(path):
    """The names of all that a file calls, with and without what stands before the dot."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            yield name
            if isinstance(node.func, ast.Attribute) and node.func.attr not in ("eval", "load_state", "save_state"):
                yield node.func.attr


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_of_ours_calls_what_reads_pickles(path):
    assert not MODULES & set(imported(path))
    assert not CALLS & set(called(path))


@pytest.fixture
def no_pickle(monkeypatch):
    """Any pickle that is read raises, also in C, where Python's own hook tells of it."""

    def refuse(*_, **__):
        raise PickleError("a pickle is read")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
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
    language_run(tmp_path / "lm")
    translation_run(tmp_path / "mt")
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


def test_numpy_refuses_a_pickle_in_a_prepared_file(tmp_path, no_pickle):
    from g2lstm.text.corpus import MappedArray

    path = tmp_path / "tokens.npy"
    with path.open("wb") as file:
        np.lib.format.write_array(file, np.array([Path("x")], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="OBJECT|object"):
        MappedArray(path)
