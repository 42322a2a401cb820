"""The demo end to end at toy size: every file it promises, its table, stopping, and a second call."""

import json
import os
import shutil
import signal

import pytest
from typer.testing import CliRunner

from g2lstm import load
from g2lstm.cli.main import app
from g2lstm.lab.study.table import chance, signed
from g2lstm.runs.directory import RunDirectory
from tests.lab.study.toys import change_weights, of_language, write_text
from tests.pictures import draw_nothing

RUNS = {"sigmoid": "lstm", "gumbel": "g2", "binary": "binary"}


def options(folder, out):
    toy = [*of_language(folder / "data"), "model.embedding=24", "model.hidden=24", "train.epochs=1", "train.minutes=1"]
    return ["demo", "--out", str(out), *(word for each in toy for word in ("--set", each))]


@pytest.fixture(autouse=True, scope="module")
def _no_drawing():
    with pytest.MonkeyPatch.context() as patch:
        draw_nothing(patch)
        yield


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    write_text(folder / "data")
    out = folder / "out"
    return options(folder, out), out, CliRunner().invoke(app, options(folder, out))


def test_it_ends_with_a_table_the_report_and_what_to_do_next(demo):
    _, out, done = demo
    assert done.exit_code == 0, done.output
    for words in (
        "LSTM", "binary", "G²", "test perplexity", "round 0.2", "round 0.2, clip 0.4", "hard gates", "G² − LSTM",
        "MB, small", "steps/s, small", "gates beyond 0.1 or 0.9", str(out / "report.html"),
        str(out / "binary+small" / "export" / "model.html"),
        "g2lstm train my.txt --out runs/mine", "g2lstm compress runs/mine small", "g2lstm view runs/mine",
        "convert_",
    ):  # fmt: skip
        assert words in done.stdout, words
    assert "run 3 of 3, binary: training" in done.stderr


def test_every_file_that_it_promises_is_there_and_whole(demo):
    _, out, _ = demo
    report = (out / "report.html").read_text()
    rounded = json.loads((out / "table.json").read_text())["rows"][0]["cells"][1]["text"]
    assert f'<tr><td>round 0.2</td><td class="number">{rounded}</td>' in report
    for method, name in RUNS.items():
        run = out / name
        assert load(run).recipe.model.method == method
        mode = "hard" if method == "binary" else "soft"
        assert json.loads((run / "gates" / "gates.json").read_text())["mode"] == f"evaluation, {mode} gates"
        assert f"{run.name}+small" in report
        small = load(out / f"{run.name}+small")
        assert small.run.compression is not None
        facts = json.loads((small.run.path / "compression.json").read_text())
        assert facts["file"]["after"] == small.run.model_file.stat().st_size
    assert "perplexity on test against size: lstm+small, g2+small, binary+small" in report
    assert "<script" in (out / "binary+small" / "export" / "model.html").read_text()
    assert not list(out.rglob("*.tmp"))


def test_the_table_says_what_was_measured(demo):
    _, out, done = demo
    facts = json.loads((out / "table.json").read_text())
    place = {column: k for k, column in enumerate(facts["columns"])}
    for row, name in zip(facts["rows"], RUNS.values(), strict=True):
        values = {column: row["cells"][k]["values"] for column, k in place.items()}
        run = RunDirectory(out / name)
        own = run.recipe.model.eval_gate
        (plain,) = (score for score in run.results() if score.split == "test" and score.eval_gate == own)
        assert values["test perplexity"] == [plain.perplexity]
        small = json.loads((out / f"{name}+small" / "compression.json").read_text())
        assert facts["compressed"][name]["file"]["after"] == small["file"]["after"]
        assert small["score"]["before"] == pytest.approx(plain.perplexity)
        mode = "hard" if name == "binary" else "soft"
        rounded = json.loads((run.path / "measured" / f"test-{mode}-gates_round0.2.json").read_text())["perplexity"]
        assert values["round 0.2"] == pytest.approx([rounded - plain.perplexity])
        for words in (f"{plain.perplexity:.2f}", signed(small["score"]["after"] - small["score"]["before"])):
            assert words in done.stdout
    chances = {one["column"]: one["p_value"] for one in facts["comparisons"]}
    assert 0 < chances["round 0.2"] <= 1
    assert chance(chances["test perplexity"]) in done.stdout


def test_a_second_call_finds_the_results_and_says_so(demo):
    command, out, first = demo
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != "table.json"}
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0
    assert f"found the results of an earlier demo in {out}" in again.stderr
    assert again.stdout == first.stdout
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != "table.json"}
    assert after == before
    facts = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert facts["rows"] == json.loads((out / "table.json").read_text())["rows"]


def test_what_is_missing_is_made_again(demo):
    command, out, first = demo
    (out / "report.html").unlink()
    (out / "g2" / "measured" / "test-soft-gates_round0.2.json").unlink()
    again = CliRunner().invoke(app, command)
    assert again.stdout == first.stdout
    assert "found the results" not in again.stderr
    assert (out / "report.html").is_file()


def test_runs_that_were_moved_away_must_take_their_small_ones_along(demo, tmp_path):
    command, out, _ = demo
    copied = tmp_path / "out"
    shutil.copytree(out, copied)
    shutil.rmtree(copied / "lstm")
    done = CliRunner().invoke(app, [str(copied) if word == str(out) else word for word in command])
    assert f"{copied / 'lstm+small'} was not made from the lstm that the demo would train" in str(done.exception)
    assert not (copied / "lstm").exists()


def test_a_compressed_run_that_is_not_its_own_is_told(demo, tmp_path):
    command, out, _ = demo
    copied = tmp_path / "out"
    shutil.copytree(out, copied)
    (copied / "g2+small" / "compression.json").unlink()
    done = CliRunner().invoke(app, [str(copied) if word == str(out) else word for word in command])
    assert f"{copied / 'g2+small'} was not made by this demo; move it away" in str(done.exception)


def test_gates_of_other_weights_are_counted_anew(demo, tmp_path):
    command, out, _ = demo
    copied = tmp_path / "out"
    shutil.copytree(out, copied)
    change_weights(copied / "g2")
    shutil.rmtree(copied / "g2+small")
    before = {name: (copied / name / "gates" / "gates.json").read_text() for name in RUNS.values()}
    report = (copied / "report.html").read_text()
    done = CliRunner().invoke(app, [str(copied) if word == str(out) else word for word in command])
    assert done.exit_code == 0, done.output + str(done.exception)
    after = {name: (copied / name / "gates" / "gates.json").read_text() for name in RUNS.values()}
    assert [name for name in before if before[name] != after[name]] == ["g2"]
    assert (copied / "report.html").read_text() != report


def test_stopped_it_exits_with_130_and_goes_on_when_called_again(tmp_path, monkeypatch):
    from g2lstm.cli.progress import StudyBar

    write_text(tmp_path / "data")
    command, told = options(tmp_path, tmp_path / "out"), StudyBar.on_step

    def stop(self, progress, share, values):
        told(self, progress, share, values)
        if progress.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(StudyBar, "on_step", stop)
    stopped = CliRunner().invoke(app, command)
    assert stopped.exit_code == 130, stopped.output
    assert "the same command continues" in stopped.stderr
    monkeypatch.setattr(StudyBar, "on_step", told)
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0, again.output
    assert "continuing from step 2" in again.stderr


def test_a_file_that_is_no_report_is_not_overwritten(tmp_path):
    (tmp_path / "report.html").write_text("mine")
    done = CliRunner().invoke(app, options(tmp_path, tmp_path))
    assert "is not one of our reports" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
