"""What is missing is done, what was cut is resumed, what is done is skipped, and one failure stops no other."""

import json
import os
import shutil
import signal
from dataclasses import replace

import pytest
from safetensors.torch import load_file

from g2lstm import G2Error, load
from g2lstm.lab.study import results
from g2lstm.lab.study.plan import Column, Measurement, PlannedTable, Study, methods_with_seeds
from g2lstm.lab.study.runner import TRAINING, Measuring, as_they_are, carry_out, jobs_of
from g2lstm.lab.study.table import build
from g2lstm.runs.directory import RunDirectory
from g2lstm.training.environment import Interrupted
from tests.lab.study.toys import Noting, of_language, write_text

COLUMNS = (
    Column("test", "ptb-small", Measurement(), paper={"gumbel": 58.2}),
    Column("svd 2", "ptb-small", Measurement(compression="gates=svd:2"), against=Measurement()),
    Column("finetuned", "ptb-small-finetune", Measurement()),
)
ROWS = {"sigmoid": "LSTM", "gumbel": "G²"}


def other_seed(recipe):
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"seed": 7})})


def make(folder, epochs=1, minutes=""):
    budget = [f"train.epochs={epochs}", f"train.minutes={minutes}"]
    overrides = [*of_language(folder), *budget, "train.optimizer.name=adamw"]
    plans = methods_with_seeds("ptb-small", COLUMNS, seeds=1, overrides=overrides)
    plans += methods_with_seeds("ptb-small-finetune", COLUMNS, seeds=1, overrides=overrides, starts_from="ptb-small")
    kept = tuple(plan for plan in plans if plan.row in ROWS)
    table = PlannedTable("A toy", ROWS, COLUMNS, (("gumbel", "sigmoid"),))
    return Study("toy", "A toy", kept, (table,))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    study, out = make(write_text(folder / "data")), folder / "out"
    watcher = Noting()
    assert carry_out(jobs_of(study, out), out, watcher) == {}
    return study, out, watcher


def test_everything_that_is_missing_is_done_in_order(finished):
    study, out, watcher = finished
    stages = [TRAINING, "test-soft", "test-soft-gates_svd2"]
    assert watcher.stages == [
        *((number, stage) for number in (0, 1) for stage in stages),
        *((number, stage) for number in (2, 3) for stage in stages[:2]),
    ]
    assert watcher.ended == [0, 1, 2, 3]
    assert watcher.shares[-1] == 1
    jobs = jobs_of(study, out)
    assert all(job.is_done and not job.stages for job in jobs)
    assert jobs[0].training.epochs == 1
    assert load(out / study.runs[2].name).recipe.train.finetune_from == str(out / study.runs[0].name)


def test_a_second_time_nothing_is_done(finished):
    study, out, _ = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    watcher = Noting()
    assert carry_out(jobs_of(study, out), out, watcher) == {}
    assert watcher.stages == []
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before


def test_only_what_is_missing_is_measured_again(finished, tmp_path):
    study, out, _ = finished
    copied = tmp_path / "out"
    shutil.copytree(out, copied)
    (copied / study.runs[1].name / "measured" / "test-soft-gates_svd2.json").unlink()
    shutil.rmtree(copied / study.runs[0].name / "checkpoints")  # a finished run does not need them any more
    watcher = Noting()
    carry_out(jobs_of(study, copied), copied, watcher)
    assert watcher.stages == [(1, "test-soft-gates_svd2")]


def test_the_table_needs_the_run_directories_alone(finished, tmp_path):
    study, out, _ = finished
    copied = tmp_path / "elsewhere"
    shutil.copytree(out, copied)
    table = build(study.tables[0], study.runs, copied)
    assert table == build(study.tables[0], study.runs, out)
    assert all(cell.values for cell in table.rows[1][1])
    assert [name for name, _ in table.rows] == ["LSTM", "G²", "  paper"]


def test_what_was_measured_of_other_weights_is_measured_again(finished, tmp_path):
    study, out, _ = finished
    copied = tmp_path / "out"
    shutil.copytree(out, copied)
    first, second = (copied / plan.name for plan in study.runs[:2])
    shutil.copy(first / "model.safetensors", second)
    (copied / study.runs[3].name / "measured" / "start.json").unlink()  # which started from it, before
    assert build(study.tables[0], study.runs, copied).rows[1][1][0].text == "-"
    watcher = Noting()
    carry_out(jobs_of(study, copied), copied, watcher)
    assert watcher.stages == [(1, "test-soft"), (1, "test-soft-gates_svd2")]
    assert results.measured(second, Measurement()).score == results.measured(first, Measurement()).score


