"""A checkpoint that a stranger made, with checksums that are right: training goes on from it, or says what is wrong."""

import hashlib
import json
import os
import shutil

import pytest
import torch
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load, save

from g2lstm import G2Error
from g2lstm.training.checkpoint import _digest, load_checkpoint, write_state
from g2lstm.training.optim import load_optimizer_state, optimizer_state
from g2lstm.training.progress import TrainingProgress
from tests.fuzz import changed, fuzzed
from tests.training.toys import ADADELTA, ADAMW, NTASGD, interrupted, lm_recipe, make_trainer

OPTIMIZERS = {"adamw": ADAMW, "ntasgd": NTASGD, "adadelta": ADADELTA}


class Enough(Exception):
    pass


@pytest.fixture(scope="module", params=OPTIMIZERS)
def saved(request, data, tmp_path_factory):
    """An interrupted training run of each optimiser, and how to continue it elsewhere for two updates."""
    return cut_run(data, tmp_path_factory.mktemp("saved") / "run", OPTIMIZERS[request.param])


@pytest.fixture(scope="module")
def saved_adamw(data, tmp_path_factory):
    return cut_run(data, tmp_path_factory.mktemp("saved") / "run", ADAMW)


def cut_run(data, out, optimizer):
    def enough(progress):
        if progress.step >= 5:
            raise Enough

    recipe = lm_recipe(data, optimizer=optimizer, epochs=1)
    interrupted(recipe, out, 3)
    return out, lambda run: make_trainer(recipe, run, enough).train(resume=True)


def rewrite(run, state, tensors=None):
    """Puts another state into the newest checkpoint, and gives it the checksums that it needs."""
    path = max((run / "checkpoints").glob("step-*.json"))
    header = json.loads(path.read_bytes())
    del header["header_sha256"]
    header["state"] = state
    if tensors is not None:
        path.with_suffix(".safetensors").write_bytes(content := save(tensors))
        header["sha256"] = hashlib.sha256(content).hexdigest()
    path.write_text(json.dumps({**header, "header_sha256": _digest(header)}))


def state_of(run):
    path = max((run / "checkpoints").glob("step-*.json"))
    return json.loads(path.read_bytes())["state"], load(path.with_suffix(".safetensors").read_bytes())


def go_on_with(saved, folder, state):
    """Goes on in a copy whose only checkpoint has this state."""
    run, go_on = saved
    copy = shutil.copytree(run, folder / "copy")
    rewrite(copy, state)
    for older in sorted((copy / "checkpoints").glob("step-*.json"))[:-1]:
        older.unlink()
    go_on(copy)


@fuzzed(few=20, many=200)
def test_a_state_made_up_is_refused_or_taken(saved, tmp_path, data):
    run, go_on = saved
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    state, tensors = state_of(copy)
    if data.draw(st.booleans()):
        rewrite(copy, changed(data, state))
    else:
        name = data.draw(st.sampled_from(sorted(tensors)))
        others = {
            "of another shape": torch.zeros(3, 5), "of another type": tensors[name].to(torch.int32),
            "none": torch.zeros(0), "not finite": torch.full_like(tensors[name].float(), torch.nan),
        }  # fmt: skip
        rewrite(copy, state, tensors | {name: data.draw(st.sampled_from(sorted(others)).map(others.get))})
    try:
        go_on(copy)
    except (G2Error, Enough):
        return


@pytest.mark.parametrize(
    "change",
    [
        {"progress": None}, {"progress": []}, {"progress": {"step": 3}}, {"progress": {"best": None}},
        {"processes": []}, {"processes": 3},
        {"model": {}}, {"optimizer": None}, {"model": {"tensor": "no such tensor"}}, {"model": {"tensor": []}},
    ],
)  # fmt: skip
def test_parts_that_are_not_there(saved_adamw, tmp_path, change):
    state, _ = state_of(saved_adamw[0])
    with pytest.raises(G2Error, match="belongs to another training run|did not write|does not fit|saved optimiser"):
        go_on_with(saved_adamw, tmp_path, {**state, **change})


@pytest.mark.parametrize("position", [-1, 10**9, 10**400])
def test_a_place_beyond_the_text(saved_adamw, tmp_path, position):
    state, _ = state_of(saved_adamw[0])
    state["processes"][0]["task"]["position"] = position
    with pytest.raises(G2Error, match="belongs to another training run"):
        go_on_with(saved_adamw, tmp_path, state)


@pytest.mark.parametrize(
    "change",
    [
        {"step": -1}, {"step": "3"}, {"step": True}, {"epochs": "many"}, {"epochs": float("nan")}, {"seconds": None},
        {"epochs": 0}, {"best": "good"}, {"best": 10**400}, {"step": 10**400}, {"best_scores": 3.0},
        {"best_scores": {"bleu": None}}, {"finished": 1}, {"skipped": 0.5}, {"more": 1},
    ],
)  # fmt: skip
def test_progress_that_is_none(change):
    saved = TrainingProgress().model_dump()
    assert TrainingProgress.model_validate(saved) == TrainingProgress()
    with pytest.raises(ValidationError):
        TrainingProgress.model_validate({**saved, **change})


@pytest.mark.parametrize("memory", [{"step": "exp_avg"}, {"exp_avg": "step"}, {"exp_avg": None}])
def test_what_an_optimiser_never_remembers(memory):
    layer = torch.nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = optimizer_state(optimizer)
    load_optimizer_state(optimizer, state)
    first = state["parameters"]["0"]
    first |= {name: None if other is None else first[other] for name, other in memory.items()}
    with pytest.raises((RuntimeError, AttributeError), match="shape|view"):  # the trainer turns it into a G2Error
        load_optimizer_state(optimizer, state)


@pytest.mark.parametrize("kind", ["hole", "pipe"])
def test_a_file_that_would_never_end_is_not_read(tmp_path, kind):
    path = tmp_path / "step-00000001.json"
    write_state(path, {"step": 1})
    for file in (path, path.with_suffix(".safetensors")):
        content = file.read_bytes()
        if kind == "hole":
            os.truncate(file, 2**42)
        else:
            file.unlink()
            os.mkfifo(file)
        with pytest.raises(G2Error, match="is damaged: .* (is longer than|is not a file)"):
            load_checkpoint(path)
        file.unlink()
        file.write_bytes(content)
    assert load_checkpoint(path) == {"step": 1}
