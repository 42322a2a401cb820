"""The curve that a search goes along: from all weights as they are to the fewest bytes, always the cheapest step next.

What single encodings cost is taken to add up. Then the choices that no other beats, with fewer bytes at no more loss,
are those on the convex hulls of all units, taken in the order of their loss per byte. A loss is the user's metric, or
how far a model's outputs deviate.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from g2lstm.compression.spec import GROUPS, Operations, Spec
from g2lstm.compression.targets import Target
from g2lstm.errors import G2Error
from g2lstm.nn.record import evaluating
from g2lstm.nn.survey import aligned


class Unit(NamedTuple):
    """Matrices that get the same encoding: those of one group in one parameter."""

    name: str
    group: str
    matrices: tuple[str, ...]


class Option(NamedTuple):
    """One way to store a unit: its bytes, and the loss if all else stays as it is."""

    encoding: str  # operations as a spec has them; "keep" to leave the unit as it is
    size: int
    loss: float


Choice = Mapping[Unit, str]  # the encoding of each unit


class Point(NamedTuple):
    """A choice on the curve."""

    spec: Spec
    size: int  # bytes of the file, at the chosen point exactly
    expected: float  # loss, if the losses of single encodings added up
    measured: float | None  # None where the search did not look


class Found:
    """What a search found; prints as the curve, with the chosen point marked.

    Attributes:
        spec: the choice; `compress(model, spec)` makes the same model again.
        point: its point on the curve.
        curve: all points, from the first step to the fewest bytes.
        before: bytes of all weights as they were.
    """

    def __init__(self, point: Point, curve: Sequence[Point], before: int) -> None:
        self.spec, self.point, self.curve, self.before = point.spec, point, list(curve), before

    def rows(self, most: int = 12) -> list[list[str]]:
        """The curve for people: bytes, ratio, loss expected and measured; measured points, and others up to `most`."""
        known = [index for index, point in enumerate(self.curve) if point.measured is not None]
        others = [index for index in range(len(self.curve)) if index not in known]
        kept = sorted({*known, *others[:: max(1, -(-len(others) // max(most - len(known), 1)))]})
        return [
            [
                f"{one.size:,}",
                f"{self.before / one.size:.2f}",
                f"{one.expected:+.3%}",
                "-" if one.measured is None else f"{one.measured:+.3%}",
                "chosen" if one is self.point else "",
            ]
            for one in (self.curve[index] for index in kept)
        ]

    def __repr__(self) -> str:
        table = aligned([["bytes", "ratio", "loss expected", "measured", ""], *self.rows()], str.rjust)
        return f"{table}\n{self.spec}"


def units_of(matrices: Mapping[str, Target]) -> list[Unit]:
    """The units of a model."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, target in matrices.items():
        parameter = name.removesuffix(f".{target.gate}") if target.gate else name
        names.setdefault((parameter, target.group), []).append(name)
    several = {parameter for parameter, group in names if group == "cell"}
    return [
        Unit(f"{parameter} ({group})" if parameter in several else parameter, group, tuple(own))
        for (parameter, group), own in names.items()
    ]


def path(options: Mapping[Unit, Sequence[Option]]) -> list[Choice]:
    """The choices on the curve, first the one that keeps everything."""
    steps: list[tuple[float, int, Unit, Option]] = []
    for unit, own in options.items():
        hull = _hull(own)
        for number, (before, after) in enumerate(pairwise(hull)):
            steps.append((_slope(before, after), number, unit, after))
    found: list[Choice] = [dict.fromkeys(options, "keep")]
    for _, _, unit, option in sorted(steps, key=lambda step: step[:2]):
        found.append({**found[-1], unit: option.encoding})
    return found


def _hull(options: Sequence[Option]) -> list[Option]:
    """Those below which no mixture of two others lies, from the largest to the smallest."""
    hull: list[Option] = []
    for option in sorted(options, key=lambda one: (-one.size, one.loss)):
        if hull and option.size == hull[-1].size:
            continue
        while hull and option.loss <= hull[-1].loss and len(hull) > 1:
            hull.pop()
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], option):
            hull.pop()
        hull.append(option)
    return hull


