"""Resumed training is uninterrupted training, to the bit; what can't be resumed is refused and left alone."""

import errno
import os
import re
import signal

import pytest
from safetensors.torch import load_file

from g2lstm import G2Error
from g2lstm.recipes.files import recipe_hash
from g2lstm.runs.directory import RunDirectory
from g2lstm.training.checkpoint import load_checkpoint, write_state
from g2lstm.training.environment import Interrupted
from tests.training.conftest import checkpoints
from tests.training.toys import (
    assert_same,
    interrupted,
    lm_recipe,
    make_trainer,
    resumed,
    stop_at,
    weights,
    write_text,
)


@pytest.mark.parametrize(("optimizer", "step"), [("adamw", 1), ("adamw", 14), ("ntasgd", 1), ("ntasgd", 45)])
def test_resumed_training_is_uninterrupted_training(whole, tmp_path, optimizer, step):
    expected = whole[optimizer]
    interrupted(expected.recipe, tmp_path / "run", step)
    found = resumed(expected.recipe, tmp_path / "run")
    assert found.progress.step == expected.trainer.progress.step > step
    assert found.progress.best == expected.trainer.progress.best
    assert_same(weights(found), weights(expected.trainer))
    assert found.run.model_file.read_bytes() == expected.trainer.run.model_file.read_bytes()
    ours, theirs = found.averaging, expected.trainer.averaging
    assert theirs.is_averaging == (optimizer == "ntasgd")  # or the test would not reach the averages
    assert_same(dict(enumerate(ours.means)), dict(enumerate(theirs.means)))


@pytest.mark.parametrize("step", [11, 20])
def test_resumed_training_has_the_same_mean_in_the_end(data, tmp_path, step):
    recipe = lm_recipe(data, average=3)
    expected = make_trainer(recipe, tmp_path / "whole")
    expected.train()
    interrupted(recipe, tmp_path / "run", step)
    found = resumed(recipe, tmp_path / "run")
    assert found.averaging.means
    assert_same(dict(enumerate(found.averaging.means)), dict(enumerate(expected.averaging.means)))
    assert found.run.model_file.read_bytes() == expected.run.model_file.read_bytes()


@pytest.mark.parametrize("before", [{}, {"threads": 64}, {"torch": "1.0", "processor": "Z80", "kernel": "none"}, None])
def test_a_resume_that_may_not_be_exact_says_so(cut, copy, before):
    """The last checkpoint comes from an older version, which did not say where it was written."""
    run = copy(cut.path)
    for path in (run / "checkpoints").glob("*.json"):
        state = load_checkpoint(path)
        found = state["processes"][0].pop("machine")
        if before is not None:
            state["processes"][0]["machine"] = found | before
        write_state(path, state)
    trainer = make_trainer(cut.recipe, run)
    trainer._restore()
    said = " ".join(trainer.observer.messages)
    expected = [rf"{name} [^,:]+(, .+)? instead of {value}" for name, value in (before or {}).items()]
    assert all(re.search(one, said) for one in expected)
    assert ("sums round differently, so this resume may not be exact" in said) == bool(before)


def test_a_finished_run_stays_finished(whole, copy):
    again = resumed(whole["adamw"].recipe, copy(whole["adamw"].path))
    assert again.progress == whole["adamw"].trainer.progress
    assert again.observer.shares == []


def test_the_first_signal_is_answered(data, tmp_path):
    trainer = interrupted(lm_recipe(data), tmp_path / "run", 1)
    assert sum("stopping after saving the state" in message for message in trainer.observer.messages) == 1


def test_there_is_a_checkpoint_before_the_first_update(whole):
    assert whole["adamw"].checkpoints_seen[0] == ["step-00000000.json"]


def test_checkpoints_come_with_the_clock(data, tmp_path):
    recipe = lm_recipe(data, epochs=1, checkpoint_minutes=1e-9)
    trainer = make_trainer(recipe, tmp_path / "run", lambda progress: seen.append(checkpoints(tmp_path / "run")))
    seen = []
    trainer.train()
    assert max(map(len, seen)) == 2  # before the end of the only epoch


def test_resumed_from_the_first_checkpoint_it_is_validated_once(whole, tmp_path):
    def die(progress):
        raise MemoryError

    recipe = whole["adamw"].recipe
    with pytest.raises(MemoryError):
        make_trainer(recipe, tmp_path / "run", die).train()
    found = resumed(recipe, tmp_path / "run")
    steps = [line["step"] for line in found.run.metrics() if line["kind"] == "valid"]
    assert steps == sorted(set(steps))
    assert steps[0] == 0
    assert len(found.observer.validations) == 3
    assert found.progress.stale == whole["adamw"].trainer.progress.stale