def test_a_cache_is_tuned_for_the_weights_and_the_text_it_is_used_with(finished, tmp_path):
    study, out, _ = finished
    copied = tmp_path / "out"
    shutil.copytree(out, copied)
    run, file = copied / study.runs[0].name, "valid-soft-cache_tuned-settings.json"
    way = Measurement(cache="tuned")
    tuned = Measuring(run).measure(way, lambda done, total: None)["cache"]
    saved = run / "measured" / file
    kept = json.loads(saved.read_text())
    for changes, expected in (({}, "3,0.5,0.25"), ({"weights": "others"}, tuned), ({"valid_sha256": "another"}, tuned)):
        results.write(run, saved.name, {**kept, "window": 3, "theta": 0.5, "share": 0.25, **changes})
        assert Measuring(run).measure(way, lambda done, total: None)["cache"] == expected


def test_a_run_that_started_from_other_weights_is_refused(finished, tmp_path):
    study, out, _ = finished
    copied = tmp_path / "out"
    shutil.copytree(out, copied)
    first, second = (copied / plan.name for plan in study.runs[:2])
    shutil.copy(first / "model.safetensors", second)
    with pytest.raises(G2Error, match=r"from another ptb-small-gumbel-seed1 than the one now in .*; move it"):
        jobs_of(study, copied)
    (second / "model.safetensors").unlink()  # tables can be made without
    assert all(job.is_done for job in jobs_of(study, copied))


def test_a_run_that_goes_on_after_its_start_was_replaced_is_refused(finished, tmp_path):
    study, out, _ = finished
    copied = tmp_path / "out"
    shutil.copytree(out, copied)
    first, finetuned = study.runs[0], study.runs[2]
    shutil.rmtree(copied / finetuned.name)

    def kill(steps):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        carry_out(jobs_of(study, copied), copied, Noting(kill))
    assert jobs_of(study, copied)[2].training is None
    shutil.copy(copied / study.runs[1].name / "model.safetensors", copied / first.name)
    with pytest.raises(G2Error, match=f"{finetuned.name} was trained from another {first.name} than the one now in"):
        jobs_of(study, copied)


def test_where_a_run_starts_from_is_known_from_its_first_step_on(finished, tmp_path):
    study, out, _ = finished
    copied, seen = tmp_path / "out", []
    shutil.copytree(out, copied)
    finetuned = copied / study.runs[2].name
    shutil.rmtree(finetuned)
    note = finetuned / "measured" / "start.json"
    carry_out(jobs_of(study, copied), copied, Noting(lambda steps: seen.append(note.is_file())))
    assert seen
    assert all(seen), "kill -9 may come at any step"
    assert results.read(note, results.Origin).weights == results.weights_of(copied / study.runs[0].name)


def test_a_start_that_was_trained_anew_fails_its_own_run_alone(finished, tmp_path):
    study, out, _ = finished
    copied = tmp_path / "out"
    shutil.copytree(out, copied)
    first, finetuned = study.runs[0].name, study.runs[2].name
    shutil.rmtree(copied / first)
    jobs = jobs_of(study, copied)  # nothing is wrong yet
    for name in (finetuned, study.runs[3].name):
        (copied / name / "measured" / "test-soft.json").unlink()
    jobs = [job if job.run.name != first else replace(job, recipe=other_seed(job.recipe)) for job in jobs]
    failures = carry_out(jobs, copied, Noting())
    assert list(failures) == [finetuned]
    assert f"was trained from another {first} than the one now in" in failures[finetuned]
    left, reasons = as_they_are(study, copied)
    assert finetuned not in {job.run.name for job in left}
    assert reasons[finetuned] == failures[finetuned]


def test_a_cache_that_was_tuned_on_another_text_is_refused(tmp_path):
    folder, out = tmp_path / "data", tmp_path / "out"
    way = Measurement(cache="tuned")
    study = make(write_text(folder))
    plan = replace(study.runs[0], measurements=(way,))
    study = Study("toy", "A toy", (plan,), ())
    carry_out(jobs_of(study, out), out, Noting())
    assert all(job.is_done for job in jobs_of(study, out))
    (folder / "valid.txt").write_text("a b c\n" * 30)
    with pytest.raises(
        G2Error, match=r"given a cache that was tuned on another text than the valid.txt now in .*; move"
    ):
        jobs_of(study, out)


