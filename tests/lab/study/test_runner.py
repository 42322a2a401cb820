"""What is missing is done, what was cut is resumed, what is done is skipped, and one failure stops no other."""

import json
import os
import re
import shutil
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file

from g2lstm import G2Error, load
from g2lstm.lab.study import jobs as known
from g2lstm.lab.study import runner
from g2lstm.lab.study.jobs import TRAINING, jobs_of
from g2lstm.lab.study.plan import METHODS, Column, Measurement, PlannedTable, Study, plan_runs
from g2lstm.lab.study.runner import Measuring, carry_out
from g2lstm.lab.study.studies import demo
from g2lstm.lab.study.table import build
from g2lstm.runs.directory import RunDirectory
from g2lstm.training.environment import Interrupted
from tests.lab.study.toys import Noting, of_language, write_text

COLUMNS = (
    Column("test", "ptb-small", Measurement(), paper={"gumbel": 58.2}),
    Column("svd 2", "ptb-small", Measurement(compression="gates=svd:2"), against=Measurement()),
    Column("finetuned", "ptb-small-finetune", Measurement()),
)
ROWS = {"sigmoid": METHODS["sigmoid"], "gumbel": replace(METHODS["gumbel"], against=("sigmoid",))}


def make(folder, epochs=1, minutes=""):
    budget = [f"train.epochs={epochs}", f"train.minutes={minutes}"]
    overrides = [*of_language(folder), *budget, "train.optimizer.name=adamw"]
    how = {"seeds": 1, "rows": ROWS, "overrides": overrides}
    plans = plan_runs("ptb-small", COLUMNS, **how)
    plans += plan_runs("ptb-small-finetune", COLUMNS, **how, starts_from="ptb-small")
    return Study(tuple(plans), (PlannedTable("A toy", COLUMNS, (), ROWS),))


def problems(study, out):
    return {job.run.name: job.problem for job in jobs_of(study, out) if job.problem}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    study, out = make(write_text(folder / "data")), folder / "out"
    watcher = Noting()
    assert carry_out(jobs_of(study, out), watcher) == {}
    return study, out, watcher


@pytest.fixture
def copied(finished, tmp_path):
    """Its folder, to be changed."""
    return shutil.copytree(finished[1], tmp_path / "out")


def test_everything_that_is_missing_is_done_in_order(finished):
    study, out, watcher = finished
    stages = [TRAINING, "test-soft", "test-soft-gates_svd2"]
    assert watcher.stages == [
        *((run.name, stage) for run in study.runs[:2] for stage in stages),
        *((run.name, stage) for run in study.runs[2:] for stage in stages[:2]),
    ]
    assert watcher.shares[-1] == 1
    jobs = jobs_of(study, out)
    assert all(job.is_done and not job.stages for job in jobs)
    assert jobs[0].training.epochs == 1
    assert load(out / study.runs[2].name).recipe.train.finetune_from == str(out / study.runs[0].name)


def test_a_second_time_nothing_is_done(finished):
    study, out, _ = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    watcher = Noting()
    assert carry_out(jobs_of(study, out), watcher) == {}
    assert watcher.stages == []
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before


def test_only_what_is_missing_is_measured_again(finished, copied):
    study, _, _ = finished
    (copied / study.runs[1].name / "measured" / "test-soft-gates_svd2.json").unlink()
    shutil.rmtree(copied / study.runs[0].name / "checkpoints")  # a finished run does not need them any more
    watcher = Noting()
    carry_out(jobs_of(study, copied), watcher)
    assert watcher.stages == [(study.runs[1].name, "test-soft-gates_svd2")]


def test_the_table_needs_the_run_directories_alone(finished, copied):
    study, out, _ = finished
    table = build(study.tables[0], jobs_of(study, copied))
    assert table == build(study.tables[0], jobs_of(study, out))
    assert all(cell.values for cell in table.rows[1][1])
    assert [name for name, _ in table.rows] == ["LSTM", "G²", "  paper"]


def test_what_was_measured_of_other_weights_is_measured_again(finished, copied):
    study, _, _ = finished
    first, second = (copied / plan.name for plan in study.runs[:2])
    shutil.copy(first / "model.safetensors", second)
    assert build(study.tables[0], jobs_of(study, copied)).rows[1][1][0].text == "-"
    watcher = Noting()
    carry_out(jobs_of(study, copied)[:2], watcher)
    assert watcher.stages == [(second.name, "test-soft"), (second.name, "test-soft-gates_svd2")]
    one, other = (job.measured[Measurement()].score for job in jobs_of(study, copied)[:2])
    assert one == other


def test_a_cache_is_tuned_for_the_weights_and_the_text_it_is_used_with(finished, copied):
    study, _, _ = finished
    run, file = copied / study.runs[0].name, "valid-soft-cache_tuned-settings.json"
    way = Measurement(cache="tuned")
    tuned = Measuring(run).measure(way, lambda done, total: None)["cache"]
    saved = run / "measured" / file
    kept = json.loads(saved.read_text())
    for changes, expected in (({}, "3,0.5,0.25"), ({"weights": "others"}, tuned), ({"valid_sha256": "another"}, tuned)):
        known.keep(run, saved.stem, {**kept, "window": 3, "theta": 0.5, "share": 0.25, **changes})
        assert Measuring(run).measure(way, lambda done, total: None)["cache"] == expected


