"""What a task is: one kind of model, from its recipe to a model that learns.

`Trained` is what comes out of it. Nothing outside this package asks which task it is dealing with: it calls a method of
one of the two.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import psutil
import torch
from torch import nn

from g2lstm.errors import G2Error
from g2lstm.recipes.recipe import Recipe
from g2lstm.recipes.sections import GateSection
from g2lstm.tasks.learner import Learner
from g2lstm.tasks.trained import Trained
from g2lstm.text.tokenize import Tokenizer


class Work(NamedTuple):
    """What training costs, as far as it follows from a recipe."""

    weights: int
    used: int  # weights that each token is multiplied by
    units: int  # of all layers
    batch_tokens: int


RecipeT = TypeVar("RecipeT", bound=Recipe)
ModelT = TypeVar("ModelT", bound=nn.Module)
TrainedT = TypeVar("TrainedT", bound=Trained, covariant=True)


class Prepared(NamedTuple):
    """The data of a training run; what the corpora are depends on the task."""

    tokenizers: tuple[Tokenizer, ...]
    train: Any
    valid: Any


class Task(ABC, Generic[RecipeT, ModelT, TrainedT]):
    """One kind of model."""

    recipe: type[RecipeT]
    trained: type[TrainedT]

    @abstractmethod
    def module(self, recipe: RecipeT, *vocabularies: int) -> ModelT:
        """The model with fresh weights from torch's generator, however large."""

    def build(self, recipe: RecipeT, *vocabularies: int) -> ModelT:
        """The model with fresh weights from torch's generator.

        Args:
            recipe: the sizes and options.
            vocabularies: the size of each tokenizer.

        Raises:
            G2Error: the weights would not fit into memory; they are counted before they exist.
        """
        weights = self.count_weights(recipe, *vocabularies)
        memory = psutil.virtual_memory().total
        if 4 * weights > memory:
            raise G2Error(
                f"the model of this recipe has {weights:,} weights, which take {4 * weights / 1e9:,.0f} GB, and this "
                f"machine has {memory / 1e9:,.0f} GB of memory; choose smaller sizes: model.hidden, model.embedding, "
                "model.layers or data.vocabulary"
            )
        return self.module(recipe, *vocabularies)

    def count_weights(self, recipe: RecipeT, *vocabularies: int) -> int:
        """The number of weights; they are not made for this."""
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in self.module(recipe, *vocabularies).parameters())

    @abstractmethod
    def prepare(self, recipe: RecipeT, data_dir: Path | None, tokenizers: Sequence[Tokenizer] | None) -> Prepared:
        """Gets the data of a recipe ready for training, the test split too: its faults should show before hours pass.

        Args:
            recipe: which data, and how to tokenise it.
            data_dir: a folder that holds the named data sets.
            tokenizers: use these instead of training new ones.
        """

    @abstractmethod
    def learner(
        self, recipe: RecipeT, data: Prepared, *, device: torch.device | str = "cpu", rank: int = 0, world_size: int = 1
    ) -> Learner:
        """A new model with its data, ready for the training loop.

        Args:
            recipe: how to train.
            data: from `prepare`.
            device: where to compute.
            rank: which of the processes this is.
            world_size: how many processes there are.
        """

    @abstractmethod
    def work(self, recipe: RecipeT, words: int, sentence: int) -> Work:
        """What training costs.

        Args:
            recipe: the sizes.
            words: the size of the vocabulary.
            sentence: the usual number of tokens in a sentence.
        """


def gate_options(section: GateSection) -> dict[str, Any]:
    """The options of `G2LSTM` that a recipe has."""
    return {name: getattr(section, name) for name in GateSection.model_fields}
