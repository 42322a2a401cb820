"""What the recipes of all tasks share: data, gates, optimisers, and how to train."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from g2lstm.compression.spec import Spec
from g2lstm.errors import G2Error
from g2lstm.nn.kind import DEFAULT_NOISE_RATE, DEFAULT_TAU, MIN_TAU, usual_eval_gate
from g2lstm.text.datasets import SPLITS, data_set, fetch
from g2lstm.text.own import own_texts
from g2lstm.text.tokenize import MIN_BPE_VOCABULARY

Count = Annotated[int, Field(ge=1, lt=2**31)]
Width = Annotated[int, Field(ge=1, le=2**20)]  # more than anyone can train, and the product of two fits into 64 bits
Layers = Annotated[int, Field(ge=1, le=256)]
Vocabulary = Annotated[int, Field(ge=3, lt=2**31)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Temperature = Annotated[float, Field(ge=MIN_TAU)]
DropProbability = Annotated[float, Field(ge=0, lt=1)]

USUAL_MINUTES = 10.0  # of training, if a recipe does not say when it ends

_NEEDS = {
    "lm": "this data set is for translation; language modelling needs plain text, such as ptb",
    "mt": "this data set is plain text; translation needs sentence pairs, such as embedded-mt",
}


def _can_be_a_folder(name: str) -> str:
    try:
        path = Path(name).expanduser()
    except RuntimeError:
        raise ValueError("there is no such user") from None
    if "\0" in name or len(str(path).encode()) > 4000 or any(len(part.encode()) > 255 for part in path.parts):
        raise ValueError("no file or folder can have this name")
    return name


FolderName = Annotated[str, AfterValidator(_can_be_a_folder)]


class Section(BaseModel):
    """A table of a recipe, immutable; unknown keys, text instead of numbers, and infinities are errors."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, validate_by_alias=True,
        use_attribute_docstrings=True,
    )  # fmt: skip


class DataSection(Section):
    """The data: a named set or your own, and how text becomes tokens."""

    task: ClassVar[str]
    usual_vocabulary: ClassVar[int]  # of sub-words
    name: str | None = None
    """The name of a data set, as `g2lstm data list` shows it. Give either this or `path`."""
    path: FolderName | None = Field(default=None, validate_default=True)
    """Your own text: for a language model a text file, or a folder with train.txt and perhaps valid.txt and test.txt;
    for translation a folder with a file for each split and language, such as train.de."""
    tokenizer: Literal["bpe", "word", "character"] = "bpe"
    """What tokens are: sub-words, found by byte-pair encoding, which can spell any text; words between white space; or
    single characters. Words and characters that are not in the vocabulary become `<unk>`."""
    vocabulary: Vocabulary | None = Field(default=None, validate_default=True)
    """The largest number of tokens. Sub-words need at least 258; by default all words or characters count."""
    min_frequency: Count = 2
    """Words and characters rarer than this in the training text become `<unk>`; pairs of sub-words rarer than this are
    not merged."""
    lowercase: bool = False
    """Convert the text to lower case first."""
    is_tokenized: bool = False
    """The text already has spaces between words and punctuation, so sub-words are split only at spaces."""

    @property
    def endings(self) -> tuple[str, ...]:
        """The endings of the files of each split."""
        return ("txt",)

    def files(self, data_dir: Path | None = None) -> Mapping[str, Any]:
        """The file, or pair of files, of each split; a named data set is fetched if necessary."""
        if self.path is not None:
            return own_texts(Path(self.path))
        folder = fetch(str(self.name), data_dir)
        return {split: folder / f"{split}.txt" for split in SPLITS}

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str | None) -> str | None:
        if name is not None and data_set(name).task != cls.task:
            raise ValueError(_NEEDS[cls.task])
        return name

    @field_validator("path")
    @classmethod
    def _is_either(cls, path: str | None, others: ValidationInfo) -> str | None:
        if "name" in others.data and (others.data["name"] is None) == (path is None):
            raise ValueError("give either data.name or data.path, but not both")
        return path

    @field_validator("vocabulary")
    @classmethod
    def _is_enough(cls, vocabulary: int | None, others: ValidationInfo) -> int | None:
        if others.data.get("tokenizer") != "bpe":
            return vocabulary
        if vocabulary is None:
            return cls.usual_vocabulary
        if vocabulary < MIN_BPE_VOCABULARY:
            raise ValueError(f'the tokenizer "bpe" needs a vocabulary of at least {MIN_BPE_VOCABULARY}, such as 8000')
        return vocabulary