def test_a_run_that_started_from_other_weights_is_refused(finished, copied):
    study, _, _ = finished
    first, second = (copied / plan.name for plan in study.runs[:2])
    shutil.copy(first / "model.safetensors", second)
    name = study.runs[3].name
    assert list(problems(study, copied)) == [name]
    assert (
        f"was not trained from the ptb-small-gumbel-seed1 that is now in {copied}; move it"
        in problems(study, copied)[name]
    )
    (second / "model.safetensors").unlink()  # tables can be made without
    assert all(job.is_done for job in jobs_of(study, copied))


def test_a_file_is_no_folder_of_runs(finished, tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(G2Error, match="is not a folder; choose one for the runs with --out"):
        jobs_of(finished[0], tmp_path / "out")


def test_an_uncompressed_score_is_in_result_json_as_eval_writes_it(finished):
    from g2lstm.runs.records import Score
    from g2lstm.runs.trained import score
    from g2lstm.tasks.trained import Scoring

    study, out, _ = finished
    run = RunDirectory(out / study.runs[1].name)
    (saved,) = run.results()
    assert saved == Score(**score(load(run.path), Scoring("test", eval_gate="soft")))


@pytest.mark.parametrize("cut", [1, 3])
def test_what_was_cut_is_resumed_and_ends_as_if_nothing_had_happened(finished, tmp_path, cut):
    _, whole, _ = finished
    out = tmp_path / "out"
    moved = make(whole.parent / "data")

    def kill(steps):
        if steps == cut:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="state is saved"):
        carry_out(jobs_of(moved, out), Noting(kill))
    jobs = jobs_of(moved, out)
    assert jobs[0].training is None
    assert (out / moved.runs[0].name / "checkpoints").is_dir()
    watcher = Noting()
    assert carry_out(jobs[:1], watcher) == {}
    assert any("continuing from step" in message for message in watcher.messages)
    name = moved.runs[0].name
    ours, theirs = (load_file(RunDirectory(folder / name).model_file) for folder in (out, whole))
    assert all((ours[key] == theirs[key]).all() for key in theirs)


def test_killed_while_measuring_what_was_measured_is_kept(finished, tmp_path, monkeypatch):
    study, whole, _ = finished
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    for file in (out / study.runs[0].name / "measured").glob("test-*.json"):
        file.unlink()

    class Impatient(Noting):
        def on_stage(self, job, stage, is_new=True):
            super().on_stage(job, stage)
            if "svd" in stage:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(jobs_of(study, out), Impatient())
    job = jobs_of(study, out)[0]
    assert [one.name(job.recipe) for one in job.missing] == ["test-soft-gates_svd2"]
    assert list(job.stages) == ["test-soft-gates_svd2"]


def test_a_failure_is_told_and_the_others_go_on(finished, tmp_path):
    study, _, _ = finished
    out = tmp_path / "out"
    blocked = out / study.runs[0].name
    blocked.mkdir(parents=True)
    (blocked / "something").write_text("of the user's")
    watcher = Noting()
    failures = carry_out(jobs_of(study, out), watcher)
    assert set(failures) == {study.runs[0].name, study.runs[2].name}
    assert "not an empty folder" in failures[study.runs[0].name]
    assert failures[study.runs[2].name] == f"it starts from {study.runs[0].name}, which has not been trained"
    assert [job.is_done for job in jobs_of(study, out)] == [False, True, False, True]
    table = build(study.tables[0], jobs_of(study, out))
    assert table.rows[0][1][0].text == "-"
    assert table.comparisons == ()


def test_nothing_is_measured_through_a_link(finished, tmp_path):
    study, out, _ = finished
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    shutil.copytree(out / study.runs[0].name, run)
    (run / "measured").rename(elsewhere)
    (run / "measured").symlink_to(elsewhere)
    before = {file.name: file.read_bytes() for file in elsewhere.iterdir()}
    with pytest.raises(G2Error, match="measured is a link to .*, but a run is only written into its own folder"):
        known.keep(run, "valid-soft", {"perplexity": 2.0})
    assert {file.name: file.read_bytes() for file in elsewhere.iterdir()} == before


def test_measurements_are_json_of_one_line_a_key(finished):
    study, out, _ = finished
    text = (out / study.runs[0].name / "measured" / "test-soft-gates_svd2.json").read_text()
    values = json.loads(text)
    assert len(text.splitlines()) == len(values) + 2
    assert values["compressed"] == "gates=svd:2"
    assert "|compressed:gates=svd:2|" in values["signature"]
    assert sum(tokens for _, tokens in values["by_sentence"]) == values["tokens"]


