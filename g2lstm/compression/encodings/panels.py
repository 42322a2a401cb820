"""The order in which the compiled kernel reads matrices; `nn/csrc/products.h` describes it from the other side."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DENSE, INT8, INT4, INT3, GROUPED_INT4 = range(5)
CHUNK, CHUNK3 = 8, 32  # columns are padded to a multiple of CHUNK, those of INT3 to a multiple of CHUNK3
LONGEST_GROUP = 4096
_FORMS = {3: INT3, 4: INT4, 8: INT8}  # by the bits of a code

Bytes = NDArray[np.uint8]


class Panels(NamedTuple):
    """A matrix as the kernel reads it.

    Attributes:
        form: DENSE, INT8, INT4, INT3 or GROUPED_INT4.
        group: the columns per scale of GROUPED_INT4, else 0.
        data: (panels, bytes).
    """

    form: int
    group: int
    data: Bytes


def dense_panels(values: NDArray[np.float32], panel: int) -> Panels:
    """Values (n, m) in panels of `panel` rows."""
    return Panels(DENSE, 0, _flat(_bytes(_cut(values, panel, CHUNK).swapaxes(1, 2))))


def row_panels(codes: NDArray[Any], scales: NDArray[np.float32], panel: int) -> Panels:
    """Codes (n, m) of at most eight bits, with one scale per row (n,)."""
    bits = next(bits for bits in _FORMS if -(2 ** (bits - 1)) <= codes.min() <= codes.max() < 2 ** (bits - 1))
    return Panels(_FORMS[bits], 0, np.hstack([_flat(_pack_codes(codes, panel, bits)), vector_panels(scales, panel)]))


def group_panels(codes: NDArray[Any], scales: NDArray[np.float16], group: int, factor: float, panel: int) -> Panels:
    """Codes (n, m) of four bits, with one scale per group of columns (n, groups), times `factor`."""
    group_scales = _bytes(_cut(scales, panel, 1).swapaxes(1, 2))
    chunks = _interleave(_pack_codes(codes, panel, 4), group_scales, group // CHUNK)
    factors = vector_panels(np.full(len(codes), factor, np.float32), panel)
    return Panels(GROUPED_INT4, group, np.hstack([chunks, factors]))


def vector_panels(values: NDArray[np.float32], panel: int) -> Bytes:
    """One number per row (n,), such as a bias: (panels, bytes)."""
    return _bytes(_cut(values[:, None], panel, 1)[..., 0])


def _cut(rows: NDArray[Any], panel: int, multiple: int) -> NDArray[Any]:
    """Cuts rows (n, m) into panels padded with zeros: (panels, panel, columns)."""
    count, width = rows.shape
    padded = np.zeros((-(-count // panel) * panel, -(-width // multiple) * multiple), rows.dtype)
    padded[:count, :width] = rows
    return padded.reshape(-1, panel, padded.shape[1])


def _pack_codes(codes: NDArray[Any], panel: int, bits: int) -> Bytes:
    """Packs codes (n, m) into bytes (panels, chunks, bytes)."""
    chunk = CHUNK3 if bits == 3 else CHUNK
    rows = _cut(codes.astype(np.int16), panel, chunk)
    unsigned = (rows + (1 << bits - 1)).astype(np.uint8)
    fours = unsigned.reshape(*rows.shape[:2], -1, chunk // 4, 4)  # (panels, panel, chunks, fours, columns)
    a = fours.transpose(3, 0, 2, 1, 4)  # (fours, panels, chunks, panel, columns)
    if bits == 8:
        words = [a[0], a[1]]
    elif bits == 4:
        words = [a[0] | a[1] << 4]
    else:
        words = [a[0] | a[1] << 3 | (a[6] & 3) << 6, a[2] | a[3] << 3 | (a[7] & 3) << 6]
        words.append(a[4] | a[5] << 3 | a[6] >> 2 << 6 | a[7] >> 2 << 7)
    packed = np.stack(words, axis=2)
    return packed.reshape(*packed.shape[:2], -1)


def _interleave(chunks: Bytes, scales: Bytes, chunks_in_group: int) -> Bytes:
    """Puts the scales of a group (panels, groups, bytes) before its chunks (panels, chunks, bytes)."""
    panels, count, size = chunks.shape
    groups, scale_size = scales.shape[1:]
    padded = np.zeros((panels, groups * chunks_in_group, size), np.uint8)
    padded[:, :count] = chunks
    both = np.concatenate([scales, padded.reshape(panels, groups, -1)], axis=-1)
    return both.reshape(panels, -1)[:, : groups * scale_size + count * size]


def _bytes(values: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(values).view(np.uint8)


def _flat(panels: Bytes) -> Bytes:
    return panels.reshape(len(panels), -1)
