"""`Integers`: int8, int6 and int4, integers with one scale per row or per group of columns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from g2lstm.compression.encodings.base import Arguments, Array, Coded, Entry, Outline, check_group, check_values
from g2lstm.compression.encodings.panels import CHUNK, pack_signed, packed_size, unpack_signed
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GROUP = 32  # columns that share a scale of int4 unless a spec says otherwise
_RATIOS = tuple(1 - k / 64 for k in range(25))  # the shares of a group's range that its codes may cover
_FEW_RATIOS = (_RATIOS[2], _RATIOS[8])  # the best for six bits per row and for groups of four bits


@dataclass(frozen=True, eq=False, repr=False)
class Integers(Coded):
    """Integers of few bits: value = code · scale of its row or group.

    Attributes:
        codes: (rows, columns), int8.
        scales: one per row, (rows,) float32; or one per group, (rows, groups) float16.
        bits: of a code in a file: 8, 6 or 4.
        group: columns per scale, only with 4 bits; the last group of a row may be shorter.
    """

    kinds: ClassVar = {"int4": ("group",), "int8": (), "int6": ()}
    forms: ClassVar = ("int4", "int4,group:K", "int8", "int6")

    codes: Array
    scales: Array
    bits: int = 8
    group: int | None = None

    @classmethod
    def encode(cls, values: "Tensor", arguments: Arguments) -> Self:
        """Rounds to the nearest codes.

        With int8, the largest weight of a row is 127 or -127. With int6 and int4 the scale of a row or of a group of
        columns, 32 unless given, is the one with the least squared error. The scales of int4 are float16, so a group of
        weights below 2e-7 becomes 0, and the largest weight can be 8 times the largest float16, which is 524 032.
        """
        return cls._encode(values, arguments, _RATIOS)

    @classmethod
    def encode_quickly(cls, values: "Tensor", arguments: Arguments) -> Self:
        return cls._encode(values, arguments, _FEW_RATIOS)

    @classmethod
    def _encode(cls, values: "Tensor", arguments: Arguments, ratios: Sequence[float]) -> Self:
        import torch

        cls.check(arguments)
        weights = check_values(values)
        if "int8" in arguments:
            scales = weights.abs().amax(dim=1, keepdim=True) / 127
            return cls(_nearest_codes(weights, scales, 8).numpy(), scales.squeeze(1).numpy())
        if "int6" in arguments:
            scales = _best_scales(weights, 6, torch.float32, ratios)
            return cls(_nearest_codes(weights, scales, 6).numpy(), scales.squeeze(1).numpy(), 6)
        greatest, most = float(weights.abs().max()), 8 * torch.finfo(torch.float16).max
        if greatest > most:
            raise G2Error(f"int4 holds weights up to {most:.0f}, got {greatest:.3g}; use int8")
        (rows, columns), group = weights.shape, int(arguments.get("group") or GROUP)
        groups = torch.nn.functional.pad(weights, (0, -columns % group)).view(rows, -1, group)
        scales = _best_scales(groups, 4, torch.float16, ratios)
        codes = _nearest_codes(groups, scales, 4).view(rows, -1)[:, :columns]
        return cls(codes.contiguous().numpy(), scales.squeeze(2).numpy(), 4, group)

    @classmethod
    def check(cls, arguments: Arguments) -> None:
        if "group" in arguments:
            check_group(int(arguments["group"] or 0))

    @property
    def kind(self) -> str:
        return f"int{self.bits}"

    def pack(self) -> dict[str, Array]:
        half = 2 ** (self.bits - 1)
        codes = self.codes if self.bits == 8 else pack_signed(self.codes, -half, 2 * half)
        return {"codes": codes, "scales": self.scales}

    @classmethod
    def outlines(cls, entry: Entry) -> dict[str, Outline]:
        rows, columns = entry.shape
        codes, scales = Outline("int8", (rows, columns)), Outline("float32", (rows,))
        if entry.kind != "int8":
            codes = Outline("uint8", (packed_size(rows * columns, 2 ** int(entry.kind[-1])),))
        if entry.kind == "int4":
            scales = Outline("float16", (rows, -(-columns // entry.group(CHUNK))))
        return {"codes": codes, "scales": scales}

    @classmethod
    def unpack(cls, entry: Entry, packed: Mapping[str, Array]) -> Self:
        bits, codes = int(entry.kind[-1]), packed["codes"]
        if bits < 8:
            half = 2 ** (bits - 1)
            codes = unpack_signed(codes, entry.shape, -half, 2 * half).astype(np.int8)
        return cls(codes, packed["scales"], bits, entry.facts.get("group"))


def _best_scales(groups: "Tensor", bits: int, dtype: "torch.dtype", ratios: Sequence[float]) -> "Tensor":
    """The scales (..., 1) that give groups (..., n) the least squared error.

    There is one more code below 0 than above, so a scale takes the sign that puts the largest weight of its group below
    0. It pays to clip the largest weights a little for finer steps elsewhere, so several scales are tried.
    """
    import torch

    half = 2 ** (bits - 1)
    greatest = groups.gather(-1, groups.abs().argmax(dim=-1, keepdim=True))
    scales, least = (greatest / -half).to(dtype), torch.full_like(greatest, math.inf)
    widest = greatest / (1 - half)  # with which the largest weight would also have a code on the other side of 0
    for ratio in ratios:
        tried = (widest * ratio).to(dtype)
        kept = _nearest_codes(groups, tried, bits).float() * tried.float()
        error = (groups - kept).square_().sum(dim=-1, keepdim=True)
        is_better = error < least  # false where a scale is too large for float16
        scales, least = torch.where(is_better, tried, scales), torch.where(is_better, error, least)
    return scales


def _nearest_codes(values: "Tensor", scales: "Tensor", bits: int) -> "Tensor":
    """The nearest codes as int8; 0 where the scale is 0."""
    import torch

    half, steps = 2 ** (bits - 1), scales.float()
    quotients = torch.where(steps != 0, values / steps, 0.0)
    return quotients.round_().clamp_(-half, half - 1).to(torch.int8)
