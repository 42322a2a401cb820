"""`Dense`: a matrix as it is, in float32 or float16."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from g2lstm.compression.encodings.base import Arguments, Array, Encoding, Entry, Floats, Numbers, Outline, check_values
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from torch import Tensor

_DTYPES = {"dense": "float32", "half": "float16"}


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Encoding):
    """A matrix as it is.

    Attributes:
        values: (rows, columns), float32, or float16 in the factors of a low-rank matrix.
    """

    kinds: ClassVar = {"dense": (), "half": ()}

    values: Array

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.size == 0 or str(self.values.dtype) not in _DTYPES.values():
            raise G2Error(
                "the values of a dense matrix must be float32 or float16 with at least one row and one column, "
                f"got {self.values.dtype} of shape {self.values.shape}"
            )

    @classmethod
    def encode(cls, values: "Tensor", arguments: Arguments) -> Self:
        return cls(check_values(values).clone().numpy())  # without the copy it might be the model's own memory

    @classmethod
    def in_half(cls, values: "Tensor") -> Self:
        """In float16 where that rounds no more than float16 must; else in float32."""
        weights = check_values(values)
        half = weights.half()
        error = float((half.double() - weights.double()).norm())
        return cls((half if error <= 2**-11 * float(weights.double().norm()) else weights).numpy())

    @property
    def kind(self) -> str:
        return "dense" if self.values.dtype == np.float32 else "half"

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    def rows(self, numbers: Numbers) -> Floats:
        return self.values[numbers].astype(np.float32)

    def pack(self) -> dict[str, Array]:
        return {"values": self.values}

    @classmethod
    def outlines(cls, entry: Entry) -> dict[str, Outline]:
        return {"values": Outline(_DTYPES[entry.kind], entry.shape)}

    @classmethod
    def unpack(cls, entry: Entry, packed: Mapping[str, Array]) -> Self:
        return cls(packed["values"])
