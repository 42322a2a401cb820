"""The benchmarks outside the package run, and measure what they say."""

import json
import subprocess
import sys

import pytest

from tests.lab.bench.scripts import BENCHMARKS
from tests.look.toys import language_run, translation_run


def answer(script, *arguments):
    command = [sys.executable, BENCHMARKS / script, *map(str, arguments), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "tokens"), [("--tokens", 10_000), ("--pairs", 10_000 * 2 * 13)])
def test_preparing_text(size, tokens):
    (row,) = answer("data.py", size, "10k", "--steps", 2)["rows"]
    assert row["tokens"] == pytest.approx(tokens, rel=0.3)
    assert min(row["text_megabytes"], row["prepare_seconds"], row["train_tokens_per_second"]) > 0


@pytest.mark.slow
def test_recording_gates(tmp_path, monkeypatch):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    found = answer("gates.py", language_run(tmp_path), "--samples", 3, "--rounds", 1)
    assert [row["name"] for row in found["times"]] == ["no gates", "gates returned", "gates recorded"]
    assert found["times"][1]["ratio"] == 1
    assert [(row["samples"], row["tokens"]) for row in found["memory"]] == [(3, 15), (30, 150)]


@pytest.mark.slow
def test_translating(tmp_path, monkeypatch):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    rows = answer("translation.py", translation_run(tmp_path), "--rounds", 1)["rows"]
    searches = ("beam 5", "greedy", "beam 5, one at a time")
    assert [(row["search"], row["path"]) for row in rows] == [
        (search, path) for search in searches for path in ("session", "torch")
    ]
    assert all(row["sentences_per_second"] > 0 for row in rows)


@pytest.mark.slow
def test_moving_from_quantize_dynamic():
    command = [sys.executable, BENCHMARKS / "quantize_dynamic.py", "--steps", "20", "--json"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["version"] for row in rows[:4]] == ["float32", "quantize_dynamic", "g2lstm int8", "g2lstm int4"]
    for exact, _, int8, int4 in zip(*[iter(rows)] * 4, strict=True):
        assert exact["deviation"] == 0 < int8["deviation"] < 0.02
        assert int4["bytes"] < int8["bytes"] < exact["bytes"] / 3
