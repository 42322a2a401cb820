"""`Levels`: a few equidistant levels, with the scale of each row that has the least squared error."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from g2lstm.compression.encodings.base import (
    Arguments,
    Array,
    Coded,
    Entry,
    Floats,
    Outline,
    check_finite,
    check_values,
)
from g2lstm.compression.encodings.packing import pack_signed, packed_size, unpack_signed
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from torch import Tensor

MOST = 255
_RATIOS = tuple(0.92**k for k in range(32))  # the shares of a row's range that its levels may cover at first
_ROUNDS = 2


@dataclass(frozen=True, eq=False, repr=False)
class Levels(Coded):
    """Multiples of a step that each row has for itself: value = code · scale of the row.

    Attributes:
        codes: (rows, columns), int8, as many below 0 as above.
        scales: (rows,), float16.
        levels: an odd number, 3 to 255.
    """

    kinds: ClassVar = {"levels": ("levels",)}
    forms: ClassVar = ("levels:K",)
    is_factor: ClassVar = False

    codes: Array
    scales: Array
    levels: int

    @classmethod
    def encode(cls, values: "Tensor", arguments: Arguments) -> Self:
        """Starts from several scales for each row, and fits codes to scales and scales to codes in turn.

        Scales are float16: a row of weights below 2e-7 becomes 0.
        """
        import torch

        cls.check(arguments)
        levels = int(arguments["levels"] or 0)
        weights, highest = check_values(values), levels // 2
        widest = weights.abs().amax(dim=1, keepdim=True) / highest
        best, least = torch.zeros_like(widest), torch.full_like(widest, torch.inf)
        for ratio in _RATIOS:
            scale = widest * ratio
            for _ in range(_ROUNDS):
                codes = _nearest(weights, scale, highest)
                fitted = (codes * weights).sum(dim=1, keepdim=True) / codes.square().sum(dim=1, keepdim=True)
                scale = torch.where(fitted > 0, fitted, scale)  # false for NaN, where all codes are 0
            scale = scale.half().float()
            error = (weights - _nearest(weights, scale, highest) * scale).square().sum(dim=1, keepdim=True)
            is_better = (error < least) & scale.isfinite()
            best, least = torch.where(is_better, scale, best), torch.where(is_better, error, least)
        if least.isinf().any():
            most, got = highest * torch.finfo(torch.float16).max, float(weights.abs().max())
            raise G2Error(f"levels:{levels} holds weights up to some {most:.0f}, got {got:.3g}; use int8")
        codes = _nearest(weights, best, highest).to(torch.int8)
        return cls(codes.numpy(), best.squeeze(1).half().numpy(), levels)

    @classmethod
    def check(cls, arguments: Arguments) -> None:
        """An odd number."""
        _check_levels(int(arguments["levels"] or 0))

    @cached_property
    def group_scales(self) -> Floats:
        """The scale of each row in float32."""
        return self.scales.astype(np.float32)[:, None]

    def facts(self) -> dict[str, Any]:
        """The number of levels."""
        return {"levels": self.levels}

    def pack(self) -> dict[str, Array]:
        """The codes, in a fraction of a bit more than their levels need, and the scales."""
        return {"codes": pack_signed(self.codes, -(self.levels // 2), self.levels), "scales": self.scales}

    @classmethod
    def outlines(cls, entry: Entry) -> dict[str, Outline]:
        """Codes and scales."""
        rows, columns = entry.shape
        _check_levels(levels := entry.whole("levels", 3, MOST))
        size = packed_size(rows * columns, levels)
        return {"codes": Outline("uint8", (size,)), "scales": Outline("float16", (rows,))}

    @classmethod
    def unpack(cls, entry: Entry, packed: Mapping[str, Array]) -> Self:
        """Refuses scales that are not finite."""
        check_finite(f"{entry.name}.scales", packed["scales"])
        levels = entry.facts["levels"]
        codes = unpack_signed(packed["codes"], entry.shape, -(levels // 2), levels)
        return cls(codes.astype(np.int8), packed["scales"], levels)


def _check_levels(levels: int) -> None:
    if not 3 <= levels <= MOST or levels % 2 == 0:
        raise G2Error(f"the K of levels:K must be an odd number from 3 to {MOST}, got {levels}")


def _nearest(values: "Tensor", scales: "Tensor", highest: int) -> "Tensor":
    """The nearest codes, still in float32; 0 where the scale is 0."""
    import torch

    return torch.where(scales != 0, values / scales, 0.0).round_().clamp_(-highest, highest)
