"""A compression spec: which encoding each group of weights gets, as in "gates=round:0.2,clip:0.4; cell=int8".

Groups: gates are the input and forget gates of an LSTM, the reset and update gates of a GRU; cell is the rest of a
recurrent layer, the output gate and the candidate; embedding, with a softmax that is tied to one; softmax, with weights
of its own; linear, every other `torch.nn.Linear`, the projections of LSTMs, attention, and convolutions where a pattern
covers them; and plain, all matrices of torch's own recurrent layers, whose gates have not learnt to tolerate few
levels: where a spec names it, gates and cell apply to our layers alone.

A spec without a group, such as "int8" or the name of a preset, applies to all groups; "keep" leaves weights as they
are. What follows `pattern:` applies to the modules or parameters whose names match, up to the next pattern:
"gates=int4; encoder.lstm: gates=int8; cell=int8; head: keep; *.weight_ih_l0: keep". Patterns are those of `fnmatch`.
One that matches a module covers everything inside it. The most specific one that says something about the group of a
matrix wins: parameters before modules, then the pattern with more characters that are not wildcards, then the later
one, and finally what comes before all patterns.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Self, TypeAlias

from g2lstm.compression.encodings import FORMS, Dense, Encoding, form_of, names_in
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from torch import Tensor

GROUPS = ("gates", "cell", "plain", "embedding", "softmax", "linear")
PRESETS = {
    "paper-lm-round": "gates=round:0.2",
    "paper-lm-clip": "gates=round:0.2,clip:0.4",
    "paper-lm-svd128": "gates=svd:128",
    "paper-lm-svd64": "gates=svd:64",
    "paper-mt-round": "gates=round:0.5",
    "paper-mt-clip": "gates=round:0.5,clip:1.0",
    "paper-mt-svd32": "gates=svd:32",
    "paper-mt-svd16": "gates=svd:16",
    "small": "gates=levels:5; cell=int4; plain=int8; embedding=int6; softmax=int6; linear=int8",
    "tiny": "gates=bits:1.6; cell=bits:2.2; embedding=bits:1.6,zipf; softmax=bits:1.6,zipf; linear=bits:2.5",
}
_LETTERS: dict[str, str] = {}  # for each operation the letter of its number, or nothing
for _form in FORMS:
    for _part in _form.split(","):
        _LETTERS[_part.partition(":")[0]] = _part.partition(":")[2]
_WHOLE = re.compile("[0-9]{1,1000}")  # Python refuses to read thousands of digits
_DECIMAL = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_PATTERN = re.compile(r"[^\s:;=,]+")  # what the name of a module or a parameter matches


@dataclass(frozen=True)
class Operations:
    """What is done to each matrix of a group.

    Attributes:
        numbers: the operations of one of `FORMS` in that order, each with its number: ("round", 0.2), ("int8", None);
            empty to keep the matrix as it is.
    """

    numbers: tuple[tuple[str, float | None], ...]

    def __str__(self) -> str:
        """As a spec has it."""
        return ",".join(name if number is None else f"{name}:{number!r}" for name, number in self.numbers) or "keep"

    def __bool__(self) -> bool:
        """Whether anything is done."""
        return bool(self.numbers)


def encode(values: "Tensor", operations: Operations | None, *, quickly: bool = False) -> Encoding:
    """Encodes a matrix (rows, columns), as `prepare_` does it if `quickly`; without operations it stays dense."""
    numbers = {} if operations is None else dict(operations.numbers)
    encoding = FORMS[form_of(numbers)] if numbers else Dense
    return encoding.encode_quickly(values, numbers) if quickly else encoding.encode(values, numbers)


@dataclass(frozen=True)
class Spec:
    """What is done to each group of weights; None where nothing is said. Biases always stay as they are.

    Attributes:
        gates, cell, plain, embedding, softmax, linear: see the top of this file.
        patterns: specs for modules or parameters with such names, without patterns of their own.
    """

    gates: Operations | None = None
    cell: Operations | None = None
    plain: Operations | None = None
    embedding: Operations | None = None
    softmax: Operations | None = None
    linear: Operations | None = None
    patterns: tuple[tuple[str, "Spec"], ...] = ()

    def __str__(self) -> str:
        """The canonical text, which parses to an equal spec."""
        said = {group: getattr(self, group) for group in GROUPS}
        parts = [f"{group}={operations}" for group, operations in said.items() if operations is not None]
        if len(parts) == len(GROUPS) and len(set(said.values())) == 1:
            parts = [str(self.gates)]
        return "; ".join([*parts, *(f"{pattern}: {spec}" for pattern, spec in self.patterns)])

    def operations(self, group: str, is_plain: bool) -> Operations | None:
        """What is said about a matrix of this group, in one of torch's own recurrent layers or not."""
        found: Operations | None = getattr(self, group)
        return self.plain if is_plain and self.plain is not None else found

    @classmethod
    def of(cls, given: "Given") -> Self:
        """A spec from any form that `compress` takes: itself, text, or a spec for each pattern."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            return cls.parse(given)  # type: ignore[arg-type]  # which refuses what is no text
        patterns: list[tuple[str, Spec]] = []
        for pattern, spec in given.items():
            if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
                raise G2Error(f"{pattern!r} can't name modules or parameters; write a name or a pattern such as lstm.*")
            try:
                found = cls.of(spec)
            except G2Error as error:
                raise G2Error(f"{pattern}: {error}") from None
            if found.patterns:
                raise G2Error(f"{pattern}: the spec of a pattern can't have patterns of its own")
            patterns.append((pattern, found))
        if not patterns:
            raise G2Error(_no_preset(""))
        return cls(patterns=tuple(patterns))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a spec; white space and the order of groups do not matter.

        Raises:
            G2Error: with everything that is wrong.
        """
        if not isinstance(text, str):
            raise G2Error(f"a compression spec is text such as 'gates=round:0.2; cell=int8', got {text!r}")
        if not text.strip():
            raise G2Error(_no_preset(""))
        sections: list[tuple[str, list[str]]] = [("", [])]
        for part in text.split(";"):
            pattern, rest = _split_pattern(part)
            if pattern is not None:
                sections.append((pattern, []))
            sections[-1][1].append(rest.strip())
        if not sections[0][1]:
            del sections[0]
        problems: list[str] = []
        specs: list[tuple[str, Spec]] = []
        for pattern, parts in sections:
            wrong, found = _parse_groups(parts)
            if len(sections) == len(parts) == 1 and not pattern and "=" not in text and not _is_operation(text):
                wrong = wrong and [_no_preset(text.strip())]
            elif pattern and not _PATTERN.fullmatch(pattern):
                wrong = [f"{_quoted(pattern)} can't name modules or parameters", *wrong]
            problems += [f"{_quoted(pattern)}: {problem}" if pattern else problem for problem in wrong]
            specs.append((pattern, cls(**found)))  # type: ignore[arg-type]  # of groups alone
        if problems:
            introduction = f"the compression spec {_quoted(text)}"
            many = f" has {len(problems)} mistakes:\n  "
            raise G2Error(introduction + (many if len(problems) > 1 else ": ") + "\n  ".join(problems))
        base = cls() if specs[0][0] else specs.pop(0)[1]
        return replace(base, patterns=tuple(specs))  # type: ignore[return-value]


