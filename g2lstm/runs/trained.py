"""`load`: a trained model with its tokenizer, ready to be used from Python."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from g2lstm.compression.header import shown
from g2lstm.errors import G2Error
from g2lstm.runs.compressed import fill_compressed
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.models import build_language_model, build_translation_model
from g2lstm.tasks.lm.recipe import LmRecipe
from g2lstm.tasks.lm.trained import TrainedLanguageModel
from g2lstm.tasks.mt.trained import SOURCE_TOKENIZER, TARGET_TOKENIZER, TrainedTranslationModel

Model = TypeVar("Model", bound=nn.Module)


def load(run_dir: str | Path) -> TrainedLanguageModel | TrainedTranslationModel:
    """The trained model of a run directory, in evaluation mode, on the CPU."""
    run = RunDirectory.open(Path(run_dir))
    recipe = run.recipe
    if isinstance(recipe, LmRecipe):
        return load_language_model(run_dir)
    return load_translation_model(run_dir)


def load_language_model(run_dir: str | Path) -> TrainedLanguageModel:
    """As `load`, for a language model only."""
    run = RunDirectory.open(Path(run_dir), task="lm")
    recipe = run.recipe
    assert isinstance(recipe, LmRecipe)
    tokenizer = run.tokenizer()
    model = _filled(partial(build_language_model, recipe, len(tokenizer)), run)
    return TrainedLanguageModel(run, recipe, tokenizer, model)


def load_translation_model(run_dir: str | Path) -> TrainedTranslationModel:
    """As `load`, for a translation model only."""
    run = RunDirectory.open(Path(run_dir), task="mt")
    recipe = run.recipe
    assert not isinstance(recipe, LmRecipe)
    source, target = run.tokenizer(SOURCE_TOKENIZER), run.tokenizer(TARGET_TOKENIZER)
    model = _filled(partial(build_translation_model, recipe, len(source), len(target)), run)
    return TrainedTranslationModel(run, recipe, source, target, model)


def _filled(build: Callable[[], Model], run: RunDirectory) -> Model:
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
            f"{run.model_file} does not fit the recipe and the tokenizer: {shown(wrong[0])} has shape {shapes[0]}, "
            f"expected {shapes[1]}; use its own"
        )
