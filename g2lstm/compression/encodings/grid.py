"""`Grid`: the paper's rounding and clipping, where every weight is a multiple of one step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from g2lstm.compression.encodings.base import (
    GREATEST,
    LEAST,
    Arguments,
    Array,
    Coded,
    Entry,
    Floats,
    Outline,
    brief,
    check_values,
)
from g2lstm.compression.encodings.panels import MOST_LEVELS, pack_signed, packed_size, unpack_signed
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from torch import Tensor

HIGHEST_CODE = 2**15 - 1  # on either side of 0


@dataclass(frozen=True, eq=False, repr=False)
class Grid(Coded):
    """Multiples of a step: value = code · step.

    Attributes:
        codes: (rows, columns), int8, or int16 where that is too narrow.
        step: R of round:R.
    """

    kinds: ClassVar = {"grid": ("step", "lowest", "levels")}
    forms: ClassVar = ("round:R", "round:R,clip:C")
    is_factor: ClassVar = False
    derived: ClassVar = ("lowest", "levels", "bits_per_weight")

    codes: Array
    step: float

    @classmethod
    def encode(cls, values: "Tensor", arguments: Arguments) -> Self:
        """round_R(x) = round(x / R) R and clip_C(x) = clip(x, -C, C), computed in float32.

        A quotient halfway between two integers goes to the even one, as in NumPy and PyTorch. Every value stays on the
        grid: a C that is not a multiple of R counts as the next lower multiple. The paper uses multiples (0.4 of 0.2,
        1.0 of 0.5).
        """
        import torch

        cls.check(arguments)
        step, limit = arguments["round"], arguments.get("clip")
        assert step is not None
        weights = check_values(values)
        codes = (weights / torch.tensor(step, dtype=torch.float32)).round_()
        if limit is not None:
            highest = math.floor(min(limit / step * (1 + 1e-6), HIGHEST_CODE + 1))  # 0.6 / 0.2 is a little below 3
            codes.clamp_(-highest, highest)
        if (top := codes.abs().max()) > HIGHEST_CODE:
            greatest = float(weights.abs().max())
            raise G2Error(
                f"round:{step} is too fine: a weight of {greatest:.3g} would be step number {greatest / step:.6g}, and "
                f"a file has room for {HIGHEST_CODE} on either side of 0; use round:R with R of at least "
                f"{_rounded_up(greatest / HIGHEST_CODE):g}"
            )
        return cls(codes.to(torch.int8 if top <= 127 else torch.int16).numpy(), float(step))

    @classmethod
    def check(cls, arguments: Arguments) -> None:
        step, limit = arguments["round"], arguments.get("clip")
        _check_step(step)
        if limit is not None and step is not None and not limit >= step:
            raise G2Error(f"clip:{limit!r} leaves only the level 0 of round:{step!r}; C must be at least R")

    @cached_property
    def group_scales(self) -> Floats:
        return np.full((len(self.codes), 1), self.step, np.float32)

    def row_scales(self, factor: float) -> Floats:
        """The step times `factor` for each row, rounded once."""
        return np.full(len(self.codes), factor * self.step, np.float32)

    @cached_property
    def lowest(self) -> int:
        """The lowest code; files hold codes minus this."""
        return int(self.codes.min())

    @cached_property
    def levels(self) -> int:
        """The number of levels from the lowest code to the highest, at least 2."""
        return max(int(self.codes.max()) - self.lowest + 1, 2)

    def pack(self) -> dict[str, Array]:
        return {"codes": pack_signed(self.codes, self.lowest, self.levels)}

    @classmethod
    def outlines(cls, entry: Entry) -> dict[str, Outline]:
        _check_step(entry.number("step"))
        entry.whole("lowest", -HIGHEST_CODE - 1, HIGHEST_CODE)
        levels = entry.whole("levels", 2, MOST_LEVELS)
        return {"codes": Outline("uint8", (packed_size(entry.shape[0] * entry.shape[1], levels),))}

    @classmethod
    def unpack(cls, entry: Entry, packed: Mapping[str, Array]) -> Self:
        codes = unpack_signed(packed["codes"], entry.shape, entry.facts["lowest"], entry.facts["levels"])
        if (top := int(np.abs(codes).max())) > HIGHEST_CODE:
            raise G2Error(f"the codes of {brief(entry.name)} must be at most {HIGHEST_CODE}, got {top}")
        return cls(codes.astype(np.int8 if top <= 127 else np.int16), entry.facts["step"])


def _check_step(step: float | None) -> None:
    if step is None or not LEAST <= step <= GREATEST:  # true for NaN too
        raise G2Error(f"the R of round:R must lie between {LEAST} and {GREATEST}, got {step}")


def _rounded_up(number: float) -> float:
    """To two digits."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 1)
    return math.ceil(number / unit) * unit