class GateSection(Section):
    """The gates: arguments of `G2LSTM`."""

    method: Literal["gumbel", "binary", "sigmoid", "sharpened"] = "gumbel"
    """The paper's G², straight-through gates of 0 or 1, a plain LSTM, or a low temperature alone."""
    tau: Temperature | None = Field(default=None, validate_default=True)
    """The temperature of the gates; by default the method's own. Lower is closer to 0 or 1."""
    noise_rate: Share = Field(default=None, validate_default=True)
    """The probability that an element of a gate gets noise in training; by default 0.2, but 0 for "binary"."""
    gates: Literal["if", "ifo"] = "if"
    """Which gates are pushed to 0 or 1: input and forget, or output too."""
    eval_gate: Literal["soft", "tempered", "hard"] = Field(default=None, validate_default=True)
    """How gates are computed in evaluation; by default the method's own way."""
    weight_dropout: DropProbability = 0.2
    """The share of recurrent weights that DropConnect leaves out of each update."""

    @field_validator("tau")
    @classmethod
    def _resolve(cls, tau: float | None, others: ValidationInfo) -> float | None:
        return DEFAULT_TAU.get(others.data.get("method", "")) if tau is None else tau

    @field_validator("noise_rate", mode="before")
    @classmethod
    def _resolve_noise(cls, rate: Any, others: ValidationInfo) -> Any:
        return DEFAULT_NOISE_RATE.get(others.data.get("method", ""), 0.0) if rate is None else rate

    @field_validator("eval_gate", mode="before")
    @classmethod
    def _resolve_gate(cls, gate: Any, others: ValidationInfo) -> Any:
        return usual_eval_gate(others.data.get("method", "")) if gate is None else gate


class AdamW(Section):
    """AdamW with a one-cycle schedule: the learning rate rises, then falls, over the whole training."""

    name: Literal["adamw"] = "adamw"
    lr: Positive = 3e-3
    """The highest learning rate."""
    weight_decay: NonNegative = 0.01
    """How much weights shrink per update, as a share of the learning rate; not part of the gradient."""
    beta1: DropProbability = 0.9
    """The decay of the mean of gradients."""
    beta2: DropProbability = 0.99
    """The decay of the mean of their squares."""
    epsilon: Positive = 1e-8
    """A small number, added to the denominator."""
    warmup: DropProbability = 0.1
    """The share of the training during which the learning rate rises."""
    final_lr: Share = 0.0
    """The last learning rate, as a share of `lr`."""


class NtAsgd(Section):
    """SGD that starts to average its weights when validation stops improving, with the paper's settings."""

    name: Literal["ntasgd"] = "ntasgd"
    lr: Positive = 30.0
    """The learning rate, which stays the same."""
    weight_decay: NonNegative = 1.2e-6
    """The share of each weight that is added to its gradient."""
    window: Count = 5
    """How many validations without improvement set off the non-monotone trigger."""
    start: Literal["sgd", "asgd"] = "sgd"
    """Average once triggered; or average from the start and stop when triggered."""


class AdaDelta(Section):
    """AdaDelta, which needs no learning rate; the paper uses it for translation."""

    name: Literal["adadelta"] = "adadelta"
    lr: Positive = 1.0
    """A factor on its updates."""
    rho: DropProbability = 0.95
    """The decay of the means of squares."""
    epsilon: Positive = 1e-6
    """A small number, added under the roots."""
    weight_decay: NonNegative = 0.0
    """The share of each weight that is added to its gradient."""


class GateCourse(Section):
    """Gates that change while training, until they are those of the section `model`."""

    start: DropProbability = 0.0
    """The share of the training after which `model.method` begins; until then the model is a plain LSTM."""
    noise_rate: Share | None = None
    """The noise rate at that point; from there it changes linearly to `model.noise_rate` at the end."""
    tau: Temperature | None = None
    """The temperature at that point; from there it changes linearly to `model.tau`."""
    soft_rate: Share = 1.0
    """The share of the elements of "binary" gates that are still soft at that point; it falls linearly to 0 at the end,
    so the gates become binary one by one."""


