"""The recipe of a language model; its defaults suit a short training on one's own text."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

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
    """The text."""

    task: ClassVar[str] = "lm"
    usual_vocabulary: ClassVar[int] = 2000


class LmDropout(Section):
    """Dropout probabilities; each mask stays the same for a whole window ("locked")."""

    words: DropProbability = 0.0
    """For each token of the vocabulary, the probability that it has no embedding for a window."""
    input: DropProbability = 0.1
    """Dropout of the embeddings."""
    between: DropProbability = 0.1
    """Dropout between two layers."""
    output: DropProbability = 0.2
    """Dropout of the last layer's output."""


class LmModel(ModelSection):
    """The model."""

    embedding: Width = 256
    """The width of the vectors that stand for tokens."""
    hidden: Width = 512
    """The width of each layer; with a tied softmax, the last layer is as wide as the embedding instead, so a single
    layer does not use this key."""
    layers: Layers = 2
    """The number of layers."""
    tied: bool = True
    """Whether the softmax uses the embedding's weights."""
    residual: bool = False
    """Whether to add a layer's input to its output where both have the same width; deep stacks need it."""
    dropout: LmDropout = Field(default_factory=LmDropout)
    """Dropout probabilities."""

    @model_validator(mode="before")
    @classmethod
    def _is_one_layer(cls, keys: Any) -> Any:
        match keys:
            case {"layers": 1, "tied": False} | {"hidden": _}:
                return keys
            case {"layers": 1}:
                return {**keys, "hidden": keys.get("embedding", cls.model_fields["embedding"].default)}
        return keys

    @model_validator(mode="after")
    def _ignores_nothing(self, info: ValidationInfo) -> Self:
        if self.layers == 1 and self.tied and self.hidden != self.embedding and not (info.context or {}).get("is_run"):
            raise ValueError(
                f"model.hidden = {self.hidden} would be ignored: with a tied softmax, a single layer is as wide as "
                f"model.embedding, {self.embedding}; remove model.hidden, add a layer, or set model.tied = false"
            )
        return self


class LmTrain(TrainSection):
    """How to train a language model."""

    batch_size: Count = 16
    """The number of columns of text that are read side by side, over all processes together."""
    bptt: Count = 64
    """The mean length of a window in tokens; its learning rate is proportional to its length."""
    bptt_deviation: NonNegative = 5.0
    """The standard deviation of the length of a window."""
    bptt_half_probability: Share = 0.05
    """How often the mean length is halved."""
    bptt_minimum: Count = 5
    """The shortest window."""
    activation_regularisation: NonNegative = 0.0
    """The AWD-LSTM's alpha, the weight of the last layer's squared outputs."""
    temporal_regularisation: NonNegative = 0.0
    """The AWD-LSTM's beta, the weight of their squared change from step to step."""
    frequency_bias: bool = True
    """Start with each token as probable as it is frequent. AdamW moves the bias of the softmax by about its learning
    rate per update, so at 3e-3 it would take about a thousand updates to learn this."""


class CacheSection(Section):
    """The continuous cache pointer, for evaluations that use it."""

    window: Count = 3785
    """The number of past steps that the cache sees."""
    theta: Positive = 0.6626
    """How sharply the cache prefers similar states."""
    lambda_: DropProbability = Field(default=0.1279, alias="lambda")
    """The cache's share of the probability."""


class LmEvaluate(Section):
    """How to evaluate."""

    batch_size: Count = 10
    """Columns of text read side by side in validation."""
    bptt: Count = 70
    """Tokens per column read at a time; does not change the result."""
    cache: CacheSection = Field(default_factory=CacheSection)


class LmRecipe(Recipe):
    """Everything about training a language model."""

    task: Literal["lm"]
    """This is a language model."""
    data: LmData
    model: LmModel = Field(default_factory=LmModel)
    train: LmTrain
    evaluate: LmEvaluate = Field(default_factory=LmEvaluate)
