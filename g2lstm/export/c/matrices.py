"""`Stored`: a weight matrix as the C code reads it; `templates/products.c` describes it from the other side."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression.encodings import Coded, Dense, Encoding

ROWS = 16  # of a panel
CHUNKS = {2: 16, 3: 32, 4: 8, 6: 16, 8: 8}  # the columns that are packed together, by the bits of a code
_FULL = 127 * 256 + 127  # the largest code of a vector
_MOST_ODD = 4  # bits of odd codes
_GROUPED, _ODD = 64, 128  # are added to the number of a form


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
    codes, group = matrix.codes[rows].astype(np.int32), matrix.group
    low, high, odd = int(codes.min()), int(codes.max()), bool((codes & 1).all())
    fitting = (
        (bits, is_odd)
        for bits, chunk in CHUNKS.items()
        for is_odd in (False, True)
        if (group or 0) % chunk == 0 and _holds(bits, is_odd, low, high) and (odd or not is_odd)
    )
    bits, is_odd = next(fitting, (0, False))
    if not bits:
        return None
    unsigned = (codes + 2**bits - 1) // 2 if is_odd else codes + 2 ** (bits - 1)
    form, data, shape = bits + (_ODD if is_odd else 0), _pack(unsigned.astype(np.uint8), bits), _shape(codes)
    if group is not None:
        groups = _columns(matrix.group_scales[rows].astype(np.float16)).view(np.uint16)
        return Stored(form + _GROUPED, shape, data, groups=groups, factor=factor, span=group)
    scales = matrix.row_scales(factor)[rows]
    span = (2**31 - 1) // (_FULL * (2**bits if is_odd else 2 ** (bits - 1))) // 32 * 32
    if (scales == scales[0]).all():
        return Stored(form, shape, data, factor=float(scales[0]), span=span)
    return Stored(form, shape, data, _cut(scales[:, None]).reshape(-1), span=span)


def _shape(values: NDArray[Any]) -> tuple[int, int]:
    return len(values), values.shape[1]


def _holds(bits: int, is_odd: bool, low: int, high: int) -> bool:
    """Whether codes from the lowest to the highest fit; of odd ones, -3, -1, 1 and 3 take two bits."""
    if is_odd:
        return bits <= _MOST_ODD and -(2**bits) < low <= high < 2**bits
    return -(2 ** (bits - 1)) <= low <= high < 2 ** (bits - 1)


def _cut(rows: NDArray[Any], multiple: int = 1) -> NDArray[Any]:
    """Cuts rows (n, m) into panels padded with zeros: (panels, ROWS, columns)."""
    count, width = rows.shape
    padded = np.zeros((-(-count // ROWS) * ROWS, -(-width // multiple) * multiple), rows.dtype)
    padded[:count, :width] = rows
    return padded.reshape(-1, ROWS, padded.shape[1])


def _columns(rows: NDArray[Any]) -> NDArray[Any]:
    """Panels in which the numbers of a column are neighbours: (panels, columns · ROWS)."""
    panels = _cut(rows)
    return np.ascontiguousarray(panels.swapaxes(1, 2)).reshape(len(panels), -1)


def _pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint32]:
    """Words in which the bytes are neighbouring columns: (panels, words). Padding meets columns that are 0."""
    panels = _cut(codes, CHUNKS[bits])
    # (fours, panels, chunks, ROWS, columns): the columns of a chunk are cut into fours
    fours = panels.reshape(len(panels), ROWS, -1, CHUNKS[bits] // 4, 4).transpose(3, 0, 2, 1, 4)
    if bits == 8:
        words = [fours[0], fours[1]]
    elif bits == 6:
        words = [fours[k] | (fours[3] >> 2 * k & 3) << 6 for k in range(3)]
    elif bits == 3:
        pairs = [fours[2 * k] | fours[2 * k + 1] << 3 for k in range(3)]
        words = [pairs[0] | (fours[6] & 3) << 6, pairs[1] | (fours[7] & 3) << 6]
        words.append(pairs[2] | fours[6] >> 2 << 6 | fours[7] >> 2 << 7)
    else:
        words = [np.bitwise_or.reduce([four << bits * k for k, four in enumerate(fours)])]
    packed = np.ascontiguousarray(np.stack(words, axis=2)).view("<u4")  # (panels, chunks, words, ROWS, 1)
    return packed.reshape(len(panels), -1).astype(np.uint32)
