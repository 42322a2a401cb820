"""The recipe of a translation model."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from g2lstm.recipes.sections import (
    Count,
    DataSection,
    DropProbability,
    Layers,
    ModelSection,
    NonNegative,
    Recipe,
    Section,
    TrainSection,
    Vocabulary,
    Width,
)
from g2lstm.text.corpus import PairFiles
from g2lstm.text.datasets import SPLITS, data_set, fetch
from g2lstm.text.own import own_pairs

_USUAL_BATCH = 64  # pairs

Ending = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=32)]


class MtData(DataSection):
    """The sentence pairs; the user's own folder holds train.de and train.en, and perhaps valid.de and so on."""

    task: ClassVar[str] = "mt"
    usual_vocabulary: ClassVar[int] = 25_000
    source: Ending
    """The ending of the files to translate from."""
    target: Ending
    """The ending of the files to translate to."""
    tokenizer: Literal["bpe", "word"] = "bpe"
    """What tokens are: sub-words, found by byte-pair encoding, or words between white space."""
    vocabulary: Vocabulary | None = Field(default=25_000, validate_default=True)
    """The largest number of tokens of each side; sub-words need at least 258."""
    joint: bool = False
    """Share one vocabulary of this size between both sides."""
    is_tokenized: bool = True
    """The text already has spaces between words and punctuation, so sub-words are split only at spaces. If a recipe
    does not say, a look at your own text decides; the named data sets are tokenised."""
    max_length: Count = 64
    """Training leaves out pairs with more tokens than this on either side."""

    @property
    def endings(self) -> tuple[str, ...]:
        """The endings of the files of each split."""
        return self.source, self.target

    def files(self, data_dir: Path | None = None) -> dict[str, PairFiles]:
        """The source and target file of each split."""
        if self.path is not None:
            return own_pairs(Path(self.path), self.endings)
        folder = fetch(str(self.name), data_dir)
        return {split: PairFiles(*(folder / f"{split}.{ending}" for ending in self.endings)) for split in SPLITS}

    @field_validator("target")
    @classmethod
    def _is_another(cls, target: str, others: ValidationInfo) -> str:
        source, name = others.data.get("source"), others.data.get("name")
        if name and source and target != source and {source, target} != set(languages := data_set(name).languages):
            raise ValueError(f"the data set {name!r} has {' and '.join(languages)}, not {source} and {target}")
        if target == source:
            raise ValueError("the target must be a different language from the source")
        return target


class MtDropout(Section):
    """Dropout probabilities; each mask stays the same for all steps of a sentence ("locked")."""

    input: DropProbability = 0.2
    """Dropout of the embeddings of both sides."""
    between: DropProbability = 0.2
    """Dropout of the output of each layer except the decoder's last."""
    output: DropProbability = 0.2
    """Dropout of what the softmax sees."""


class MtModel(ModelSection):
    """The model."""

    embedding: Width = 256
    """The width of the vectors that stand for tokens."""
    hidden: Width = 256
    """The width of each layer."""
    layers: Layers = 2
    """The number of layers of the encoder, and of the decoder."""
    decoder_layers: Layers | None = None
    """The number of layers of the decoder, if it differs."""
    tied: Literal["none", "output", "all"] = "output"
    """Which share one matrix: the softmax and the target embedding, or all three."""
    residual: bool = False
    """Whether to add a layer's input to its output; deep stacks need it."""
    dropout: MtDropout = Field(default_factory=MtDropout)
    weight_dropout: DropProbability = 0.0
    """The share of recurrent weights that DropConnect leaves out of each update; the paper uses none here."""


class MtTrain(TrainSection):
    """How to train a translation model."""

    batch_tokens: Count | None = None
    """The largest number of tokens per batch, with padding."""
    batch_size: Count | None = Field(default=None, validate_default=True)
    """Sentence pairs per batch, over all processes together: 64, unless you give `batch_tokens` instead."""
    clip: NonNegative = 2.0
    """The maximum norm of the gradients; 0 for no clipping."""
    label_smoothing: DropProbability = 0.0
    """The share of the target's probability that is spread over the vocabulary."""
    best_by: Literal["bleu", "chrf", "loss"] = "bleu"
    """Which weights to keep: highest BLEU, highest chrF or lowest loss. If a recipe does not say, chrF decides where
    your own target text has no spaces and sacreBLEU has no tokenizer for its script. The loss decides while BLEU or
    chrF is below 1."""

    @field_validator("batch_size")
    @classmethod
    def _is_either(cls, batch_size: int | None, others: ValidationInfo) -> int | None:
        if others.data.get("batch_tokens") is None:
            return _USUAL_BATCH if batch_size is None else batch_size
        if batch_size is not None:
            raise ValueError("give either train.batch_size or train.batch_tokens, but not both")
        return None


class BleuSection(Section):
    """How sacreBLEU compares; what is not given follows from `data.is_tokenized` and `data.lowercase`."""

    tokenize: Literal["none", "13a", "intl", "zh", "char", "ja-mecab", "ko-mecab", "flores200"] = "none"
    """How both sides are tokenised; "none" is for tokenised text, as `multi-bleu.perl` reads it. Languages without
    spaces need one of the last five; if a recipe does not say which, the script of your own text decides. Those for
    Japanese and Korean need a package that sacreBLEU names."""
    lowercase: bool = False
    """Whether to ignore case."""


class MtEvaluate(Section):
    """How to translate and how to score."""

    beam: Annotated[int, Field(ge=1, le=1000)] = 5
    """The number of hypotheses to follow; 1 is greedy search."""
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Scores are divided by the length raised to this power."""
    batch_size: Count = 64
    """Sentences translated at a time; does not change the result."""
    bleu: BleuSection = Field(default_factory=BleuSection)


class MtRecipe(Recipe):
    """Everything about training a translation model."""

    task: Literal["mt"]
    """This is a translation model."""
    data: MtData
    model: MtModel = Field(default_factory=MtModel)
    train: MtTrain
    evaluate: MtEvaluate = Field(default_factory=MtEvaluate, validate_default=True)

    @field_validator("model")
    @classmethod
    def _fits_the_data(cls, model: MtModel, others: ValidationInfo) -> MtModel:
        if model.tied == "all" and "data" in others.data and not others.data["data"].joint:
            raise ValueError('model.tied = "all" needs one vocabulary for both sides: set data.joint = true')
        return model

    @field_validator("evaluate")
    @classmethod
    def _compares_such_text(cls, evaluate: MtEvaluate, others: ValidationInfo) -> MtEvaluate:
        """Fills in the defaults of BLEU that depend on the data."""
        if "data" not in others.data:
            return evaluate
        data, bleu = others.data["data"], evaluate.bleu
        usual = {"tokenize": "none" if data.is_tokenized else "13a", "lowercase": data.lowercase}
        missing = {name: value for name, value in usual.items() if name not in bleu.model_fields_set}
        return evaluate.model_copy(update={"bleu": bleu.model_copy(update=missing)})
