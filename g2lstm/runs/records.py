"""What the JSON files of a run directory say: one schema for each, within limits that every reader can rely on."""

import itertools
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from g2lstm.errors import G2Error
from g2lstm.files import read_bounded
from g2lstm.nn import kernel
from g2lstm.version import __version__


def machine() -> dict[str, str | int]:
    """The facts about this process that can change a result in its last bits, by name."""
    return {
        "g2lstm": __version__,
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "processor": f"{_processor()}, {torch.backends.cpu.get_cpu_capability()}",
        "kernel": kernel.find().description,
    }


def changes(before: Mapping[str, object]) -> list[str]:
    """How this process differs from facts that were kept, in words: "threads 2 instead of 1"."""
    known = {name: (now, before[name]) for name, now in machine().items() if name in before}
    return [f"{name} {now} instead of {then}" for name, (now, then) in known.items() if now != then]


def _processor() -> str:
    with suppress(OSError), Path("/proc/cpuinfo").open() as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        if names:
            return names[0]
    return platform.processor() or platform.machine()


MAX_BYTES = 2**28  # of a JSON file in a run directory
GATE_BINS = 100  # of the histograms in gates.json
Count = Annotated[int, Field(ge=0, lt=2**63)]
Real = Annotated[float, Field(ge=-1e100, le=1e100, allow_inf_nan=False)]  # beyond this, pictures overflow
Words = Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00-\x1f]*$")]  # that fit into a picture
RecordT = TypeVar("RecordT", bound="Record")


def _is_not_huge(number: int | float) -> int | float:
    if isinstance(number, int) and abs(number) >= 2**63:
        raise ValueError("the number is too large")
    return number


Number = Annotated[int | Real, AfterValidator(_is_not_huge)]


class Record(BaseModel):
    """A JSON object; unknown entries are kept, because later versions may write more of them."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _more_is_json(self) -> "Record":
        """What a later version has added is kept and written again, so it must be JSON: Python also reads NaN."""
        _check_numbers(self.model_extra)
        return self

    @classmethod
    def read(cls: type[RecordT], path: Path, remedy: str) -> RecordT:
        """Reads a file; `remedy` is what a user can do if it is damaged."""
        content = read_bounded(path, MAX_BYTES)
        try:
            # From the text rather than from parsed values, which may hold half a surrogate pair that cannot be written.
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            why = ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
            raise G2Error(f"{path} is damaged: {why}; {remedy}") from None


def _check_numbers(value: Any) -> None:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _check_numbers(each)
    elif isinstance(value, float) and not abs(value) < float("inf"):
        raise ValueError(f"{value} is not a number")


class Score(Record):
    """A score with its signature, in result.json; which of the numbers it has depends on the task."""

    perplexity: Real | None = None
    bits_per_character: Real | None = None  # of a whole split; comparable between tokenizers, unlike perplexity
    unknown_share: Real | None = None  # of the predicted tokens; a model that knows fewer words predicts less
    bleu: Real | None = None
    chrf: Real | None = None
    split: str
    eval_gate: str
    tokens: Count | None = None
    sentences: Count | None = None
    cache: str | None = None
    dynamic: str | None = None
    beam: Count | None = None
    length_penalty: Real | None = None
    trained_on: str | None = None
    compressed: str | None = None
    recipe: str | None = None  # its hash; earlier versions wrote this and the next only in the signature
    data: str | None = None  # its name, and the beginnings of the checksums of its files
    weights: str | None = None  # identifies the file of weights; this and the next two are for `verify`
    tokenizers: str | None = None  # their fingerprints
    machine: dict[str, str | int] | None = None  # what computed it
    bleu_signature: str | None = None
    chrf_signature: str | None = None
    signature: str

    @model_validator(mode="after")
    def _has_a_number(self) -> "Score":
        if self.perplexity is None and self.bleu is None:
            raise ValueError("a score is a perplexity or a BLEU")
        return self


class Result(Record):
    """result.json."""

    scores: list[Score]


class Sizes(Record):
    """Bytes before and after compression."""

    before: Count
    after: Count
    ratio: Real | None = None
    bits_per_weight: Real | None = None


class ScoreChange(Record):
    """A score before and after compression."""

    metric: str
    split: str
    before: Real
    after: Real


class SpeedChange(Record):
    """A speed before and after compression."""

    unit: str
    how: str
    before: Annotated[Real, Field(gt=0)]
    after: Real


class CompressionReport(Record):
    """compression.json of a compressed run; None for what was not measured."""

    spec: str
    groups: dict[str, Sizes]
    rest: Sizes
    file: Sizes
    bits_per_weight: Real
    score: ScoreChange | None = None
    speed: SpeedChange | None = None


class MetricsLine(Record):
    """A line of metrics.jsonl: what kind it is, and numbers by name."""

    __pydantic_extra__: dict[str, Number]
    kind: str
    step: Number
    tokens: Number
    seconds: Number


class _Known(Record):
    model_config = ConfigDict(extra="ignore")


class GateNumbers(_Known):
    """What gates.json says about one gate of one layer; see `GateHistogram`."""

    mean: Real
    below: Real = Field(alias="below_0.1")
    above: Real = Field(alias="above_0.9")
    entropy_bits: Real
    distance_to_nearer_end: Real
    half_life_steps: dict[str, Real] | None = None
    values: Count
    counts: Annotated[list[Count], Field(min_length=GATE_BINS, max_length=GATE_BINS)]


class LayerNumbers(_Known):
    """What gates.json says about one direction of one layer."""

    name: Words
    direction: Words
    title: Words
    gates: Annotated[dict[Literal["input", "forget", "output"], GateNumbers], Field(min_length=3)]


class CountedData(_Known):
    """What the gates were counted on."""

    split: Words | None = None
    windows: Count | None = None
    pairs: Count | None = None
    tokens: dict[Words, Count]
    sha256: Words | None = None


class Example(_Known):
    """A stretch of text around a switch."""

    tokens: list[str]
    open: list[bool]  # whether the gate is, at each token

    @model_validator(mode="after")
    def _is_aligned(self) -> "Example":
        if len(self.tokens) != len(self.open):
            raise ValueError("an example needs a truth value for each token")
        return self

    def marked(self, begin: str, end: str, written: Callable[[str], str] = str) -> str:
        """The text, with marks around what the gate is open at."""
        runs = itertools.groupby(zip(self.open, self.tokens, strict=True), key=lambda pair: pair[0])
        each = ((is_open, written(" ".join(token for _, token in pairs))) for is_open, pairs in runs)
        return " ".join(f"{begin}{text}{end}" if is_open else text for is_open, text in each)


class Explained(_Known):
    """A unit whose gate is open, 0.5 or more, where a feature is true, or where it is not.

    All but `phi_chosen` is from the half of the text that the feature was not chosen on.

    Attributes:
        phi: the correlation of open with true, from -1 to 1.
        open_with, open_without: how often the gate is open where the feature is true, and where it is not.
        phi_chosen: the same correlation on the half on which the feature was chosen.
    """

    name: Words
    direction: Words
    title: Words
    gate: Words
    unit: Count
    feature: Words
    phi: Real
    open_with: Real
    open_without: Real
    phi_chosen: Real
    examples: list[Example] = Field(default_factory=list)


class GatesFile(_Known):
    """The counts in a gates.json; its other entries are for people and scripts."""

    mode: Words
    data: CountedData
    layers: Annotated[list[LayerNumbers], Field(min_length=1, max_length=1024)]
    explained: list[Explained] = Field(default_factory=list)  # the units that switch with something, best first
