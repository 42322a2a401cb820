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
    """Dropout probabilities; each mask stays the same for a whole window ("locked")."""

    words: DropProbability = 0.1  # whole words of the vocabulary, which have no embedding for a window
    input: DropProbability = 0.4  # on the embeddings
    between: DropProbability = 0.25  # between two layers
    output: DropProbability = 0.4  # on the last layer's output


class LmModel(ModelSection):
    """The model."""

    embedding: Width = 400  # the width of the word vectors
    hidden: Width = 1150  # the width of each layer; with a tied softmax the last is as wide as the embedding
    layers: Layers = 3  # the number of layers
    tied: bool = True  # use the embedding's weights in the softmax
    residual: bool = False  # add a layer's input to its output where both have the same width; deep stacks need it
    dropout: LmDropout = Field(default_factory=LmDropout)


class LmTrain(TrainSection):
    """How to train a language model."""

    batch_size: Count = 20  # columns of text, over all processes together
    bptt: Count = 70  # the mean length of a window in tokens; its learning rate is proportional to its length
    bptt_deviation: NonNegative = 5.0  # the standard deviation of the length
    bptt_half_probability: Share = 0.05  # how often the mean length is halved
    bptt_minimum: Count = 5  # the shortest length
    activation_regularisation: NonNegative = 2.0  # alpha, the weight of the last layer's squared outputs
    temporal_regularisation: NonNegative = 1.0  # beta, the weight of their squared change from step to step
    # Start with each word as probable as it is frequent. AdamW moves the bias of the softmax by about its learning rate
    # per update, so at 3e-3 it takes about a thousand updates to learn this.
    frequency_bias: bool = False


class CacheSection(Section):
    """The continuous cache pointer, for evaluations that use it."""

    window: Count = 3785  # the number of past steps it sees
    theta: Positive = 0.6626  # how sharply it prefers similar states
    lambda_: DropProbability = Field(default=0.1279, alias="lambda")  # its share of the probability


class LmEvaluate(Section):
    """How to evaluate."""

    batch_size: Count = 10  # columns of text read side by side in validation
    bptt: Count = 70  # tokens per column read at a time; does not change the result
    cache: CacheSection = Field(default_factory=CacheSection)


class LmRecipe(Recipe):
    """Everything about training a language model."""

    task: Literal["lm"]
    data: LmData
    model: LmModel = Field(default_factory=LmModel)
    train: LmTrain
    evaluate: LmEvaluate = Field(default_factory=LmEvaluate)
