"""Models from recipes, unless they would not fit into memory."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import psutil
import torch
from torch import nn

from g2lstm.errors import G2Error
from g2lstm.recipes.sections import GateSection
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.lm.recipe import LmRecipe
from g2lstm.tasks.mt.model import TranslationModel
from g2lstm.tasks.mt.recipe import MtRecipe

Model = TypeVar("Model", bound=nn.Module)


def build_language_model(recipe: LmRecipe, vocabulary_size: int) -> LanguageModel:
    """The model that a recipe describes, with fresh weights from torch's generator."""
    model = recipe.model
    build = partial(
        LanguageModel,
        vocabulary_size,
        model.embedding,
        model.hidden,
        model.layers,
        tied=model.tied,
        residual=model.residual,
        word_dropout=model.dropout.words,
        input_dropout=model.dropout.input,
        between_dropout=model.dropout.between,
        output_dropout=model.dropout.output,
        **_gate_options(model),
    )
    return _built(build)


def build_translation_model(recipe: MtRecipe, source_size: int, target_size: int) -> TranslationModel:
    """The model that a recipe describes, with fresh weights from torch's generator."""
    model = recipe.model
    build = partial(
        TranslationModel,
        source_size,
        target_size,
        model.embedding,
        model.hidden,
        model.layers,
        model.layers if model.decoder_layers is None else model.decoder_layers,
        tied=model.tied,
        residual=model.residual,
        input_dropout=model.dropout.input,
        between_dropout=model.dropout.between,
        output_dropout=model.dropout.output,
        **_gate_options(model),
    )
    return _built(build)


def _built(build: Callable[[], Model]) -> Model:
    """The model, if the machine could hold its weights; they are counted before there are any."""
    with torch.device("meta"):
        weights = sum(parameter.numel() for parameter in build().parameters())
    memory = psutil.virtual_memory().total
    if 4 * weights > memory:
        raise G2Error(
            f"the model of this recipe has {weights:,} weights, which take {4 * weights / 1e9:,.0f} GB, and this "
            f"machine has {memory / 1e9:,.0f} GB of memory; choose smaller sizes: model.hidden, model.embedding, "
            "model.layers or data.vocabulary"
        )
    return build()


def _gate_options(section: GateSection) -> dict[str, Any]:
    return {name: getattr(section, name) for name in GateSection.model_fields}
