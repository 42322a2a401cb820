import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from g2lstm.errors import G2Error
from g2lstm.lab.bench import data
from g2lstm.lab.bench.data import write_text
from tests.cli.command import run


@pytest.fixture(autouse=True)
def measured_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, and without a warm-up."""

    def peak(function: Callable[..., None], warm_up: tuple[Any, ...], arguments: tuple[Any, ...]) -> float:
        function(*arguments)
        return 12.5

    monkeypatch.setattr(data, "peak_memory", peak)


def test_a_text_of_words_as_zipf_found_them(tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("same", 1), ("two", 2)):
        write_text(tmp_path / name, 20_001, 12, seed)
    lines = (tmp_path / "one").read_text().splitlines()
    assert (tmp_path / "same").read_text() == (tmp_path / "one").read_text() != (tmp_path / "two").read_text()
    assert len(lines) == 20_001
    lengths = [len(line.split()) for line in lines]
    assert (min(lengths), max(lengths)) == (6, 18)
    assert sum(lengths) / len(lines) == pytest.approx(12, rel=0.02)
    (_, first), (_, second), (_, third) = Counter(word for line in lines for word in line.split()).most_common(3)
    assert first / second == pytest.approx(2, rel=0.1)
    assert first / third == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize(("task", "tokens"), [("lm", 10_000), ("mt", 10_000)])
def test_a_row(task: str, tokens: int) -> None:
    row = data.measure(task, tokens if task == "lm" else 500, steps=2, workers=1)
    assert list(row) == [field.key for field in data.FIELDS]
    assert row["tokens"] == pytest.approx(10_000, rel=0.1) if task == "lm" else row["tokens"] > 12 * 500 * 2
    assert row["text_megabytes"] > 0
    assert row["prepare_tokens_per_second"] == pytest.approx(row["tokens"] / row["prepare_seconds"])
    assert row["train_tokens_per_second"] > 0
    assert (row["prepare_megabytes"], row["workers_megabytes"], row["train_megabytes"]) == (12.5, 0, 12.5)


def test_a_disk_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=10**9))
    with pytest.raises(G2Error, match=r"this needs 1\.2 GB of disk space in .*, and only 1\.0 GB are free; set TMPDIR"):
        data.measure("lm", 100_000_000)


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []

    def measure(*arguments: object) -> data.Row:
        asked.append(arguments)
        return dict.fromkeys([field.key for field in data.FIELDS], 1.0) | {"task": arguments[0], "size": arguments[1]}

    monkeypatch.setattr(data, "measure", measure)
    done = run("bench", "data", "--tokens", "100M", "--tokens", "10000", "--pairs", "4.5M", "--steps", "7", "--json")
    assert asked == [("lm", 10**8, 7, None), ("lm", 10_000, 7, None), ("mt", 4_500_000, 7, None)]
    assert [row["size"] for row in json.loads(done.stdout)["rows"]] == [10**8, 10_000, 4_500_000]
    assert "4,500,000" in run("bench", "data", "--pairs", "4.5M").stdout
    for wrong in ("", "M", "1x", "nan", "-5M", "9k", "1e99", "100 MM"):
        done = run("bench", "data", f"--tokens={wrong}")
        assert done.returncode == 2
        assert f"a size is a number of at least 10k, such as 45k, 4.5M or 100M, got {wrong!r}" in done.stderr