def test_a_run_that_was_scored_on_another_text_is_refused(finished, tmp_path):
    folder, out = tmp_path / "data", tmp_path / "out"
    study = make(write_text(folder))
    study = Study("toy", "A toy", study.runs[:1], study.tables)
    carry_out(jobs_of(study, out), out, Noting())
    assert all(job.is_done for job in jobs_of(study, out))
    (folder / "test.txt").write_text("a b c\n" * 30)
    with pytest.raises(G2Error, match=r"was scored on another text than the test.txt now in .*; move it away"):
        jobs_of(study, out)
    shutil.rmtree(folder)
    assert all(job.is_done for job in jobs_of(study, out)), "what is gone is not missed"


def test_a_file_is_no_folder_of_runs(finished, tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(G2Error, match="is not a folder; choose one for the runs with --out"):
        jobs_of(finished[0], tmp_path / "out")


def test_saturation_is_that_of_the_weights_that_were_kept(finished, tmp_path):
    study, out, _ = finished
    run = shutil.copytree(out / study.runs[0].name, tmp_path / "run")
    before = results.saturation_of(run)
    line = {"kind": "valid", "step": 10**6, "tokens": 1, "seconds": 1.0, "loss": 0.0, "saturation/a/input": 0.123}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert results.saturation_of(run) == before != 0.123
    (run / "model.safetensors").unlink()
    assert results.saturation_of(run) == 0.123, "the best, where no weights tell"


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
        carry_out(jobs_of(moved, out), out, Noting(kill))
    jobs = jobs_of(moved, out)
    assert jobs[0].training is None
    assert (out / moved.runs[0].name / "checkpoints").is_dir()
    watcher = Noting()
    assert carry_out(jobs[:1], out, watcher) == {}
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
        def on_stage(self, number, job, stage):
            super().on_stage(number, job, stage)
            if "svd" in stage:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(jobs_of(study, out), out, Impatient())
    job = jobs_of(study, out)[0]
    assert [one.name for one in job.missing] == ["test-soft-gates_svd2"]
    assert list(job.stages) == ["test-soft-gates_svd2"]


def test_a_failure_is_told_and_the_others_go_on(finished, tmp_path):
    study, _, _ = finished
    out = tmp_path / "out"
    blocked = out / study.runs[0].name
    blocked.mkdir(parents=True)
    (blocked / "something").write_text("of the user's")
    watcher = Noting()
    failures = carry_out(jobs_of(study, out), out, watcher)
    assert set(failures) == {study.runs[0].name, study.runs[2].name}
    assert "not an empty folder" in failures[study.runs[0].name]
    assert failures[study.runs[2].name] == f"it starts from {study.runs[0].name}, which has not been trained"
    assert [job.is_done for job in jobs_of(study, out)] == [False, True, False, True]
    assert watcher.ended == [0, 1, 2, 3]
    table = build(study.tables[0], study.runs, out)
    assert table.rows[0][1][0].text == "-"
    assert table.comparisons == ()


def test_a_run_of_another_recipe_is_refused_but_for_a_budget_in_minutes(finished, tmp_path):
    study, out, _ = finished
    other = make(out.parent / "data", epochs=2)
    with pytest.raises(G2Error, match="another recipe than this study's .*train.epochs was 1, is now 2"):
        jobs_of(other, out)
    copied = tmp_path / "out"
    shutil.copytree(out, copied)
    file = copied / study.runs[0].name / "recipe.toml"
    text = "\n".join(line for line in file.read_text().splitlines() if not line.startswith("#"))
    file.write_text(text.replace("[train]\n", "[train]\nminutes = 90.0\n"))
    (note,) = jobs_of(study, copied)[0].notes
    assert note == f"{study.runs[0].name} was trained with train.minutes=90; the study has no train.minutes"
    file.write_text(text.replace("[train]\n", "[train]\nminutes = 90.0\n").replace("epochs = 1\n", ""))
    (note,) = jobs_of(study, copied)[0].notes
    both = "no train.epochs and train.minutes=90; the study has train.epochs=1 and no train.minutes"
    assert note == f"{study.runs[0].name} was trained with {both}"
    file.write_text(text.replace("[train]\n", "[train]\nminutes = 90.0\n").replace("epochs = 1\n", "epochs = 3\n"))
    (note,) = jobs_of(make(out.parent / "data", minutes=90.0), copied)[0].notes
    assert "with train.epochs=3; the study has train.epochs=1" in note
    results.write(file.parent, "training.json", {"epochs": 0.3, "seconds": 1.0, "step": 1})
    with pytest.raises(G2Error, match="holds a run of 0.3 epochs, by its train.minutes, but this study has 1; move it"):
        jobs_of(study, copied)
    results.write(file.parent, "training.json", {"epochs": 1.08, "seconds": 1.0, "step": 1})
    assert jobs_of(study, copied)[0].notes
    shutil.rmtree(file.parent / "measured")
    shutil.rmtree(file.parent / "checkpoints")
    with pytest.raises(G2Error, match="an unfinished run whose length depends on the clock, .* counts epochs"):
        jobs_of(study, copied)


def test_a_run_that_started_from_another_is_not_one_that_started_from_nothing(finished, tmp_path):
    study, out, _ = finished
    copied = tmp_path / "out"
    shutil.copytree(out, copied)
    file = copied / study.runs[0].name / "recipe.toml"
    file.write_text(file.read_text().replace("[train]\n", '[train]\nfinetune_from = "runs/other"\n'))
    with pytest.raises(G2Error, match='train.finetune_from was "runs/other", is now not set'):
        jobs_of(study, copied)


def test_only_some_of_the_runs(finished):
    study, out, _ = finished
    assert [job.run.row for job in jobs_of(study, out, ("*gumbel*",))] == ["gumbel", "gumbel"]
    with pytest.raises(G2Error, match=r"no run of toy is called x\*; there are: ptb-small-sigmoid-seed1"):
        jobs_of(study, out, ("x*",))


def test_a_damaged_measurement_is_told(finished, tmp_path):
    study, out, _ = finished
    copied = tmp_path / "out"
    shutil.copytree(out, copied)
    file = copied / study.runs[0].name / "measured" / "test-soft.json"
    file.write_text(file.read_text()[:-30])
    with pytest.raises(G2Error, match="test-soft.json is damaged: .*; delete it and run the study"):
        results.measured(file.parent.parent, Measurement())
    for content in ("[]", "{}", '{"perplexity": 3.0, "signature": "s", "by_sentence": "none"}'):
        file.write_text(content)
        with pytest.raises(G2Error, match="test-soft.json is damaged: .*; delete it and run the study"):
            results.measured(file.parent.parent, Measurement())
    old = {"perplexity": 3.0, "split": "test", "eval_gate": "soft", "signature": "s", "by_sentence": [[1.0, 2.0]]}
    file.write_text(json.dumps(old))
    assert results.measured(file.parent.parent, Measurement()) is None, "an earlier version did not say on which text"
    file.with_name("training.json").write_text('{"epochs": null}')
    with pytest.raises(G2Error, match="training.json is damaged: .*; delete it and run the study"):
        results.training_of(file.parent.parent)


def test_nothing_is_measured_through_a_link(finished, tmp_path):
    study, out, _ = finished
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    shutil.copytree(out / study.runs[0].name, run)
    (run / "measured").rename(elsewhere)
    (run / "measured").symlink_to(elsewhere)
    before = {file.name: file.read_bytes() for file in elsewhere.iterdir()}
    with pytest.raises(G2Error, match="measured is a link to .*, but a run is only written into its own folder"):
        results.keep(run, Measurement("valid"), {"perplexity": 2.0})
    assert {file.name: file.read_bytes() for file in elsewhere.iterdir()} == before


def test_to_look_writes_nothing(finished, tmp_path):
    study, out, _ = finished
    copied = tmp_path / "out"
    shutil.copytree(out, copied)
    shutil.rmtree(copied / study.runs[0].name / "measured")  # as `g2lstm train` leaves a run
    job = jobs_of(study, copied)[0]
    assert job.training.epochs == 1
    assert len(job.missing) == 2
    assert not (copied / study.runs[0].name / "measured").exists()


def test_a_run_that_was_begun_by_another_recipe_is_refused_at_once(finished, tmp_path):
    study, out, _ = finished
    name = study.runs[1].name
    begun = tmp_path / "out" / name
    begun.mkdir(parents=True)
    shutil.copy(out / name / "recipe.toml", begun)
    other = make(out.parent / "data", epochs=2)
    for only in ((), ("*gumbel*",)):
        with pytest.raises(G2Error, match=f"{name} holds a run of another recipe than this study's"):
            jobs_of(other, tmp_path / "out", only)


def test_measurements_are_json_of_one_line_a_key(finished):
    study, out, _ = finished
    text = (out / study.runs[0].name / "measured" / "test-soft-gates_svd2.json").read_text()
    values = json.loads(text)
    assert len(text.splitlines()) == len(values) + 2
    assert values["compressed"] == "gates=svd:2"
    assert "|compressed:gates=svd:2|" in values["signature"]
    assert sum(tokens for _, tokens in values["by_sentence"]) == values["tokens"]
