"""Encoded matrices: what is kept of a weight matrix, how many bytes that takes, and the numbers it stands for."""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from g2lstm.compression.packing import packed_size
from g2lstm.errors import G2Error

HIGHEST_CODE = 2**15 - 1  # of a grid, on either side of 0
LEAST, GREATEST = 1e-30, 1e30  # of steps and scales, and of weights: float32 has room on both sides


@dataclass(frozen=True, eq=False)
class Dense:
    """A matrix as it is.

    Attributes:
        values: (rows, columns) float32, or float16 for the factors of a matrix of low rank.
    """

    values: Tensor

    def __post_init__(self) -> None:
        _check_matrix("the values of a dense matrix", self.values, torch.float32, torch.float16)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return _shape(self.values)

    @property
    def stored_bytes(self) -> int:
        """What a file holds of it, without the header; so with the other classes."""
        return self.values.numel() * self.values.element_size()

    def dequantize(self) -> Tensor:
        """The matrix it stands for: (rows, columns) float32; so with the other classes."""
        return self.values.float()

    def tensors(self) -> dict[str, Tensor]:
        """The tensors it consists of, by name; so with the other classes."""
        return {"values": self.values}


@dataclass(frozen=True, eq=False)
class Grid:
    """Multiples of a step, from `round` with or without `clip`: value = code · step.

    Attributes:
        codes: (rows, columns) int8 or int16.
        step: R of round:R.
    """

    codes: Tensor
    step: float

    def __post_init__(self) -> None:
        _check_matrix("the codes of a grid", self.codes, torch.int8, torch.int16)
        check_step(self.step)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return _shape(self.codes)

    @property
    def lowest(self) -> int:
        """The lowest code there is; files hold codes less this."""
        return int(self.codes.min())

    @property
    def levels(self) -> int:
        """How many levels there are from the lowest code to the highest, at least 2, as `packing.pack` takes them."""
        return max(int(self.codes.max()) - self.lowest + 1, 2)

    @property
    def stored_bytes(self) -> int:
        """The codes, packed."""
        return packed_size(self.codes.numel(), self.levels)

    def dequantize(self) -> Tensor:
        """Each code times the step."""
        return self.codes.float() * self.step

    def tensors(self) -> dict[str, Tensor]:
        """The codes, unpacked."""
        return {"codes": self.codes}


@dataclass(frozen=True, eq=False)
class RowIntegers:
    """Eight or six bits a weight and one scale a row: value = code · scale of the row.

    Attributes:
        codes: (rows, columns) int8; with six bits each -32 ... 31.
        scales: (rows,) float32.
        bits: that a file has of a code, 8 or 6.
    """

    codes: Tensor
    scales: Tensor
    bits: int = 8

    def __post_init__(self) -> None:
        if self.bits not in (6, 8):
            raise G2Error(f"integers with a scale a row have 6 or 8 bits, got {self.bits}")
        what = f"an int{self.bits} matrix"
        _check_matrix(f"the codes of {what}", self.codes, torch.int8)
        _check_range(what, self.codes, self.bits)
        _check_scales(what, self.scales, torch.float32, (len(self.codes),))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return _shape(self.codes)

    @property
    def stored_bytes(self) -> int:
        """Packed codes and the scales."""
        return packed_size(self.codes.numel(), 2**self.bits) + 4 * self.scales.numel()

    def dequantize(self) -> Tensor:
        """Each code times the scale of its row."""
        return self.codes.float() * self.scales.unsqueeze(1)

    def tensors(self) -> dict[str, Tensor]:
        """Codes and scales."""
        return {"codes": self.codes, "scales": self.scales}


