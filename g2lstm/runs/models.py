"""Models from recipes."""

from typing import Any

from g2lstm.config.lm import LmRecipe
from g2lstm.config.mt import MtRecipe
from g2lstm.config.sections import GateSection
from g2lstm.lm.model import LanguageModel
from g2lstm.mt.model import TranslationModel


def build_language_model(recipe: LmRecipe, vocabulary_size: int) -> LanguageModel:
    """The model that a recipe describes, with fresh weights from torch's generator."""
    model = recipe.model
    return LanguageModel(
        vocabulary_size,
        model.embedding,
        model.hidden,
        model.layers,
        tied=model.tied,
        word_dropout=model.dropout.words,
        input_dropout=model.dropout.input,
        between_dropout=model.dropout.between,
        output_dropout=model.dropout.output,
        **_gate_options(model),
    )


def build_translation_model(recipe: MtRecipe, source_size: int, target_size: int) -> TranslationModel:
    """The model that a recipe describes, with fresh weights from torch's generator."""
    model = recipe.model
    return TranslationModel(
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


def _gate_options(section: GateSection) -> dict[str, Any]:
    return {name: getattr(section, name) for name in GateSection.model_fields}
