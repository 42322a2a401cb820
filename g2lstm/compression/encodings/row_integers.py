"""`RowIntegers`: int8 and int6, integers with one scale per row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from g2lstm.compression.encodings.base import Arguments, Array, Entry, Floats, Outline, check_matrix, check_values
from g2lstm.compression.encodings.coded import Coded, best_scales, check_range, check_scales, nearest_codes
from g2lstm.compression.encodings.packing import pack_signed, packed_size, unpack_signed
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class RowIntegers(Coded):
    """Eight or six bits per weight and one scale per row: value = code · scale of the row.

    Attributes:
        codes: (rows, columns), int8; each from -32 to 31 with six bits.
        scales: (rows,), float32.
        bits: of a code in a file, 8 or 6.
    """

    kinds: ClassVar = ("int8", "int6")
    forms: ClassVar = ("int8", "int6")

    codes: Array
    scales: Floats
    bits: int = 8

    def __post_init__(self) -> None:
        if self.bits not in (6, 8):
            raise G2Error(f"integers with one scale per row have 6 or 8 bits, got {self.bits}")
        what = f"an int{self.bits} matrix"
        check_matrix(f"the codes of {what}", self.codes, "int8")
        check_range(what, self.codes, self.bits)
        check_scales(what, self.scales, "float32", (len(self.codes),))

    @classmethod
    def encode(cls, values: "Tensor", arguments: Arguments) -> Self:
        """With int8, the largest weight of a row is 127 or -127; with int6 the scale has the least squared error."""
        weights = check_values(values)
        if "int8" in arguments:
            scales = weights.abs().amax(dim=1, keepdim=True) / 127
            bits = 8
        else:
            scales, bits = best_scales(weights, 6, weights.dtype), 6
        return cls(nearest_codes(weights, scales, bits).numpy(), scales.squeeze(1).numpy(), bits)

    @property
    def kind(self) -> str:
        """By its bits."""
        return f"int{self.bits}"

    @property
    def group_scales(self) -> Floats:
        """One for each row."""
        return self.scales[:, None]

    def pack(self) -> dict[str, Array]:
        """Codes of eight bits as they are, of six bits packed, and the scales."""
        codes = self.codes if self.bits == 8 else pack_signed(self.codes, -32, 64)
        return {"codes": codes, "scales": self.scales}

    @classmethod
    def outlines(cls, entry: Entry) -> dict[str, Outline]:
        """Codes and scales."""
        rows, columns = entry.shape
        packed = Outline("uint8", (packed_size(rows * columns, 64),))
        codes = Outline("int8", (rows, columns)) if entry.kind == "int8" else packed
        return {"codes": codes, "scales": Outline("float32", (rows,))}

    @classmethod
    def unpack(cls, entry: Entry, packed: Mapping[str, Array]) -> Self:
        """From codes and scales."""
        if entry.kind == "int8":
            return cls(packed["codes"], packed["scales"])
        codes = unpack_signed(packed["codes"], entry.shape, -32, 64).astype(np.int8)
        return cls(codes, packed["scales"], bits=6)
