"""`GroupInt4`: int4, integers with one scale per group of columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from g2lstm.compression.encodings.base import Arguments, Array, Entry, Floats, Outline, check_matrix, check_values
from g2lstm.compression.encodings.coded import Coded, best_scales, check_range, check_scales, nearest_codes
from g2lstm.compression.encodings.packing import pack_signed, packed_size, unpack_signed
from g2lstm.compression.encodings.panels import CHUNK, LONGEST_GROUP, Panels, group_panels
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from torch import Tensor

GROUP = 32  # columns that share a scale


@dataclass(frozen=True, eq=False, repr=False)
class GroupInt4(Coded):
    """Four bits per weight and one scale per group of columns in a row: value = code · scale of the group.

    Attributes:
        codes: (rows, columns), int8, each from -8 to 7.
        scales: (rows, groups), float16; the last group of a row may be shorter.
        group: columns per group.
    """

    kinds: ClassVar = ("int4",)
    keys: ClassVar = ("group",)
    forms: ClassVar = ("int4",)

    codes: Array
    scales: Array
    group: int = GROUP

    def __post_init__(self) -> None:
        check_matrix("the codes of an int4 matrix", self.codes, "int8")
        check_range("an int4 matrix", self.codes, 4)
        if self.group < 1:
            raise G2Error(f"a group of an int4 matrix must have at least one column, got {self.group}")
        rows, columns = self.shape
        check_scales("an int4 matrix", self.scales, "float16", (rows, -(-columns // self.group)))

    @classmethod
    def encode(cls, values: "Tensor", arguments: Arguments) -> Self:
        """Groups of 32 columns in 16 steps each, with the scale of least squared error.

        Scales are float16, so a group of weights below 2e-7 becomes 0, and the largest weight can be 8 times the
        largest float16, which is 524 032.
        """
        import torch

        weights = check_values(values)
        greatest, most = float(weights.abs().max()), 8 * torch.finfo(torch.float16).max
        if greatest > most:
            raise G2Error(f"int4 holds weights up to {most:.0f}, got {greatest:.3g}; use int8")
        rows, columns = weights.shape
        groups = torch.nn.functional.pad(weights, (0, -columns % GROUP)).view(rows, -1, GROUP)
        scales = best_scales(groups, 4, torch.float16)
        codes = nearest_codes(groups, scales, 4).view(rows, -1)[:, :columns]
        return cls(codes.contiguous().numpy(), scales.squeeze(2).numpy())

    @cached_property
    def group_scales(self) -> Floats:
        """The scales in float32."""
        return self.scales.astype(np.float32)

    def panels(self, panel: int, parts: int = 1, factor: float = 1.0) -> Panels:
        """Codes of four bits, with the scales of each group before them."""
        if self.group % CHUNK or not CHUNK <= self.group <= LONGEST_GROUP:
            raise G2Error(
                f"the kernel reads groups of 8, 16, ... {LONGEST_GROUP} columns, got groups of {self.group}; "
                "compress with such a group, or use the plain session"
            )
        return group_panels(self.codes, self.scales, self.group, factor, panel, parts)

    def facts(self) -> dict[str, Any]:
        """The columns per group."""
        return {"group": self.group}

    def pack(self) -> dict[str, Array]:
        """Two codes per byte, and the scales."""
        return {"codes": pack_signed(self.codes, -8, 16), "scales": self.scales}

    @classmethod
    def outlines(cls, entry: Entry) -> dict[str, Outline]:
        """Packed codes and scales."""
        if (group := entry.whole("group", CHUNK, LONGEST_GROUP)) % CHUNK:  # the kernel could not read it
            raise entry.refuse(f" must have a group that is a multiple of {CHUNK}, got {group}")
        rows, columns = entry.shape
        scales = Outline("float16", (rows, -(-columns // group)))
        return {"codes": Outline("uint8", (packed_size(rows * columns, 16),)), "scales": scales}

    @classmethod
    def unpack(cls, entry: Entry, packed: Mapping[str, Array]) -> Self:
        """From packed codes and scales."""
        codes = unpack_signed(packed["codes"], entry.shape, -8, 16).astype(np.int8)
        return cls(codes, packed["scales"], entry.facts["group"])
