"""benchmarks/runtimes.py: every way to run a trained model's layers predicts the same text."""

import pytest

import g2lstm
from g2lstm.errors import G2Error
from g2lstm.lab.bench import infer
from g2lstm.lab.bench.infer import OURS, PEERS
from g2lstm.tasks.lm.evaluate import perplexity
from tests.cli.command import run as command
from tests.lab.bench.scripts import script
from tests.runs.toys import language_run

runtimes = script("runtimes")


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(infer, "_PAUSE", 0.0)
    monkeypatch.setattr(infer, "_BURST", 1e-4)
    monkeypatch.setattr(infer, "CANDIDATES", (*PEERS, *OURS))  # compiling the others takes too long here
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))


def test_the_table_has_size_speed_and_the_models_own_perplexity(tmp_path):
    run = language_run(tmp_path)
    rows = {row["name"]: row for row in runtimes.measure(run, rounds=2, tokens=60).rows}
    assert list(rows) == [*PEERS, *OURS]
    trained = g2lstm.load(run)
    wanted = perplexity(trained.model, trained.split("test").read(0, 61)).perplexity
    measured = {name: row for name, row in rows.items() if not row["missing"]}
    assert rows.keys() - measured.keys() <= {"OpenVINO float32"}
    for name, row in measured.items():
        assert row["perplexity"] == pytest.approx(wanted, rel=1e-5 if "float32" in name else 0.05), name
        assert row["microseconds"] > 0
    assert min(row["ratio"] for name, row in measured.items() if name in PEERS) == 1
    weights, biases = 4 * 12 * (10 + 12) + 4 * 10 * (12 + 10), 2 * 4 * (12 + 10)
    for name in ("ours, float32", "torch.nn.LSTM float32"):
        assert rows[name]["megabytes"] == 4 * (weights + biases) / 1e6
    assert rows["torch dynamic int8"]["megabytes"] == (weights + 4 * biases) / 1e6


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    def missing(*_):
        raise G2Error("not here")

    monkeypatch.setitem(infer.PEERS, "torch dynamic int8", missing)
    report = runtimes.measure(language_run(tmp_path), rounds=1, tokens=20)
    rows = {row["name"]: row for row in report.rows}
    assert rows["torch dynamic int8"] == {
        "name": "torch dynamic int8", "megabytes": None, "microseconds": None, "ratio": None, "perplexity": None,
        "tokens": 20, "missing": "not available: not here",
    }  # fmt: skip
    assert report.notes[0] == "torch dynamic int8: not available: not here"


def test_a_compressed_run_is_refused(tmp_path):
    run = language_run(tmp_path)
    assert command("compress", run, "small", "--no-score", "--out", tmp_path / "small").returncode == 0
    with pytest.raises(G2Error, match="is already compressed; use the run that it was made from"):
        runtimes.measure(tmp_path / "small")
