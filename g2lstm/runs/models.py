"""Models from recipes."""

from g2lstm.config.lm import LmRecipe
from g2lstm.lm.model import LanguageModel


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
        weight_dropout=model.weight_dropout,
        method=model.method,
        tau=model.tau,
        noise_rate=model.noise_rate,
        gates=model.gates,
        eval_gate=model.eval_gate,
    )