def test_a_run_of_another_recipe_is_refused_wherever_it_started_from(finished, copied):
    study, out, _ = finished
    longer = problems(make(out.parent / "data", epochs=2), out)
    assert len(longer) == 4
    for run in study.runs:
        assert f"{run.name} holds a run with a different recipe from this study's" in longer[run.name]
        assert "train.epochs was 1, is now 2); move it away" in longer[run.name]
    assert problems(study, copied) == {}, "the runs that others start from have moved along"
    file = copied / study.runs[0].name / "recipe.toml"
    file.write_text(file.read_text().replace("[train]\n", '[train]\nfinetune_from = "runs/other"\n'))
    (problem,) = problems(study, copied).values()
    assert 'train.finetune_from was "runs/other", is now not set' in problem


@pytest.mark.parametrize("name", ["test.txt", "valid.txt"])
def test_what_was_measured_on_another_text_is_measured_again(tmp_path, name):
    folder, out = tmp_path / "data", tmp_path / "out"
    plain, cached = Measurement(), Measurement(cache="tuned")
    study = make(write_text(folder))
    study = Study((replace(study.runs[0], measurements=(plain, cached)),), ())
    carry_out(jobs_of(study, out), Noting())
    assert all(job.is_done for job in jobs_of(study, out))
    before = (folder / name).read_text()
    (folder / name).write_text("a b c\n" * 30)
    (job,) = jobs_of(study, out)
    assert job.missing == ([plain, cached] if name == "test.txt" else [cached])
    (folder / name).write_text(before)
    assert all(job.is_done for job in jobs_of(study, out))
    shutil.rmtree(folder)
    assert all(job.is_done for job in jobs_of(study, out)), "what is gone is not missed"


def test_a_run_that_was_trained_outside_of_the_study_is_only_measured(finished, copied):
    study, _, _ = finished
    path = copied / study.runs[0].name
    shutil.rmtree(path / "measured")  # as `g2lstm train` leaves a run
    weights = (path / "model.safetensors").read_bytes()
    (job, *_) = jobs_of(study, copied)
    assert (job.training, len(job.missing)) == (None, 2)
    assert not (path / "measured").exists(), "to look writes nothing"
    watcher = Noting()
    assert carry_out([job], watcher) == {}
    assert watcher.steps == 0
    assert (path / "model.safetensors").read_bytes() == weights
    assert jobs_of(study, copied)[0].training.epochs == 1


def test_a_damaged_measurement_is_told(finished, copied):
    study, _, _ = finished
    name = study.runs[0].name
    file = copied / name / "measured" / "test-soft.json"
    for content in (file.read_text()[:-30], "[]", "{}", '{"perplexity": 3.0, "signature": "s", "by_sentence": "none"}'):
        file.write_text(content)
        assert re.search(r"test-soft.json is damaged: .*; delete it and run the study", problems(study, copied)[name])
    old = {"perplexity": 3.0, "split": "test", "eval_gate": "soft", "signature": "s", "by_sentence": [[1.0, 2.0]]}
    file.write_text(json.dumps(old))
    assert Measurement() in jobs_of(study, copied)[0].missing, "an earlier version did not say on which text"
    file.with_name("training.json").write_text('{"epochs": null}')
    assert re.search(r"training.json is damaged: .*; delete it and run the study", problems(study, copied)[name])


def test_trainings_in_turns_get_the_same_updates(tmp_path, monkeypatch):
    """One of them is far slower, and the clock ends all three after the same number of epochs."""
    clock = iter(range(0, 10_000, 7))
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: next(clock)))  # others keep their clock
    monkeypatch.setattr(runner, "free_threads", lambda most: most)
    study = demo([*of_language(write_text(tmp_path / "data")), "train.epochs=20", "train.minutes=0.5"])
    jobs = jobs_of(study, tmp_path / "out")
    runner.train_in_turns(jobs, Noting(), minutes=0.5)
    steps = [RunDirectory(job.path).metrics()[-1]["step"] for job in jobs]
    assert len(set(steps)) == 1
    epochs = [RunDirectory(job.path).metrics()[-1]["epoch"] for job in jobs]
    assert 1 < epochs[0] < 20


@pytest.mark.parametrize(
    ("done", "left", "rate", "limit", "planned"),
    [(1, 100, 10, 50, 11), (1, 100, 10, 5, 5), (4, -3, 10, 50, 5), (5, 100, 10, 5, 5), (3, 12, 10, 50, 4)],
)
def test_planned_epochs_by_hand(done, left, rate, limit, planned):
    assert runner.planned_epochs(done, left, rate, limit) == planned


@pytest.mark.parametrize(("busy", "threads"), [(0.0, 4), (24.0, 3), (100.0, 1)])
def test_only_free_cores_are_used(monkeypatch, busy, threads):
    monkeypatch.setattr(runner.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(runner.psutil, "cpu_percent", lambda seconds: busy)
    assert runner.free_threads(8) == threads
    assert runner.free_threads(1) == 1
