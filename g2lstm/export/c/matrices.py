"""`Stored`: a weight matrix as the C code reads it; `templates/products.c` describes it from the other side."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression.encodings import Coded, Dense, Encoding
from g2lstm.compression.encodings.panels import Form, cut, narrowest, pack_codes

ROWS = 16  # of a panel
_FULL = 127 * 256 + 127  # the largest code of a vector
_GROUPED, _ODD = 64, 128  # are added to the number of a form
_FORMS = [  # those with fewer bits first
    Form(bits, is_odd, is_grouped)
    for bits in (2, 3, 4, 6, 8)
    for is_odd in (False, True)[: 2 if bits <= 4 else 1]
    for is_grouped in (False, True)
]


@dataclass(frozen=True, eq=False)
class Stored:
    """A matrix in panels of rows.

    Attributes:
        form: its number in the C code: the bits of a code, plus 64 if groups of columns have scales, plus 128 if all
            codes are odd; 32 or 16 for floats.
        shape: rows and columns.
        data: (panels, numbers or words).
        scales: one per row, padded to whole panels, if they differ.
        groups: float16 as integers, (panels, groups, rows), if there are groups.
        factor: of the whole matrix.
        span: the columns whose products can be summed in 32 bits, or those of a group.
    """

    form: int
    shape: tuple[int, int]
    data: NDArray[Any]
    scales: NDArray[np.float32] | None = None
    groups: NDArray[np.uint16] | None = None
    factor: float = 1.0
    span: int = 0

    @property
    def is_coded(self) -> bool:
        """Whether vectors are rounded to 16 bits before they meet it."""
        return self.form not in (16, 32)

    @property
    def features(self) -> set[str]:
        """The parts of the C code that it needs."""
        if not self.is_coded:
            return {f"float{self.form}"}
        bits = self.form % _GROUPED
        name = f"{'odd' if self.form >= _ODD else ''}{'codes' if self.groups is None else 'grouped'}{bits}"
        return {"codes", f"bits{bits}", name} | (set() if self.groups is None else {"groups"})

    @property
    def bytes(self) -> int:
        """Its size in flash."""
        return sum(one.nbytes for one in (self.data, self.scales, self.groups) if one is not None)


def parts_of(table: Encoding) -> list[slice]:
    """The rows of a table that are stored apart, because their codes need fewer bits than those before."""
    return table.parts(ROWS) if len(table.factors()) == 1 else [slice(0, table.shape[0])]


def stored(matrix: Encoding, factor: float = 1.0, rows: slice = slice(None)) -> Stored:
    """A matrix times `factor`, or some of its rows, as small as the C code can read it.

    Codes of up to eight bits stay codes, with the scales of their rows in float32 or of their groups in float16. Dense
    matrices stay float32 or float16. Everything else becomes float32.
    """
    if isinstance(matrix, Coded) and (packed := _packed(matrix, factor, rows)) is not None:
        return packed
    if isinstance(matrix, Dense) and matrix.values.dtype == np.float16:
        halves = matrix.values[rows]
        return Stored(16, _shape(halves), _columns(halves).view(np.uint16), factor=factor)
    values = matrix.decode()[rows] * np.float32(factor)
    return Stored(32, _shape(values), _columns(values))


def _packed(matrix: Coded, factor: float, rows: slice) -> Stored | None:
    codes, group = matrix.codes[rows], matrix.group
    if (form := narrowest(codes, group or 0, _FORMS)) is None:
        return None
    number, shape = form.bits + _GROUPED * form.is_grouped + _ODD * form.is_odd, _shape(codes)
    data = pack_codes(codes, ROWS, form).view("<u4").astype(np.uint32)
    data = data.reshape(len(data), -1)
    if group is not None:
        groups = _columns(matrix.group_scales[rows].astype(np.float16)).view(np.uint16)
        return Stored(number, shape, data, groups=groups, factor=factor, span=group)
    scales = matrix.row_scales(factor)[rows]
    largest = 2**form.bits if form.is_odd else 2 ** (form.bits - 1)
    span = (2**31 - 1) // (_FULL * largest) // 32 * 32
    if (scales == scales[0]).all():
        return Stored(number, shape, data, factor=float(scales[0]), span=span)
    return Stored(number, shape, data, cut(scales[:, None], ROWS).reshape(-1), span=span)


def _shape(values: NDArray[Any]) -> tuple[int, int]:
    return len(values), values.shape[1]


def _columns(rows: NDArray[Any]) -> NDArray[Any]:
    """Panels in which the numbers of a column are neighbours: (panels, columns · ROWS)."""
    panels = cut(rows, ROWS)
    return np.ascontiguousarray(panels.swapaxes(1, 2)).reshape(len(panels), -1)
