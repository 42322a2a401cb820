"""Trained models of run directories: `load` opens one, `score` scores it and signs the score."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from g2lstm.compression import storage
from g2lstm.compression.encodings.base import brief
from g2lstm.compression.model import install_
from g2lstm.errors import G2Error
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.registry import task_of
from g2lstm.tasks.task import ModelT, Task, TrainedT
from g2lstm.tasks.trained import Progress, Scoring, Trained


def load(run_dir: str | Path) -> Trained:
    """The trained model of a run directory, in evaluation mode, on the CPU."""
    run = RunDirectory.open(Path(run_dir))
    return _load(task_of(run.recipe), run)


def load_as(task: Task[Any, Any, TrainedT], run_dir: str | Path) -> TrainedT:
    """As `load`, but refuses a run of another task."""
    return _load(task, RunDirectory.open(Path(run_dir), task=task.trained.task))


def _load(task: Task[Any, Any, TrainedT], run: RunDirectory) -> TrainedT:
    recipe, tokenizers = run.recipe, run.tokenizers()
    model = _filled(partial(task.build, recipe, *map(len, tokenizers)), run)
    trained = task.trained(recipe, model, *tokenizers)
    trained.run, trained.facts = run, run.training_facts()
    return trained


def score(
    trained: Trained, how: Scoring, progress: Progress | None = None, *, compressed: str | None = None
) -> dict[str, Any]:
    """The score of a split, as `result.json` has it.

    Args:
        trained: a model from `load`.
        how: the split and the options.
        progress: called with the tokens or sentences done, and the total.
        compressed: the spec of a model that was compressed after it was loaded.
    """
    found, run = trained.score_split(how, progress), trained.run
    spec = {} if compressed is None else {"compressed": compressed}
    # Signatures are for people. What programs compare stands beside them.
    compared = {"recipe": run.recipe_hash, "data": found.facts["data"]}
    signed = {**found.values, **spec, **compared, "signature": run.signature(**spec, **found.facts)}
    return signed if found.by_sentence is None else {**signed, "by_sentence": found.by_sentence}


def _filled(build: Callable[[], ModelT], run: RunDirectory) -> ModelT:
    """The model with the weights of a run, in evaluation mode."""
    with torch.device("meta"):
        outline = build()
    if run.compression is not None:
        fill_compressed(outline, run)
        return outline.eval()
    check_fits(outline, run)  # before there is memory for it
    model = build()
    fill(model, run)
    return model.eval()


def fill(model: nn.Module, run: RunDirectory) -> None:
    """Gives a model the weights of a run; they must fit, and be finite."""
    check_fits(model, run)
    weights = run.load_weights()
    if wrong := [name for name, value in weights.items() if not value.isfinite().all()]:
        raise G2Error(f"{run.model_file} is broken: {wrong[0]} is not finite; train it anew")
    model.load_state_dict(weights)


def check_fits(model: nn.Module, run: RunDirectory) -> None:
    """Raises unless the weights of a run are float32 and of the shapes of a model's; they are not read for this."""
    expected = {name: (list(value.shape), "F32") for name, value in model.state_dict().items()}
    found = run.outline()
    if wrong := sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)):
        shapes = [" ".join(map(str, each.get(wrong[0], ["none"]))) for each in (found, expected)]
        raise G2Error(
            f"{run.model_file} does not fit the recipe and the tokenizer: {brief(wrong[0])} has shape {shapes[0]}, "
            f"expected {shapes[1]}; use its own"
        )


def fill_compressed(model: nn.Module, run: RunDirectory) -> None:
    """Gives a model, which may be on the meta device, the compressed weights of a run; they must fit."""
    stored = storage.load(run.model_file)
    try:
        install_(model, stored.matrices)
    except G2Error as error:
        raise G2Error(f"{run.model_file} does not fit the recipe and the tokenizer: {error}; use its own") from None
    expected = {name: (tuple(value.shape), value.dtype) for name, value in model.named_parameters()}
    found = {name: (tuple(value.shape), value.dtype) for name, value in stored.others.items()}
    if expected != found:
        wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))[0]
        raise G2Error(
            f"{run.model_file} does not fit the recipe and the tokenizer: {wrong} is {found.get(wrong, 'not there')}, "
            f"expected {expected.get(wrong, 'nothing')}; use its own"
        )
    model.load_state_dict(stored.others, strict=False, assign=True)
