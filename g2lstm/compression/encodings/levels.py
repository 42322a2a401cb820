"""`Levels`: a few equidistant levels around 0, with the scale of each row or group that has the least squared error."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self, TypeAlias

import numpy as np

from g2lstm.compression.encodings.base import (
    LEAST_GROUP,
    Arguments,
    Array,
    Coded,
    Entry,
    Outline,
    check_group,
    check_values,
)
from g2lstm.compression.encodings.panels import pack, packed_size, unpack
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from torch import Tensor

MOST, MOST_IN_GROUPS = 255, 16
_NAMED = {"int2": 4, "int3": 8}
_RATIOS = tuple(0.89**k for k in range(24))  # the shares of a row's range that its levels may cover at first
_ROUNDS = 4
_Fitted: TypeAlias = "tuple[Tensor, Tensor]"  # codes (..., n), int8, and scales (..., 1), float16


@dataclass(frozen=True, eq=False, repr=False)
class Levels(Coded):
    """Multiples of a step that each row or group has for itself: value = code · scale.

    As many levels lie below 0 as above: the codes of five levels are -2, -1, 0, 1, 2, those of four -3, -1, 1, 3.

    Attributes:
        codes: (rows, columns), int8.
        scales: one per row, (rows,), or one per group, (rows, groups), float16.
        levels: an odd number up to 255 or an even one up to 128.
        group: columns per scale; None for one scale per row. The last group of a row may be shorter.
    """

    kinds: ClassVar = {"levels": ("levels",), "grouped_levels": ("levels", "group")}
    forms: ClassVar = ("levels:K", "levels:K,group:K", "int3", "int3,group:K", "int2", "int2,group:K")

    codes: Array
    scales: Array
    levels: int
    group: int | None = None

    @classmethod
    def encode(cls, values: "Tensor", arguments: Arguments) -> Self:
        """Tries several scales for each row or group, then fits codes to the best and scales to the codes in turn.

        Scales are float16: a row of weights below 1e-8 becomes 0.
        """
        return cls._encode(values, arguments, _fit)

    @classmethod
    def encode_quickly(cls, values: "Tensor", arguments: Arguments) -> Self:
        """Starts from the one scale that would be best for a normal distribution."""
        return cls._encode(values, arguments, _fit_quickly)

    @classmethod
    def _encode(cls, values: "Tensor", arguments: Arguments, fit: Callable[["Tensor", int], "_Fitted"]) -> Self:
        import torch

        cls.check(arguments)
        levels, group = _count(arguments), int(arguments.get("group") or 0) or None
        weights = check_values(values)
        if group is None or group >= weights.shape[1]:
            codes, scales = fit(weights, levels)
            return cls(codes.numpy(), scales.squeeze(1).numpy(), levels)
        whole = weights.shape[1] // group * group
        fitted = [fit(weights[:, :whole].unflatten(1, (-1, group)), levels)]
        if whole < weights.shape[1]:
            fitted.append(fit(weights[:, whole:].unsqueeze(1), levels))
        codes, scales = (torch.cat([part.flatten(1) for part in parts], dim=1) for parts in zip(*fitted, strict=True))
        return cls(codes.numpy(), scales.numpy(), levels, group)

    @classmethod
    def check(cls, arguments: Arguments) -> None:
        _check_levels(levels := _count(arguments))
        if "group" in arguments:
            check_group(int(arguments["group"] or 0))
            if levels > MOST_IN_GROUPS:
                raise G2Error(f"group:K goes with at most {MOST_IN_GROUPS} levels, got {levels}; leave it out")

    @property
    def kind(self) -> str:
        return "levels" if self.group is None else "grouped_levels"

    def pack(self) -> dict[str, Array]:
        lowest, step = _codes(self.levels)
        return {"codes": pack((self.codes.astype(np.int16) - lowest) // step, self.levels), "scales": self.scales}

    @classmethod
    def outlines(cls, entry: Entry) -> dict[str, Outline]:
        rows, columns = entry.shape
        most = MOST if entry.kind == "levels" else MOST_IN_GROUPS
        _check_levels(levels := entry.whole("levels", 2, most))
        scales = Outline("float16", (rows,))
        if entry.kind == "grouped_levels":
            scales = Outline("float16", (rows, -(-columns // entry.group(LEAST_GROUP))))
        return {"codes": Outline("uint8", (packed_size(rows * columns, levels),)), "scales": scales}

    @classmethod
    def unpack(cls, entry: Entry, packed: Mapping[str, Array]) -> Self:
        levels = entry.facts["levels"]
        lowest, step = _codes(levels)
        numbers = unpack(packed["codes"], entry.shape[0] * entry.shape[1], levels).reshape(entry.shape)
        codes = (numbers.astype(np.int16) * step + lowest).astype(np.int8)
        return cls(codes, packed["scales"], levels, entry.facts.get("group"))


def _count(arguments: Arguments) -> int:
    """The number of levels that a spec asks for."""
    return next((count for name, count in _NAMED.items() if name in arguments), int(arguments.get("levels") or 0))


def _check_levels(levels: int) -> None:
    if not 2 <= levels <= (MOST if levels % 2 else MOST // 2 + 1):
        raise G2Error(f"the K of levels:K must be 2 to {MOST // 2 + 1}, or an odd number up to {MOST}, got {levels}")


def _codes(levels: int) -> tuple[int, int]:
    """The lowest code, and the distance from one to the next."""
    step = 1 if levels % 2 else 2
    return -(levels // 2) if step == 1 else 1 - levels, step


def _fit(groups: "Tensor", levels: int) -> "_Fitted":
    """The codes (..., n), int8, and scales (..., 1), float16, of groups (..., n) with about the least squared error."""
    import torch

    highest = -_codes(levels)[0]
    widest = groups.abs().amax(dim=-1, keepdim=True) / highest
    best, least = torch.zeros_like(widest), torch.full_like(widest, torch.inf)
    for ratio in _RATIOS:
        scales = widest * ratio
        error = (groups - _nearest(groups, scales, levels) * scales).square_().sum(dim=-1, keepdim=True)
        is_better = (error < least) & scales.half().isfinite()
        best, least = torch.where(is_better, scales, best), torch.where(is_better, error, least)
    if least.isinf().any():
        raise _too_large(groups, levels)
    return _in_turn(groups, best, levels, _ROUNDS)


def _fit_quickly(groups: "Tensor", levels: int) -> "_Fitted":
    """Like `_fit`, but not as close where the weights are not normally distributed."""
    import torch

    lowest, step = _codes(levels)
    if groups.abs().max() > -lowest * torch.finfo(torch.float16).max:
        raise _too_large(groups, levels)
    deviations = groups.square().mean(dim=-1, keepdim=True).sqrt_()
    return _in_turn(groups, deviations * (2.85 * levels**-0.78 / step), levels, _ROUNDS // 2)


def _in_turn(groups: "Tensor", scales: "Tensor", levels: int, rounds: int) -> "_Fitted":
    """Fits codes to scales and scales to codes; both come closer in each round."""
    import torch

    for _ in range(rounds):
        codes = _nearest(groups, scales, levels)
        fitted = (codes * groups).sum(dim=-1, keepdim=True) / codes.square().sum(dim=-1, keepdim=True)
        scales = torch.where(fitted > 0, fitted, scales)  # false for NaN, where all codes are 0
    scales = scales.clamp_(max=torch.finfo(torch.float16).max).half()
    return _nearest(groups, scales.float(), levels).to(torch.int8), scales


def _too_large(groups: "Tensor", levels: int) -> G2Error:
    import torch

    most, got = -_codes(levels)[0] * torch.finfo(torch.float16).max, float(groups.abs().max())
    return G2Error(f"{levels} levels hold weights up to about {most:.0f}, got {got:.3g}; use int8")


def _nearest(values: "Tensor", scales: "Tensor", levels: int) -> "Tensor":
    """The nearest codes, still in float32; the one above 0, or 0, where the scale is 0."""
    import torch

    lowest, step = _codes(levels)
    quotients = torch.where(scales != 0, values / scales, 0.0)
    if step == 1:
        return quotients.round_().clamp_(lowest, -lowest)
    return quotients.div_(2).floor_().mul_(2).add_(1).clamp_(lowest, -lowest)
