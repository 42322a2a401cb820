"""`Coded`: what encodings have in common that store integers, each to be multiplied by the scale of its group."""

import math
from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from g2lstm.compression.encodings.base import GREATEST, Array, Encoding, Floats, Numbers
from g2lstm.compression.encodings.panels import Panels, row_panels
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_RATIOS = tuple(1 - k / 64 for k in range(25))  # the shares of a group's range that its codes may cover


class Coded(Encoding):
    """Integers and scales: value = code · scale of its group of columns.

    Decoding, the kernel's panels and ONNX need no more than these.

    Attributes:
        codes: (rows, columns), int8 or int16.
        group: columns per scale; None where a row has one.
    """

    codes: Array
    group: int | None = None

    @property
    @abstractmethod
    def group_scales(self) -> Floats:
        """The scales: (rows, groups)."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.codes.shape
        return rows, columns

    def rows(self, numbers: Numbers) -> Floats:
        """Each code times the scale of its group."""
        scales = self.group_scales[numbers]
        if self.group is not None:
            scales = scales.repeat(self.group, axis=1)[:, : self.shape[1]]
        values: Floats = self.codes[numbers] * scales
        return values

    def row_scales(self, factor: float) -> Floats:
        """The scales times `factor`, where each row has one: (rows,)."""
        scales: Floats = self.group_scales[:, 0] * np.float32(factor)
        return scales

    def panels(self, panel: int, parts: int = 1, factor: float = 1.0) -> Panels:
        """Packed in as few bits as the codes need; codes of more than eight bits become float32."""
        if not -128 <= self.codes.min() <= self.codes.max() <= 127:
            return super().panels(panel, parts, factor)
        return row_panels(self.codes, self.row_scales(factor), panel, parts)


def best_scales(groups: "Tensor", bits: int, dtype: "torch.dtype") -> "Tensor":
    """The scales (..., 1) that give groups (..., n) the least squared error.

    There is one more code below 0 than above, so a scale takes the sign that puts the largest weight of its group below
    0. It pays to clip the largest weights a little for finer steps elsewhere, so several scales are tried.
    """
    import torch

    half = 2 ** (bits - 1)
    greatest = groups.gather(-1, groups.abs().argmax(dim=-1, keepdim=True))
    scales, least = (greatest / -half).to(dtype), torch.full_like(greatest, math.inf)
    widest = greatest / (1 - half)  # with which the largest weight would also have a code on the other side of 0
    for ratio in _RATIOS:
        tried = (widest * ratio).to(dtype)
        kept = nearest_codes(groups, tried, bits).float() * tried.float()
        error = (groups - kept).square_().sum(dim=-1, keepdim=True)
        is_better = error < least  # false where a scale is too large for float16
        scales, least = torch.where(is_better, tried, scales), torch.where(is_better, error, least)
    return scales


def nearest_codes(values: "Tensor", scales: "Tensor", bits: int) -> "Tensor":
    """The nearest codes as int8; 0 where the scale is 0."""
    import torch

    half, steps = 2 ** (bits - 1), scales.float()
    quotients = torch.where(steps != 0, values / steps, 0.0)
    return quotients.round_().clamp_(-half, half - 1).to(torch.int8)


def check_range(what: str, codes: Array, bits: int) -> None:
    """Raises unless the codes fit in so many bits."""
    half, lowest, highest = 2 ** (bits - 1), int(codes.min()), int(codes.max())
    if not -half <= lowest <= highest < half:
        raise G2Error(
            f"the codes of {what} must be {-half} to {half - 1}, got {lowest} to {highest}; the file is damaged"
        )


def check_scales(what: str, scales: Array, dtype: str, shape: tuple[int, ...]) -> None:
    """Raises unless the scales have this type and shape, and are finite."""
    if scales.dtype != dtype or scales.shape != shape:
        raise G2Error(
            f"the scales of {what} must be {dtype} of shape {shape}, got {scales.dtype} of shape {scales.shape}"
        )
    if not np.abs(scales.astype(np.float32)).max() <= GREATEST:  # false for NaN too
        raise G2Error(f"the scales of {what} must be finite and at most {GREATEST}; the file is damaged")
