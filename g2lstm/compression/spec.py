"""What a compression does to which weights, from text such as "gates=round:0.2,clip:0.4; cell=int8" and back."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Self

from g2lstm.errors import G2Error

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
_LETTERS = {"round": "R", "clip": "C", "svd": "K"}  # what the number of each step is called
_INTEGERS = ("int8", "int6", "int4")
_WHOLE = re.compile("[0-9]{1,1000}")  # of thousands of digits, Python makes no number
_DECIMAL = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_STEPS = (*_LETTERS, *_INTEGERS)
_TOGETHER = [
    ("round",),
    ("round", "clip"),
    ("svd",),
    *(("svd", one) for one in _INTEGERS),
    *((one,) for one in _INTEGERS),
]


@dataclass(frozen=True)
class Steps:
    """What is done to each matrix of a group; `Spec.parse` sees to it that the steps go together.

    Attributes:
        step: R of round:R, weights become multiples of it.
        limit: C of clip:C, no weight stays beyond it.
        rank: K of svd:K.
        integers: "int8", "int6" or "int4"; of the two factors where there is a rank.
    """

    step: float | None = None
    limit: float | None = None
    rank: int | None = None
    integers: str | None = None

    def __str__(self) -> str:
        """As a spec has it, in the order in which the steps are done."""
        numbers = {"round": self.step, "clip": self.limit, "svd": self.rank}
        steps = [f"{name}:{number!r}" for name, number in numbers.items() if number is not None]
        return ",".join(steps + ([self.integers] if self.integers else []))


@dataclass(frozen=True)
class Spec:
    """What is done to each group of weights; None where they stay as they are. Biases always do.

    Attributes:
        gates: of the input and forget gates.
        cell: of the output gate and the candidate.
        embedding: and of a softmax that is tied to it.
        softmax: where it has weights of its own.
    """

    gates: Steps | None = None
    cell: Steps | None = None
    embedding: Steps | None = None
    softmax: Steps | None = None

    def __str__(self) -> str:
        """The canonical text, which parses to an equal spec."""
        return "; ".join(f"{group}={getattr(self, group)}" for group in GROUPS if getattr(self, group))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a spec.

        Args:
            text: the name of a preset, or groups with their steps: "group=step,step; group=step". White space does
                not matter, nor does the order of groups or of round and clip.

        Raises:
            G2Error: with everything that is wrong, if anything is.
        """
        if not isinstance(text, str):
            raise G2Error(f"a compression spec is text such as 'gates=round:0.2; cell=int8', got {text!r}")
        source = PRESETS.get(text.strip(), text)
        if "=" not in source:
            raise G2Error(_no_preset(text.strip()))
        problems: list[str] = []
        found: dict[str, Steps] = {}
        seen: set[str] = set()
        for part in source.split(";"):
            group, equals, steps = (piece.strip() for piece in part.partition("="))
            if not equals:
                problems.append(f"{_shown(group)} must have the form group=step,step" if group else _empty("part", ";"))
                continue
            if group not in GROUPS:
                problems.append(f"{_shown(group)} is not a group{_meant(group, GROUPS)}")
            elif group in seen:
                problems.append(f"{group} is given twice; write its steps after one {group}=")
            seen.add(group)
            wrong, found[group] = _parse_steps(steps)
            problems += [f"{group if group in GROUPS else _shown(group)}: {problem}" for problem in wrong]
        if problems:
            introduction = f"the compression spec {_shown(text)}"
            many = f" has {len(problems)} mistakes:\n  "
            raise G2Error(introduction + (many if len(problems) > 1 else ": ") + "\n  ".join(problems))
        return cls(**found)


def _parse_steps(text: str) -> tuple[list[str], Steps]:
    """What is wrong with the steps of one group, and what could be read of them."""
    if not text:
        return [f"there is no step; {_allowed()}"], Steps()
    problems: list[str] = []
    numbers: dict[str, int | float | None] = {}
    names: list[str] = []  # in the order given
    all_known = True
    for part in text.split(","):
        name, colon, value = (piece.strip() for piece in part.partition(":"))
        if not part.strip():
            problems.append(_empty("step", ","))
        elif name not in _STEPS:
            problems.append(f"{_shown(name)} is not a step{_meant(name, _STEPS)}")
            all_known = False
        elif name in names:
            problems.append(f"{name} is given twice")
        else:
            names.append(name)
            if name not in _LETTERS and colon:
                problems.append(f"{name} takes no number, got {_shown(value)}; write {name} alone")
            elif name in _LETTERS:
                numbers[name] = _number(name, value)
                if numbers[name] is None:
                    kind = "whole" if name == "svd" else "finite"
                    problems.append(f"{name}:{_LETTERS[name]} needs a {kind} number above 0, got {_shown(value)}")
    step, limit, rank = (numbers.get(name) for name in _LETTERS)
    if all_known:
        problems += _wrong_together(names)
    if step and limit and limit < step:
        problems.append(f"clip:{limit!r} leaves no level but 0 of round:{step!r}; C must be at least R")
    integers = next((name for name in names if name not in _LETTERS), None)
    return problems, Steps(step, limit, None if rank is None else int(rank), integers)


def _wrong_together(names: list[str]) -> list[str]:
    """What is wrong with these steps of one group, each of them right by itself."""
    if "clip" in names and "round" not in names:
        return ["clip needs the levels that rounding makes; write round:R,clip:C"]
    if names and sorted(names) not in [sorted(together) for together in _TOGETHER]:
        return [f"{' and '.join(names)} do not go together; {_allowed()}"]
    if "svd" in names[1:]:
        return [f"svd comes first, and {names[0]} keeps its factors; write svd:K,{names[0]}"]
    return []


def _number(name: str, text: str) -> int | float | None:
    """The number of a step, or None if this is none that it can have."""
    form = _WHOLE if name == "svd" else _DECIMAL
    if form.fullmatch(text) is None:
        return None
    number = int(text) if name == "svd" else float(text)
    return number if 0 < number < math.inf else None


def _allowed() -> str:
    forms = [",".join(f"{name}:{_LETTERS[name]}" if name in _LETTERS else name for name in one) for one in _TOGETHER]
    return f"a group takes one of: {'  '.join(forms)}"


def _empty(what: str, mark: str) -> str:
    return f"there is an empty {what}; take out the {mark!r} that is too many"


def _meant(name: str, names: Sequence[str]) -> str:
    close = get_close_matches(name.lower(), names, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(names)}"


def _no_preset(name: str) -> str:
    how = 'write groups with their steps, as in "gates=round:0.2,clip:0.4; cell=int8"'
    if not name:
        return f"the compression spec is empty; {how}"
    meant = _meant(name, list(PRESETS))
    return f"no preset of compression is called {_shown(name)}{meant}{'' if meant.endswith('?') else '.'} Or {how}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
