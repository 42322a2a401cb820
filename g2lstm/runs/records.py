"""What the JSON files of a run directory say, as checked records."""

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from g2lstm.errors import G2Error
from g2lstm.files import read_bounded

MAX_BYTES = 2**28  # of a JSON file in a run directory
Count = Annotated[int, Field(ge=0, lt=2**63)]
RecordT = TypeVar("RecordT", bound="Record")


def _is_not_huge(number: int | float) -> int | float:
    if isinstance(number, int) and abs(number) >= 2**63:
        raise ValueError("the number is too large")
    return number


Number = Annotated[int | float, AfterValidator(_is_not_huge)]


class Record(BaseModel):
    """A JSON object; unknown entries are kept, because later versions may write more of them."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

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


class Score(Record):
    """A score with its signature, in result.json; which of the numbers it has depends on the task."""

    perplexity: float | None = None
    bits_per_character: float | None = None  # of a whole split; comparable between tokenizers, unlike perplexity
    unknown_share: float | None = None  # of the predicted tokens; a model that knows fewer words predicts less
    bleu: float | None = None
    chrf: float | None = None
    split: str
    eval_gate: str
    tokens: Count | None = None
    sentences: Count | None = None
    cache: str | None = None
    dynamic: str | None = None
    beam: Count | None = None
    length_penalty: float | None = None
    trained_on: str | None = None
    compressed: str | None = None
    recipe: str | None = None  # its hash; earlier versions wrote this and the next only in the signature
    data: str | None = None  # its name, and the beginnings of the checksums of its files
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
    ratio: float | None = None
    bits_per_weight: float | None = None


class ScoreChange(Record):
    """A score before and after compression."""

    metric: str
    split: str
    before: float
    after: float


class SpeedChange(Record):
    """A speed before and after compression."""

    unit: str
    how: str
    before: Annotated[float, Field(gt=0)]
    after: float


class CompressionReport(Record):
    """compression.json of a compressed run; None for what was not measured."""

    spec: str
    groups: dict[str, Sizes]
    rest: Sizes
    file: Sizes
    bits_per_weight: float
    score: ScoreChange | None = None
    speed: SpeedChange | None = None


class MetricsLine(Record):
    """A line of metrics.jsonl: what kind it is, and numbers by name."""

    __pydantic_extra__: dict[str, Number]
    kind: str
    step: Number
    tokens: Number
    seconds: Number
