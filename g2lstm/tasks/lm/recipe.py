"""The recipe of a language model; its defaults are the paper's AWD-LSTM for Penn Treebank."""

from typing import ClassVar, Literal

from pydantic import Field

from g2lstm.recipes.sections import (
    Count,
    DataSection,
    DropProbability,
    Layers,
    ModelSection,
    NonNegative,
    Positive,
    Recipe,
    Section,
    Share,
    TrainSection,
    Width,
)


class LmData(DataSection):
    """The text; the user's own folder holds train.txt, valid.txt and test.txt."""

    task: ClassVar[str] = "lm"


class LmDropout(Section):
    """Dropout probabilities; each mask stays the same for a whole window ("locked").

    Attributes:
        words: whole words of the vocabulary, which have no embedding for a window.
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
        embedding: the width of the word vectors.
        hidden: the width of each layer; with a tied softmax the last is as wide as the embedding.
        layers: the number of layers.
        tied: use the embedding's weights in the softmax.
        residual: add a layer's input to its output where both have the same width; deep stacks need it.
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
        bptt: the mean length of a window in tokens; its learning rate is proportional to its length.
        bptt_deviation: the standard deviation of the length.
        bptt_half_probability: how often the mean length is halved.
        bptt_minimum: the shortest length.
        activation_regularisation: alpha, the weight of the last layer's squared outputs, after dropout.
        temporal_regularisation: beta, the weight of their squared change from step to step, before dropout.
        frequency_bias: initialise the softmax bias so that each word starts as probable as it is frequent. AdamW moves
            a bias by about its learning rate per update, so at 3e-3 it takes about a thousand updates to learn this.
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
    """The continuous cache pointer, for evaluations that use it.

    Attributes:
        window: the number of past steps it sees.
        theta: how sharply it prefers similar states.
        lambda_: its share of the probability; `lambda` in a recipe.
    """

    window: Count = 3785
    theta: Positive = 0.6626
    lambda_: DropProbability = Field(default=0.1279, alias="lambda")


class LmEvaluate(Section):
    """How to evaluate.

    Attributes:
        batch_size: columns of text read side by side in validation.
        bptt: tokens per column read at a time; does not change the result.
        cache: see `CacheSection`.
    """

    batch_size: Count = 10
    bptt: Count = 70
    cache: CacheSection = Field(default_factory=CacheSection)


class LmRecipe(Recipe):
    """Everything about training a language model."""

    task: Literal["lm"]
    data: LmData
    model: LmModel = Field(default_factory=LmModel)
    train: LmTrain
    evaluate: LmEvaluate = Field(default_factory=LmEvaluate)