@dataclass(frozen=True, eq=False)
class GroupInt4:
    """Four bits a weight and one scale for each group of columns in a row: value = code · scale of the group.

    Attributes:
        codes: (rows, columns) int8, each -8 ... 7.
        scales: (rows, groups) float16; the last group of a row may be shorter.
        group: columns of a group.
    """

    codes: Tensor
    scales: Tensor
    group: int

    def __post_init__(self) -> None:
        _check_matrix("the codes of an int4 matrix", self.codes, torch.int8)
        _check_range("an int4 matrix", self.codes, 4)
        if self.group < 1:
            raise G2Error(f"a group of an int4 matrix must have at least one column, got {self.group}")
        rows, columns = self.shape
        _check_scales("an int4 matrix", self.scales, torch.float16, (rows, -(-columns // self.group)))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return _shape(self.codes)

    @property
    def stored_bytes(self) -> int:
        """Packed codes and the scales."""
        return packed_size(self.codes.numel(), 16) + 2 * self.scales.numel()

    def dequantize(self) -> Tensor:
        """Each code times the scale of its group."""
        group = torch.arange(self.shape[1], device=self.codes.device) // self.group  # of each column
        return self.codes.float() * self.scales.float()[:, group]

    def tensors(self) -> dict[str, Tensor]:
        """Codes, unpacked, and scales."""
        return {"codes": self.codes, "scales": self.scales}


@dataclass(frozen=True, eq=False)
class LowRank:
    """The product of two thin matrices, which is never to be multiplied out to run it: left (right x).

    Attributes:
        left: (rows, K).
        right: (K, columns).
    """

    left: "Dense | RowIntegers | GroupInt4"
    right: "Dense | RowIntegers | GroupInt4"

    def __post_init__(self) -> None:
        if self.left.shape[1] != self.right.shape[0]:
            raise G2Error(
                f"the factors of a matrix of low rank do not fit: {_words(self.left.shape)} and "
                f"{_words(self.right.shape)}; the file is damaged"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the product."""
        return self.left.shape[0], self.right.shape[1]

    @property
    def rank(self) -> int:
        """K of svd:K."""
        return self.left.shape[1]

    @property
    def stored_bytes(self) -> int:
        """Both factors."""
        return self.left.stored_bytes + self.right.stored_bytes

    def dequantize(self) -> Tensor:
        """The product."""
        return self.left.dequantize() @ self.right.dequantize()

    def tensors(self) -> dict[str, Tensor]:
        """Those of both factors: "left.values" and so on."""
        factors = {"left": self.left, "right": self.right}
        return {f"{side}.{name}": tensor for side, one in factors.items() for name, tensor in one.tensors().items()}


Encoded: TypeAlias = Dense | Grid | RowIntegers | GroupInt4 | LowRank


def check_step(step: float) -> None:
    """A step of a grid that float32 can count in."""
    if not LEAST <= step <= GREATEST:  # NaN is neither
        raise G2Error(f"the R of round:R must lie between {LEAST} and {GREATEST}, got {step}")


def _words(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _shape(matrix: Tensor) -> tuple[int, int]:
    rows, columns = matrix.shape
    return rows, columns


def _check_matrix(what: str, tensor: Tensor, *dtypes: torch.dtype) -> None:
    if tensor.dim() != 2 or tensor.numel() == 0 or tensor.dtype not in dtypes:
        raise G2Error(
            f"{what} must be {' or '.join(map(str, dtypes))} with at least one row and one column, "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )


def _check_range(what: str, codes: Tensor, bits: int) -> None:
    half, lowest, highest = 2 ** (bits - 1), int(codes.min()), int(codes.max())
    if not -half <= lowest <= highest < half:
        raise G2Error(
            f"the codes of {what} must be {-half} to {half - 1}, got {lowest} to {highest}; the file is damaged"
        )


def _check_scales(what: str, scales: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if scales.dtype != dtype or tuple(scales.shape) != shape:
        raise G2Error(
            f"the scales of {what} must be {dtype} of shape {shape}, got {scales.dtype} of shape {tuple(scales.shape)}"
        )
    if not scales.float().abs().max() <= GREATEST:  # in float16 infinity would be
        raise G2Error(
            f"the scales of {what} must be at most {GREATEST}, and there is a NaN or more; the file is damaged"
        )