def _slope(before: Option, after: Option) -> float:
    return (after.loss - before.loss) / (before.size - after.size)


def spec_of(choice: Choice, matrices: Mapping[str, Target]) -> Spec:
    """The spec that makes this choice: what most weights of a group get, and patterns for parameters that differ."""
    operations = {unit: Spec.parse(encoding).gates or Operations(()) for unit, encoding in choice.items()}
    common: dict[str, Operations] = {}
    for group in GROUPS:
        weights: dict[Operations, int] = {}
        for unit, own in operations.items():
            if unit.group == group and not matrices[unit.matrices[0]].is_convolution:
                size = sum(matrices[name].values.numel() for name in unit.matrices)
                weights[own] = weights.get(own, 0) + size
        if weights and (most := max(weights, key=lambda one: weights[one])):
            common[group] = most
    patterns: dict[str, dict[str, Operations]] = {}
    for unit, own in operations.items():
        target = matrices[unit.matrices[0]]
        if own != (Operations(()) if target.is_convolution else common.get(unit.group, Operations(()))):
            for use in target.uses:
                patterns.setdefault(use.parameter, {})[unit.group] = own
    return Spec(**common, patterns=tuple((name, Spec(**groups)) for name, groups in patterns.items()))  # type: ignore[arg-type]


def metric_of(metric: Callable[[nn.Module, Any], Any], batches: Sequence[Any]) -> Callable[[nn.Module], float]:
    """The mean of a metric over batches."""

    @torch.no_grad()
    def measure(model: nn.Module) -> float:
        with evaluating(model):
            values = [metric(model, batch) for batch in batches]
        try:
            return math.fsum(map(float, values)) / len(values)
        except (TypeError, ValueError, RuntimeError):
            raise G2Error(f"the metric must be a number, got {values[0]!r:.200}; lower means better") from None

    return measure


def deviation_from(model: nn.Module, batches: Sequence[Any]) -> Callable[[nn.Module], float]:
    """How far outputs are from those of `model`: the norm of all differences, relative to that of its outputs."""
    with torch.no_grad(), evaluating(model):
        expected = [_outputs(model, batch, number) for number, batch in enumerate(batches)]
    squares = math.fsum(float(one.double().square().sum()) for each in expected for one in each)
    if not math.isfinite(squares):
        raise G2Error("the outputs of the model itself are NaN or infinite, so nothing can be compared with them")
    if squares == 0:
        raise G2Error("the model has no floating-point outputs, or all are 0; give a metric")

    @torch.no_grad()
    def measure(other: nn.Module) -> float:
        total = 0.0
        with evaluating(other):
            for number, (batch, each) in enumerate(zip(batches, expected, strict=True)):
                found = _outputs(other, batch, number)
                total += math.fsum(float((a - b).double().square().sum()) for a, b in zip(found, each, strict=True))
        return math.sqrt(total / squares)

    return measure


def _outputs(model: nn.Module, batch: Any, number: int) -> list[Tensor]:
    """All tensors of floating point in what a model returns."""
    try:
        if isinstance(batch, Mapping):
            result = model(**batch)
        else:
            result = model(*batch) if isinstance(batch, tuple | list) else model(batch)
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
        raise G2Error(
            f"{type(model).__name__} can't take batch {number}, {_described(batch)}: {error}; give batches as its "
            "forward takes them: a tensor, a tuple of arguments or a dict of them"
        ) from error
    return list(_tensors(result))


def _tensors(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        if result.is_floating_point():
            yield result
    elif isinstance(result, PackedSequence):
        yield result.data
    elif isinstance(result, Mapping):
        for one in result.values():
            yield from _tensors(one)
    elif isinstance(result, list | tuple):
        for one in result:
            yield from _tensors(one)
    elif dataclasses.is_dataclass(result):
        for field in dataclasses.fields(result):
            yield from _tensors(getattr(result, field.name))


def _described(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"a tensor {tuple(batch.shape)} of {batch.dtype}"
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key}: {_described(one)}" for key, one in batch.items()) + "}"
    if isinstance(batch, tuple | list):
        return "(" + ", ".join(map(_described, batch)) + ")"
    return type(batch).__name__
