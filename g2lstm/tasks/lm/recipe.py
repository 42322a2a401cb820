"""The recipe of a language model; its defaults are the paper's AWD-LSTM for Penn Treebank."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from g2lstm.recipes.recipe import ModelSection, Recipe
from g2lstm.recipes.sections import (
    Count,
    DataSection,
    DropProbability,
    Layers,
    NonNegative,
    Positive,
    Section,
    Share,
    TrainSection,
    Width,
)
from g2lstm.text.registry import lm_files


class LmData(DataSection):
    """The text; a folder of one's own holds train.txt, valid.txt and test.txt."""

    task: ClassVar[str] = "lm"

    def files(self, data_dir: Path | None) -> dict[str, Path]:
        """The text file of each split."""
        return lm_files(self.name, self._folder, data_dir)


class LmDropout(Section):
    """Dropout, each with one mask for a whole window ("locked").

    Attributes:
        words: probability that a word of the vocabulary has no embedding for a window.
        input: on the embeddings.
        between: between two layers.
        output: on the last layer's output.
    """

    words: DropProbability = 0.1
    input: DropProbability = 0.4
    between: DropProbability = 0.25
    output: DropProbability = 0.4


class LmModel(ModelSection):
    """The model.

    Attributes:
        embedding: width of the embedding.
        hidden: width of each layer; with a tied softmax the last one is as wide as the embedding.
        layers: how many.
        tied: whether the softmax uses the embedding's weights.
        residual: add the input of a layer to its output, where both are equally wide; deep stacks need it.
        dropout: see `LmDropout`.
    """

    embedding: Width = 400
    hidden: Width = 1150
    layers: Layers = 3
    tied: bool = True
    residual: bool = False
    dropout: LmDropout = Field(default_factory=LmDropout)


class LmTrain(TrainSection):
    """How to train a language model.

    Attributes:
        batch_size: columns of text, over all processes together.
        bptt: length of a window, in tokens; the learning rate of each is scaled by its length over this.
        bptt_deviation: standard deviation of that length.
        bptt_half_probability: how often the mean length is half as long.
        bptt_minimum: the shortest length.
        activation_regularisation: weight of the squared outputs of the last layer, after dropout (alpha).
        temporal_regularisation: weight of the squared change of its outputs from step to step, before dropout (beta).
        frequency_bias: begin with each word's frequency as its probability, by the softmax's bias, not with equal ones.
            AdamW moves a bias by about the rate at each step: at 3e-3 it takes some thousand to learn just that.
    """

    batch_size: Count = 20
    bptt: Count = 70
    bptt_deviation: NonNegative = 5.0
    bptt_half_probability: Share = 0.05
    bptt_minimum: Count = 5
    activation_regularisation: NonNegative = 2.0
    temporal_regularisation: NonNegative = 1.0
    frequency_bias: bool = False


class CacheSection(Section):
    """The continuous cache pointer, where evaluation is asked to use it.

    Attributes:
        window: how many past states it holds.
        theta: how sharply it prefers similar states.
        lambda_: its share in the mixture; `lambda` in a recipe.
    """

    window: Count = 3785
    theta: Positive = 0.6626
    lambda_: DropProbability = Field(default=0.1279, alias="lambda")


class LmEvaluate(Section):
    """How to evaluate.

    Attributes:
        batch_size: for validation.
        bptt: tokens that are evaluated at once; it does not change the result.
        cache: see `CacheSection`.
    """

    batch_size: Count = 10
    bptt: Count = 70
    cache: CacheSection = Field(default_factory=CacheSection)


class LmRecipe(Recipe):
    """Everything about the training of a language model."""

    task: Literal["lm"]
    data: LmData
    model: LmModel = Field(default_factory=LmModel)
    train: LmTrain
    evaluate: LmEvaluate = Field(default_factory=LmEvaluate)
