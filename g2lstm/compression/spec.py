"""A compression spec: which encoding each group of weights gets, as in "gates=round:0.2,clip:0.4; cell=int8"."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Self

from g2lstm.compression.encodings import FORMS, Dense, Encoding
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from torch import Tensor

GROUPS = ("gates", "cell", "embedding", "softmax")
PRESETS = {
    "paper-lm-round": "gates=round:0.2",
    "paper-lm-clip": "gates=round:0.2,clip:0.4",
    "paper-lm-svd128": "gates=svd:128",
    "paper-lm-svd64": "gates=svd:64",
    "paper-mt-round": "gates=round:0.5",
    "paper-mt-clip": "gates=round:0.5,clip:1.0",
    "paper-mt-svd32": "gates=svd:32",
    "paper-mt-svd16": "gates=svd:16",
    "small": "gates=round:0.2,clip:0.4; cell=int4; embedding=int6; softmax=int6",  # measured: docs/results.md
}
_LETTERS: dict[str, str] = {}  # for each operation the letter of its number, or nothing
for _form in FORMS:
    for _part in _form.split(","):
        _LETTERS[_part.partition(":")[0]] = _part.partition(":")[2]
_WHOLE = re.compile("[0-9]{1,1000}")  # Python refuses to read thousands of digits
_DECIMAL = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Operations:
    """What is done to each matrix of a group.

    Attributes:
        numbers: the operations of one of `FORMS` in that order, each with its number: ("round", 0.2), ("int8", None).
    """

    numbers: tuple[tuple[str, float | None], ...]

    def __str__(self) -> str:
        """As a spec has it."""
        return ",".join(name if number is None else f"{name}:{number!r}" for name, number in self.numbers)


def encode(values: "Tensor", operations: Operations | None) -> Encoding:
    """Encodes a matrix (rows, columns); without operations it stays dense."""
    numbers = {} if operations is None else dict(operations.numbers)
    encoding = FORMS[_form_of(numbers)] if numbers else Dense
    return encoding.encode(values, numbers)


@dataclass(frozen=True)
class Spec:
    """What is done to each group of weights; None where they stay as they are. Biases always do.

    Attributes:
        gates: the input and forget gates.
        cell: the output gate and the candidate.
        embedding: the embeddings, and a softmax that is tied to one.
        softmax: a softmax with weights of its own.
    """

    gates: Operations | None = None
    cell: Operations | None = None
    embedding: Operations | None = None
    softmax: Operations | None = None

    def __str__(self) -> str:
        """The canonical text, which parses to an equal spec."""
        return "; ".join(f"{group}={getattr(self, group)}" for group in GROUPS if getattr(self, group))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a spec.

        Args:
            text: the name of a preset, or groups with their operations: "group=operation,operation; group=operation".
                White space and the order of groups do not matter.

        Raises:
            G2Error: with everything that is wrong.
        """
        if not isinstance(text, str):
            raise G2Error(f"a compression spec is text such as 'gates=round:0.2; cell=int8', got {text!r}")
        source = PRESETS.get(text.strip(), text)
        if "=" not in source:
            raise G2Error(_no_preset(text.strip()))
        problems: list[str] = []
        found: dict[str, Operations] = {}
        seen: set[str] = set()
        for part in source.split(";"):
            group, equals, operations = (piece.strip() for piece in part.partition("="))
            if not equals:
                problems.append(f"{_quoted(group)} must have the form group=operation" if group else _extra(";"))
                continue
            if group not in GROUPS:
                problems.append(f"{_quoted(group)} is not a group{_meant(group, GROUPS)}")
            elif group in seen:
                problems.append(f"{group} is given twice; write all its operations after one {group}=")
            seen.add(group)
            wrong, found[group] = _parse_operations(operations)
            problems += [f"{group if group in GROUPS else _quoted(group)}: {problem}" for problem in wrong]
        if problems:
            introduction = f"the compression spec {_quoted(text)}"
            many = f" has {len(problems)} mistakes:\n  "
            raise G2Error(introduction + (many if len(problems) > 1 else ": ") + "\n  ".join(problems))
        return cls(**found)


def _parse_operations(text: str) -> tuple[list[str], Operations]:
    """The mistakes in the operations of one group, and the operations if there are none."""
    nothing = Operations(())
    if not text:
        return [f"there is no operation; {_allowed()}"], nothing
    problems: list[str] = []
    numbers: dict[str, float | None] = {}
    all_known = True
    for part in text.split(","):
        name, colon, value = (piece.strip() for piece in part.partition(":"))
        if not part.strip():
            problems.append(_extra(","))
        elif name not in _LETTERS:
            problems.append(f"{_quoted(name)} is not an operation{_meant(name, _LETTERS)}")
            all_known = False
        elif name in numbers:
            problems.append(f"{name} is given twice")
        else:
            letter = _LETTERS[name]
            numbers[name] = _number(letter, value)
            if colon and not letter:
                problems.append(f"{name} takes no number, got {_quoted(value)}; write {name} alone")
            elif letter and numbers[name] is None:
                kind = "an integer" if letter == "K" else "a finite number"
                problems.append(f"{name}:{letter} needs {kind} above 0, got {_quoted(value)}")
    form = _form_of(numbers)
    if all_known and numbers:
        problems += _wrong_together(list(numbers), form)
    if problems:
        return problems, nothing
    ordered = {name: numbers[name] for name in _names(form)}
    try:
        FORMS[form].check(ordered)
    except G2Error as error:
        problems.append(str(error))
    return problems, Operations(tuple(ordered.items()))


def _names(form: str) -> list[str]:
    """The operations of a form."""
    return [part.partition(":")[0] for part in form.split(",")]


def _form_of(names: Iterable[str]) -> str:
    """The form of these operations in whatever order; nothing if they do not go together."""
    wanted = sorted(names)
    return next((form for form in FORMS if sorted(_names(form)) == wanted), "")


def _wrong_together(names: list[str], form: str) -> list[str]:
    """What is wrong with these operations, each of which is known."""
    if not form:
        fuller = [one for one in FORMS if set(names) < set(_names(one))]
        if fuller:
            return [f"{' and '.join(names)} can't stand alone, write {fuller[0]}"]
        return [f"{' and '.join(names)} do not go together; {_allowed()}"]
    is_nested = _names(form)[-1] in FORMS  # one encoding inside another
    return [f"the order matters, write {form}"] if is_nested and names != _names(form) else []


def _number(letter: str, text: str) -> float | None:
    """The number of an operation, or None if the text is not one that it can have."""
    form = _WHOLE if letter == "K" else _DECIMAL
    if not letter or form.fullmatch(text) is None:
        return None
    number = int(text) if letter == "K" else float(text)
    return number if 0 < number < math.inf else None


def _allowed() -> str:
    return f"a group takes one of: {'  '.join(FORMS)}"


def _extra(mark: str) -> str:
    return f"there is an extra {mark!r}; remove it"


def _meant(name: str, names: Iterable[str]) -> str:
    close = get_close_matches(name.lower(), names, n=1)
    return f"; did you mean {close[0]}?" if close else f"; use one of {', '.join(names)}"


def _no_preset(name: str) -> str:
    how = 'write groups with their operations, as in "gates=round:0.2,clip:0.4; cell=int8"'
    if not name:
        return f"the compression spec is empty; {how}"
    meant = _meant(name, PRESETS)
    return f"there is no compression preset {_quoted(name)}{meant}{'' if meant.endswith('?') else '.'} Or {how}"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
