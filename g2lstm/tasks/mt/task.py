"""Translation as a task: from a recipe to data, model and learner."""

from collections.abc import Sequence
from pathlib import Path

import torch

from g2lstm.tasks.mt.model import TranslationModel
from g2lstm.tasks.mt.recipe import MtRecipe
from g2lstm.tasks.mt.trained import TrainedTranslationModel
from g2lstm.tasks.mt.training import TranslationLearner
from g2lstm.tasks.task import Prepared, Task, Work, gate_options
from g2lstm.text.pairs import mt_files, prepare_pairs, prepare_tokenizers
from g2lstm.text.tokenize import Tokenizer


class MtTask(Task[MtRecipe, TranslationModel, TrainedTranslationModel]):
    """Translation."""

    recipe = MtRecipe
    trained = TrainedTranslationModel

    def module(self, recipe: MtRecipe, *vocabularies: int) -> TranslationModel:
        """The model that a recipe describes."""
        (source, target), model, dropout = vocabularies, recipe.model, recipe.model.dropout
        return TranslationModel(
            source,
            target,
            model.embedding,
            model.hidden,
            model.layers,
            _decoder_layers(recipe),
            tied=model.tied,
            residual=model.residual,
            input_dropout=dropout.input,
            between_dropout=dropout.between,
            output_dropout=dropout.output,
            **gate_options(model),
        )

    def prepare(self, recipe: MtRecipe, data_dir: Path | None, tokenizers: Sequence[Tokenizer] | None) -> Prepared:
        """Tokenises both sides of the pairs."""
        data = recipe.data
        folder = None if data.path is None else Path(data.path)
        files = mt_files(data.name, folder, data.source, data.target, data_dir)
        if tokenizers is None:
            tokenizers = prepare_tokenizers(
                files["train"],
                data.tokenizer,
                vocabulary=data.vocabulary,
                joint=data.joint,
                min_frequency=data.min_frequency,
                lowercase=data.lowercase,
                is_tokenized=data.is_tokenized,
            )
        train, valid, _ = (prepare_pairs(files[split], *tokenizers) for split in ("train", "valid", "test"))
        return Prepared(tuple(tokenizers), train, valid)

    def learner(
        self,
        recipe: MtRecipe,
        data: Prepared,
        *,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
    ) -> TranslationLearner:
        """A new model that reads batches of pairs."""
        source, target = data.tokenizers
        model = self.build(recipe, len(source), len(target)).to(device)
        return TranslationLearner(
            recipe, model, data.train, data.valid, (source, target), device=device, rank=rank, world_size=world_size
        )

    def work(self, recipe: MtRecipe, words: int, sentence: int) -> Work:
        """One half of the model reads the source and the other the target: a token goes through half the weights."""
        model, train = recipe.model, recipe.train
        weights = self.count_weights(recipe, words, words)
        used = (weights - words * model.embedding) // 2
        units = (model.layers + _decoder_layers(recipe)) * model.hidden
        return Work(weights, used, units, train.batch_tokens or 2 * sentence * (train.batch_size or 1))


def _decoder_layers(recipe: MtRecipe) -> int:
    return recipe.model.layers if recipe.model.decoder_layers is None else recipe.model.decoder_layers
