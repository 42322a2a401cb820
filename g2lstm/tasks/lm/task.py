"""Language modelling as a task: from a recipe to data, model and learner."""

from collections.abc import Sequence
from pathlib import Path

import torch

from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.lm.recipe import LmRecipe
from g2lstm.tasks.lm.trained import TrainedLanguageModel
from g2lstm.tasks.lm.training import LanguageModelLearner
from g2lstm.tasks.task import Prepared, Task, Work, gate_options
from g2lstm.text.corpus import prepare_stream, prepare_tokenizer
from g2lstm.text.registry import lm_files
from g2lstm.text.tokenize import Tokenizer


class LmTask(Task[LmRecipe, LanguageModel, TrainedLanguageModel]):
    """Language modelling."""

    recipe = LmRecipe
    trained = TrainedLanguageModel

    def module(self, recipe: LmRecipe, *vocabularies: int) -> LanguageModel:
        """The model that a recipe describes."""
        (size,), model, dropout = vocabularies, recipe.model, recipe.model.dropout
        return LanguageModel(
            size,
            model.embedding,
            model.hidden,
            model.layers,
            tied=model.tied,
            residual=model.residual,
            word_dropout=dropout.words,
            input_dropout=dropout.input,
            between_dropout=dropout.between,
            output_dropout=dropout.output,
            **gate_options(model),
        )

    def prepare(self, recipe: LmRecipe, data_dir: Path | None, tokenizers: Sequence[Tokenizer] | None) -> Prepared:
        """Tokenises the text."""
        data = recipe.data
        files = lm_files(data.name, None if data.path is None else Path(data.path), data_dir)
        if tokenizers is None:
            tokenizers = [
                prepare_tokenizer(
                    files["train"],
                    data.tokenizer,
                    vocabulary=data.vocabulary,
                    min_frequency=data.min_frequency,
                    lowercase=data.lowercase,
                )
            ]
        train, valid, _ = (prepare_stream(files[split], *tokenizers) for split in ("train", "valid", "test"))
        return Prepared(tuple(tokenizers), train, valid)

    def learner(
        self,
        recipe: LmRecipe,
        data: Prepared,
        *,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
    ) -> LanguageModelLearner:
        """A new model that reads windows of the text."""
        size = len(data.tokenizers[0])
        model = self.build(recipe, size)
        if recipe.train.frequency_bias:
            model.predict_frequencies(torch.from_numpy(data.train.counts(size)))
        model.to(device)
        return LanguageModelLearner(
            recipe, model, data.train, data.valid, device=device, rank=rank, world_size=world_size
        )

    def work(self, recipe: LmRecipe, words: int, sentence: int) -> Work:
        """Every token goes through all weights except the embedding, in which it is looked up."""
        model, weights = recipe.model, self.count_weights(recipe, words)
        lookup = 0 if model.tied else words * model.embedding
        batch = recipe.train.batch_size * recipe.train.bptt
        return Work(weights, weights - lookup, model.layers * model.hidden, batch)