def test_damaged_checkpoints_are_refused_and_the_model_left_alone(cut, copy):
    run = copy(cut.path)
    before = (run / "model.safetensors").read_bytes()
    for path in (run / "checkpoints").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(G2Error, match="no earlier checkpoint is intact"):
        resumed(cut.recipe, run)
    assert (run / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("split", ["train", "valid"])
def test_data_that_has_changed_is_noticed(tmp_path, split):
    recipe = lm_recipe(write_text(tmp_path / "data"))
    interrupted(recipe, tmp_path / "run", 1)
    before = (tmp_path / "run/model.safetensors").read_bytes()
    text = tmp_path / f"data/{split}.txt"
    text.write_text("".join(reversed(text.read_text().splitlines(keepends=True))))
    with pytest.raises(G2Error, match=rf"data of .* has changed since its last checkpoint \({split}_sha256\)"):
        resumed(recipe, tmp_path / "run")
    assert (tmp_path / "run/model.safetensors").read_bytes() == before


def test_a_recipe_that_was_edited_is_noticed(cut, copy, data):
    run = copy(cut.path)
    file = run / "recipe.toml"
    file.write_text(file.read_text().replace("epochs = 3", "epochs = 2"))
    with pytest.raises(G2Error, match=r"recipe.toml has changed since its last checkpoint"):
        resumed(lm_recipe(data, epochs=2), run)


@pytest.mark.parametrize("when", [0, 2])
def test_an_edit_while_it_trains_neither_ends_training_nor_goes_unnoticed(data, tmp_path, when):
    file = tmp_path / "run" / "recipe.toml"

    def edit(progress):
        if progress.step == when:
            file.write_text(file.read_text().replace("epochs = 3", "epochs = "))  # no longer TOML
        stop_at(5)(progress)

    trainer = make_trainer(lm_recipe(data), tmp_path / "run", edit)
    validate = trainer.learner.validate
    trainer.learner.validate = lambda: (edit(trainer.progress), validate())[1]  # the first comes before the first save
    with pytest.raises(Interrupted):
        trainer.train()
    file.write_text(file.read_text().replace("epochs = ", "epochs = 2"))
    with pytest.raises(G2Error, match=r"recipe.toml has changed since its last checkpoint"):
        resumed(lm_recipe(data, epochs=2), tmp_path / "run")


def test_settings_that_a_later_version_adds_do_not_keep_a_run_from_resuming(data, tmp_path):
    recipe = lm_recipe(data, epochs=1)
    run = make_trainer(recipe, tmp_path / "run").run
    lines = run.recipe_file.read_text().splitlines()
    # As if written before that setting existed: the recipe has its default, the file has not.
    run.recipe_file.write_text("\n".join(line for line in lines if not line.startswith(("#", "tied ="))) + "\n")
    interrupted(recipe, tmp_path / "run", 1)
    run = RunDirectory(tmp_path / "run")
    assert run.recipe.model.tied
    assert run.recipe_hash != recipe_hash(run.recipe)
    assert f"recipe:{run.recipe_hash}|" in run.signature()
    resumed(recipe, tmp_path / "run")


@pytest.mark.parametrize(("optimizer", "size"), [("adamw", None), ("asgd", None), ("adamw", 0), ("adamw", 3000)])
def test_a_lost_model_is_replaced_from_the_checkpoint(whole, copy, optimizer, size):
    first, run = whole[optimizer].trainer, copy(whole[optimizer].path)
    if size is None:
        (run / "model.safetensors").unlink()
    else:
        os.truncate(run / "model.safetensors", size)
    second = resumed(whole[optimizer].recipe, run)
    assert second.progress.finished
    assert any("damaged: it now holds the last checkpoint's weights" in one for one in second.observer.messages)
    assert second.progress.stale == first.progress.stale
    with first.averaging.evaluation_weights():
        assert_same(load_file(second.run.model_file), weights(first))
    second.learner.model.load_state_dict(load_file(second.run.model_file))
    assert second.progress.best == pytest.approx(second.learner.validate().loss, rel=1e-6)


def disk_full(handle):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_ends_training_and_it_can_be_resumed(whole, tmp_path, monkeypatch):
    recipe = whole["adamw"].recipe
    first = make_trainer(recipe, tmp_path / "run")
    end = whole["adamw"].trainer.run.metrics()
    second_epoch = min(line["step"] for line in end if line["kind"] == "valid" and line["epoch"] == 1)

    def full(handle):
        if first.progress.step > second_epoch and not os.path.isdir(f"/proc/self/fd/{handle}"):
            disk_full(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(G2Error, match=r"disk is full"):
            first.train()
    second = resumed(recipe, tmp_path / "run")
    assert f"continuing from step {second_epoch}" in second.observer.messages
    assert_same(weights(second), weights(whole["adamw"].trainer))


@pytest.mark.parametrize("step", [0, 2])
def test_a_checkpoint_that_finds_no_room_names_the_one_before(data, tmp_path, monkeypatch, step):
    def stop(progress):
        if progress.step == step:
            monkeypatch.setattr(os, "fsync", disk_full)
            os.kill(os.getpid(), signal.SIGINT)

    trainer = make_trainer(lm_recipe(data), tmp_path / "run", stop)
    trainer.observer.on_validation = lambda progress, *_: stop(progress)
    told = "the last good state is .*step-00000000.json" if step else "there is no checkpoint yet"
    with pytest.raises(G2Error, match=rf"No space left.*; {told}; then continue with --resume"):
        trainer.train()


def test_old_runs_are_loaded_with_an_average_that_was_not_saved(whole, copy):
    """Earlier versions saved none for optimisers that do not average."""
    run = copy(whole["adamw"].path)
    state = load_checkpoint(max((run / "checkpoints").glob("*.json")))
    trainer = make_trainer(whole["adamw"].recipe, run)
    trainer.load_state_dict({**state, "averaging": None})
    assert_same(weights(trainer), weights(whole["adamw"].trainer))
