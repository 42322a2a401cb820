"""`g2lstm bench gates`: its passes read the same and count what they say; its answer is complete."""

import json

import pytest
from typer.testing import CliRunner

import g2lstm
from g2lstm.cli.bench import app
from g2lstm.lab.bench import gates
from g2lstm.look import record_split
from tests.look.toys import language_run, translation_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("runs")
        patch.setenv("G2LSTM_CACHE", str(folder / "cache"))
        patch.setattr(gates, "peak_memory", lambda *_: 1.5)
        yield folder


@pytest.mark.parametrize("make", [language_run, translation_run])
def test_each_pass_reads_what_is_recorded(folder, make):
    trained = g2lstm.load(make(folder))
    data = trained.passes("train")
    read = {name: gates.read(trained, data, 7, name) for name in gates.CANDIDATES}
    expected = record_split(trained, "train", samples=7)
    tokens = next(iter(expected.statistics.values()))["input"].steps
    assert read == {gates.ALONE: (7, 0), gates.RETURNED: (7, 0), gates.RECORDED: (7, tokens)}


def test_the_answer(folder):
    done = CliRunner().invoke(
        app, ["gates", str(language_run(folder, "one")), "--samples", "3", "--rounds", "1", "--json"]
    )
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert set(answer) == {"threads", "times", "memory"}
    assert [row["name"] for row in answer["times"]] == [*gates.CANDIDATES]
    assert answer["times"][1]["ratio"] == 1
    assert [(row["samples"], row["megabytes"]) for row in answer["memory"]] == [(3, 1.5), (30, 1.5)]
    assert answer["memory"][0]["tokens"] == 15


def test_without_a_run_the_model_is_random(folder, tmp_path):
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(
        'task = "lm"\ndata = {name = "ptb"}\nmodel = {embedding = 4, hidden = 5, layers = 1}\n'
        'train = {epochs = 1, optimizer = {name = "adamw", lr = 0.1}}\nevaluate = {batch_size = 2, bptt = 3}\n'
    )
    times, memory = gates.measure(samples=2, rounds=1, recipe=str(recipe))
    assert [row["tokens"] for row in memory.rows] == [6, 60]
    assert all(row["milliseconds"] > 0 and row["ratio"] > 0 for row in times.rows)