class Teacher(Section):
    """A trained model that the new one imitates: distillation."""

    run: FolderName
    """Its run directory; it must have the same task and the same tokenizers."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """How much of the loss compares the predictions with the teacher's rather than with the text."""


class TrainSection(Section):
    """How to train, whatever the task."""

    optimizer: AdamW | NtAsgd | AdaDelta = Field(default_factory=AdamW, discriminator="name")
    """How weights are updated: `name` chooses, and each optimiser has settings of its own."""
    epochs: Count | None = None
    """The maximum number of passes over the training data."""
    minutes: Positive | None = Field(default=None, validate_default=True)
    """The time to train for, validations included; the schedule is fitted to it. If `epochs` is given too, whichever
    ends first counts; if neither is given, training takes 10 minutes."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    """The seed of everything random."""
    clip: NonNegative = 1.0
    """The maximum norm of the gradients; 0 for no clipping."""
    patience: Count | None = None
    """Stop after this many validations without improvement; never if not given."""
    average: Annotated[int, Field(ge=2, le=100)] | None = None
    """At the end, also try the mean of the weights of this many last validations, one per epoch, and keep it if it is
    better. Not for the optimiser "ntasgd", which averages by itself."""
    checkpoint_minutes: Positive = 10.0
    """How often to save the state between validations, in minutes."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """The precision of matrix products. bf16 saves time on GPUs and on processors with AVX-512 instructions for
    bfloat16, but not on others; fp16 needs a GPU, and scales the loss."""
    finetune_from: FolderName | None = None
    """A run directory whose weights training starts from."""
    teacher: Teacher | None = None
    """A trained run to learn from; none unless given."""
    compression: str | None = None
    """A compression spec or preset: train with the weights as it stores them, and write a compressed run."""
    gates: GateCourse | None = None
    """A schedule for the gates. "binary" has the defaults of this section; other methods have none unless given."""

    @field_validator("optimizer", mode="before")
    @classmethod
    def _of_the_default_kind(cls, optimizer: Any) -> Any:
        if isinstance(optimizer, dict) and "name" not in optimizer:
            return {"name": cls.model_fields["optimizer"].get_default(call_default_factory=True).name, **optimizer}
        return optimizer

    @field_validator("average")
    @classmethod
    def _does_not_average_twice(cls, average: int | None, others: ValidationInfo) -> int | None:
        if average is not None and isinstance(others.data.get("optimizer"), NtAsgd):
            raise ValueError('the optimiser "ntasgd" averages by itself; remove train.average, or choose "adamw"')
        return average

    @field_validator("compression")
    @classmethod
    def _is_a_spec(cls, compression: str | None) -> str | None:
        try:
            return None if compression is None else str(Spec.parse(compression))  # a preset may change one day
        except G2Error as error:
            raise ValueError(str(error)) from None

    @field_validator("minutes")
    @classmethod
    def _has_an_end(cls, minutes: float | None, others: ValidationInfo) -> float | None:
        # If `epochs` is wrong, it is absent here and has its own error.
        return USUAL_MINUTES if minutes is None and others.data.get("epochs", 0) is None else minutes


class ModelSection(GateSection):
    """The part of a recipe that describes a model, whatever the task."""

    embedding: Width
    hidden: Width
    layers: Layers
    dropout: Section


class Recipe(Section):
    """Everything about one training run; each task has its own kind."""

    task: str
    """What to train: a language model ("lm") or a translation model ("mt")."""
    data: DataSection
    model: ModelSection
    train: TrainSection

    @model_validator(mode="before")
    @classmethod
    def _harden(cls, tables: Any) -> Any:
        """Binary gates need a course."""
        match tables:
            case {"model": {"method": "binary"}, "train": dict(train)}:
                return {**tables, "train": {"gates": {}, **train}}
        return tables

    @field_validator("train", check_fields=False)
    @classmethod
    def _has_gates_to_change(cls, train: TrainSection, others: ValidationInfo) -> TrainSection:
        model = others.data.get("model")
        if train.gates is not None and model is not None and model.method == "sigmoid":
            raise ValueError('train.gates changes nothing if model.method is "sigmoid"; remove it, or choose "binary"')
        return train
