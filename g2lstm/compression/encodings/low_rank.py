"""`LowRank`: a matrix as the product of two thin ones, from its singular value decomposition."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from g2lstm.compression.encodings.base import (
    FORMS,
    KINDS,
    Arguments,
    Array,
    Encoding,
    Entry,
    Floats,
    Numbers,
    Outline,
    check_values,
    form_of,
)
from g2lstm.compression.encodings.dense import Dense
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from torch import Tensor

_FACTOR_FORMS = [form for form, encoding in FORMS.items() if encoding.is_factor]
_FACTOR_KINDS = [kind for kind, encoding in KINDS.items() if encoding.is_factor]


@dataclass(frozen=True, eq=False, repr=False)
class LowRank(Encoding):
    """The product of two thin matrices; sessions and exports multiply a vector by one, then by the other.

    Attributes:
        left: (rows, K).
        right: (K, columns).
    """

    kinds: ClassVar = {"low_rank": ("rank", "left", "right")}
    forms: ClassVar = ("svd:K", *(f"svd:K,{form}" for form in _FACTOR_FORMS))
    is_factor: ClassVar = False

    left: Encoding
    right: Encoding

    @classmethod
    def encode(cls, values: "Tensor", arguments: Arguments) -> Self:
        """The nearest matrix of this rank, from the largest singular values.

        Each factor gets the square roots of the singular values, so that the numbers in both are of one size and keep
        about as many digits as integers. Unless they are to be integers they become float16, which rounds far less than
        the low rank leaves out, or float32 where their numbers are too large or too small for that.
        """
        import torch

        (_, rank), *inner = arguments.items()
        weights = check_values(values)
        rows, columns = weights.shape
        if rank is None or not 1 <= rank <= min(rows, columns):
            raise G2Error(
                f"a matrix of {rows} x {columns} has ranks 1 to {min(rows, columns)}, got svd:{rank}; use another K"
            )
        left, singular, right = torch.linalg.svd(weights.double(), full_matrices=False)
        root = singular[: int(rank)].sqrt()
        factors = left[:, : int(rank)] * root, root.unsqueeze(1) * right[: int(rank)]
        if not inner:
            return cls(*map(Dense.in_half, factors))
        encoding = FORMS[form_of(dict(inner))]
        return cls(*(encoding.encode(factor, dict(inner)) for factor in factors))

    @classmethod
    def check(cls, arguments: Arguments) -> None:
        inner = {name: number for name, number in arguments.items() if name != "svd"}
        if inner:
            FORMS[form_of(inner)].check(inner)

    @property
    def shape(self) -> tuple[int, int]:
        return self.left.shape[0], self.right.shape[1]

    @property
    def rank(self) -> int:
        """K of svd:K."""
        return self.left.shape[1]

    @cached_property
    def _right(self) -> Floats:
        return self.right.decode()

    def rows(self, numbers: Numbers) -> Floats:
        return self.left.rows(numbers) @ self._right

    def decode(self) -> Floats:
        """The product, in float64 and then rounded: so it does not depend on the order in which a library adds."""
        return (self.left.decode().astype(np.float64) @ self.right.decode().astype(np.float64)).astype(np.float32)

    def factors(self) -> list[Encoding]:
        return [self.right, self.left]

    def pack(self) -> dict[str, Array]:
        sides = {"left": self.left, "right": self.right}
        return {f"{side}.{name}": array for side, one in sides.items() for name, array in one.packed.items()}

    @classmethod
    def outlines(cls, entry: Entry) -> dict[str, Outline]:
        rows, columns = entry.shape
        rank = entry.whole("rank", 1, min(rows, columns))
        found: dict[str, Outline] = {}
        for side, shape in {"left": (rows, rank), "right": (rank, columns)}.items():
            factor = _factor(entry, side)
            found |= {f"{side}.{name}": outline for name, outline in factor.outlines.items()}
            if factor.shape != shape:
                got = " x ".join(map(str, factor.shape))
                raise entry.refuse(f": its {side} factor must be {shape[0]} x {shape[1]}, got {got}")
        return found

    @classmethod
    def unpack(cls, entry: Entry, packed: Mapping[str, Array]) -> Self:
        sides = []
        for side in ("left", "right"):
            own = {name.removeprefix(f"{side}."): array for name, array in packed.items() if name.startswith(side)}
            sides.append(_factor(entry, side).unpack(own))
        return cls(*sides)


def _factor(entry: Entry, side: str) -> Entry:
    return Entry(f"{entry.name}.{side}", entry.facts[side], _FACTOR_KINDS)