Given: TypeAlias = "str | Spec | Mapping[str, str | Spec]"


def _split_pattern(part: str) -> tuple[str | None, str]:
    """A part of a spec without the pattern before it, if there is one."""
    name, colon, rest = part.partition(":")
    first = re.split("[:,]", rest)[0].strip()
    is_number = _LETTERS.get(name.strip()) and "=" not in rest and first not in {*_LETTERS, *PRESETS, "keep"}
    if not colon or "=" in name or "," in name or is_number:
        return None, part
    return name.strip(), rest


def _is_operation(text: str) -> bool:
    return re.split("[:,]", text)[0].strip() in {*_LETTERS, "keep"}


def _parse_groups(parts: list[str]) -> tuple[list[str], dict[str, Operations]]:
    """The mistakes in the parts of a spec that share a pattern, and what they say about each group."""
    problems: list[str] = []
    everywhere: dict[str, Operations] = {}
    found: dict[str, Operations] = {}
    for part in parts:
        group, equals, operations = (piece.strip() for piece in part.partition("="))
        if not equals:
            if part in PRESETS:
                everywhere = _parse_groups(PRESETS[part].split(";"))[1]
            elif _is_operation(part):
                wrong, every = _parse_operations(part)
                everywhere = dict.fromkeys(GROUPS, every)
                problems += wrong
            elif part or len(parts) == 1:
                problems.append(f"{_quoted(part)} must have the form group=operation")
            else:
                problems.append(_extra(";"))
            continue
        if group not in GROUPS:
            problems.append(f"{_quoted(group)} is not a group{_meant(group, GROUPS)}")
        elif group in found:
            problems.append(f"{group} is given twice; write all its operations after one {group}=")
        wrong, found[group] = _parse_operations(operations)
        problems += [f"{group if group in GROUPS else _quoted(group)}: {problem}" for problem in wrong]
    return problems, everywhere | {group: one for group, one in found.items() if group in GROUPS}


def _parse_operations(text: str) -> tuple[list[str], Operations]:
    """The mistakes in the operations of one group, and the operations if there are none."""
    nothing = Operations(())
    if text == "keep":
        return [], nothing
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
    form = form_of(numbers)
    if all_known and numbers:
        problems += _wrong_together(list(numbers), form)
    if problems:
        return problems, nothing
    ordered = {name: numbers[name] for name in names_in(form)}
    try:
        FORMS[form].check(ordered)
    except G2Error as error:
        problems.append(str(error))
    return problems, Operations(tuple(ordered.items()))


def _wrong_together(names: list[str], form: str) -> list[str]:
    """What is wrong with these operations, each of which is known."""
    if not form:
        fuller = [one for one in FORMS if set(names) < set(names_in(one))]
        if fuller:
            return [f"{' and '.join(names)} can't stand alone, write {fuller[0]}"]
        return [f"{' and '.join(names)} do not go together; {_allowed()}"]
    is_nested = form.partition(",")[2] in FORMS  # one encoding inside another
    return [f"the order matters, write {form}"] if is_nested and names != names_in(form) else []


def _number(letter: str, text: str) -> float | None:
    """The number of an operation, or None if the text is not one that it can have."""
    form = _WHOLE if letter == "K" else _DECIMAL
    if not letter or form.fullmatch(text) is None:
        return None
    number = int(text) if letter == "K" else float(text)
    return number if 0 < number < math.inf else None


def _allowed() -> str:
    alone = [form for form in FORMS if not form.startswith("svd")]
    return f"a group takes one of: {'  '.join(alone)}; or svd:K, alone or before one of those without round"


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
