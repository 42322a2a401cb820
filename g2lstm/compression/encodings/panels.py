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
        data: (parts, panels, bytes), for each of several equal parts of the rows.
    """

    form: int
    group: int
    data: Bytes


def dense_panels(values: NDArray[np.float32], panel: int, parts: int) -> Panels:
    """Values (parts · n, m) in panels of `panel` rows."""
    return Panels(DENSE, 0, _flat(_bytes(cut(values, panel, parts, CHUNK).swapaxes(2, 3))))


def row_panels(codes: NDArray[Any], scales: NDArray[np.float32], panel: int, parts: int) -> Panels:
    """Codes (parts · n, m) of at most eight bits, with one scale per row (parts · n,)."""
    bits = next(bits for bits in _FORMS if -(2 ** (bits - 1)) <= codes.min() <= codes.max() < 2 ** (bits - 1))
    data = [_flat(_pack_codes(codes, panel, parts, bits)), _row_scales(scales, panel, parts)]
    return Panels(_FORMS[bits], 0, np.concatenate(data, axis=-1))


def group_panels(
    codes: NDArray[Any], scales: NDArray[np.float16], group: int, factor: float, panel: int, parts: int
) -> Panels:
    """Codes (parts · n, m) of four bits, with one scale per group of columns (parts · n, groups), times `factor`."""
    group_scales = cut(scales, panel, parts, 1)
    chunks = _interleave(_pack_codes(codes, panel, parts, 4), _bytes(group_scales.swapaxes(2, 3)), group // CHUNK)
    factors = _row_scales(np.full(len(codes), factor, np.float32), panel, parts)
    return Panels(GROUPED_INT4, group, np.concatenate([chunks, factors], axis=-1))


def cut(rows: NDArray[Any], panel: int, parts: int, multiple: int) -> NDArray[Any]:
    """Cuts rows (parts · n, m) into panels padded with zeros: (parts, panels, panel, columns)."""
    each, width = len(rows) // parts, rows.shape[1]
    padded = np.zeros((parts, -(-each // panel) * panel, -(-width // multiple) * multiple), rows.dtype)
    padded[:, :each, :width] = rows.reshape(parts, each, width)
    return padded.reshape(parts, -1, panel, padded.shape[2])


def bias_panels(bias: NDArray[np.float32], panel: int, parts: int) -> Bytes:
    """The biases (parts · n,) of all parts, panel by panel: (panels, bytes)."""
    biases = cut(bias[:, None], panel, parts, 1)
    return _bytes(biases[..., 0].swapaxes(0, 1)).reshape(biases.shape[1], -1)


def _row_scales(scales: NDArray[np.float32], panel: int, parts: int) -> Bytes:
    return _bytes(cut(scales[:, None], panel, parts, 1)[..., 0])  # (parts, panels, panel · 4)


def _pack_codes(codes: NDArray[Any], panel: int, parts: int, bits: int) -> Bytes:
    """Packs codes (parts · n, m) into bytes (parts, panels, chunks, bytes)."""
    chunk = CHUNK3 if bits == 3 else CHUNK
    rows = cut(codes.astype(np.int16), panel, parts, chunk)
    unsigned = (rows + (1 << bits - 1)).astype(np.uint8)
    fours = unsigned.reshape(*rows.shape[:3], -1, chunk // 4, 4)  # (parts, panels, panel, chunks, fours, columns)
    a = fours.transpose(4, 0, 1, 3, 2, 5)  # (fours, parts, panels, chunks, panel, columns)
    if bits == 8:
        words = [a[0], a[1]]
    elif bits == 4:
        words = [a[0] | a[1] << 4]
    else:
        words = [a[0] | a[1] << 3 | (a[6] & 3) << 6, a[2] | a[3] << 3 | (a[7] & 3) << 6]
        words.append(a[4] | a[5] << 3 | a[6] >> 2 << 6 | a[7] >> 2 << 7)
    packed = np.stack(words, axis=3)
    return packed.reshape(*packed.shape[:3], -1)


def _interleave(chunks: Bytes, scales: Bytes, chunks_in_group: int) -> Bytes:
    """Puts the scales of a group (parts, panels, groups, bytes) before its chunks (parts, panels, chunks, bytes)."""
    parts, panels, count, size = chunks.shape
    groups, scale_size = scales.shape[2:]
    padded = np.zeros((parts, panels, groups * chunks_in_group, size), np.uint8)
    padded[:, :, :count] = chunks
    both = np.concatenate([scales, padded.reshape(parts, panels, groups, -1)], axis=-1)
    return both.reshape(parts, panels, -1)[..., : groups * scale_size + count * size]


def _bytes(values: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(values).view(np.uint8)


def _flat(panels: Bytes) -> Bytes:
    return panels.reshape(*panels.shape[:2], -1)
