"""`g2lstm.train`, the one call from Python."""

import doctest

import pytest

import g2lstm
from g2lstm.training import start
from g2lstm.training.observe import Silent


def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = [test for test in doctest.DocTestFinder().find(start.train, "train") if test.examples]
    assert doctest.DocTestRunner().run(example).failed == 0
    assert len(g2lstm.load("runs/tiny").run.results()) == 1


def test_tables_data_and_observer(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("a b c d e f g\n" * 20)
    steps = []

    class Watching(Silent):
        def on_step(self, progress, share, values):
            steps.append(progress.step)

    tables = {
        "task": "lm", "data": {"path": str(tmp_path)}, "model": {"embedding": 4, "hidden": 4, "layers": 1},
        "train": {"epochs": 1, "batch_size": 2, "bptt": 5},
    }  # fmt: skip
    trained = g2lstm.train(tables, tmp_path / "run", ["model.hidden=5"], observer=Watching())
    assert trained.recipe.model.hidden == 5
    assert steps
    with pytest.raises(g2lstm.G2Error, match="already holds a run"):
        g2lstm.train(tables, tmp_path / "run")
    again = g2lstm.train(tables, tmp_path / "run", ["model.hidden=5"], resume=True, data_dir=str(tmp_path))
    assert again.model.vocabulary_size == trained.model.vocabulary_size
