"""Codes of few levels, packed into bytes for files: five levels take 2.33 bits a code, not three."""

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from g2lstm.errors import G2Error

MOST_LEVELS = 2**16
_MOST_BITS = 16


class Layout(NamedTuple):
    """How codes are packed: so many of them, as the digits of one number, into a word of so many bits."""

    codes: int
    bits: int


@functools.cache
def layout(levels: int) -> Layout:
    """The layout with the fewest bits a code for this many levels; of equal ones that with the shortest word."""
    if not 2 <= levels <= MOST_LEVELS:
        raise G2Error(f"codes can be packed that have 2 to {MOST_LEVELS} levels, got {levels}")
    fitting = []
    for bits in range(1, _MOST_BITS + 1):
        codes = 0
        while levels ** (codes + 1) <= 2**bits:
            codes += 1
        if codes:
            fitting.append(Layout(codes, bits))
    return min(fitting, key=lambda one: one.bits / one.codes)


def packed_size(count: int, levels: int) -> int:
    """How many bytes `pack` makes of `count` codes: whole words, then whole bytes."""
    codes, bits = layout(levels)
    if count < 0:
        raise G2Error(f"the number of packed codes must be at least 0, got {count}")
    return -(-(-(-count // codes) * bits) // 8)


def pack(codes: npt.NDArray[np.integer[Any]], levels: int) -> npt.NDArray[np.uint8]:
    """Packs codes; `unpack` gives them back.

    A word holds a few codes as digits in base `levels`, the first the least; the words follow each other bit by bit,
    the least bit first. What is left over in the last word and in the last byte is 0.

    Args:
        codes: of any shape, read row by row, each 0 ... levels - 1: the caller takes off the lowest of signed codes.
        levels: 2 to 65536.

    Returns:
        (packed_size(codes.size, levels),)
    """
    each, bits = layout(levels)
    if not np.issubdtype(codes.dtype, np.integer):
        raise G2Error(f"codes to be packed must be whole numbers, got {codes.dtype}")
    if codes.size and not 0 <= codes.min() <= codes.max() < levels:
        raise G2Error(f"codes of {levels} levels must be 0 to {levels - 1}, got {codes.min()} to {codes.max()}")
    blocks = -(-codes.size // (8 * each))  # eight words fill `bits` bytes
    digits = np.zeros((blocks * 8, each), dtype=_code_type(levels))
    digits.reshape(-1)[: codes.size] = codes.reshape(-1)
    words = np.zeros(blocks * 8, dtype=np.uint32)
    for place in reversed(range(each)):
        words *= np.uint32(levels)
        words += digits[:, place]
    packed = np.zeros((blocks, bits), dtype=np.uint8)
    for number in range(8):
        start, shift = divmod(number * bits, 8)
        shifted = words[number::8] << np.uint32(shift)
        for place in range(-(-(shift + bits) // 8)):
            packed[:, start + place] |= (shifted >> np.uint32(8 * place)).astype(np.uint8)
    return packed.reshape(-1)[: packed_size(codes.size, levels)]


def unpack(packed: npt.NDArray[np.uint8], count: int, levels: int) -> npt.NDArray[np.uint8 | np.uint16]:
    """The codes that `pack` packed; bytes that it cannot have made are an error.

    Args:
        packed: (packed_size(count, levels),); nothing is allocated before this is checked.
        count: how many codes there are.
        levels: as they were packed with.

    Returns:
        (count,), uint8 up to 256 levels.
    """
    (each, bits), size = layout(levels), packed_size(count, levels)
    if packed.dtype != np.uint8 or packed.shape != (size,):
        raise G2Error(
            f"{count} codes of {levels} levels take {size} bytes in one row, got {packed.dtype} {packed.shape}; "
            "the file is damaged, or its header belongs to another"
        )
    blocks = -(-count // (8 * each))
    padded = np.zeros((blocks, bits), dtype=np.uint8)
    padded.reshape(-1)[:size] = packed
    words = np.empty(blocks * 8, dtype=np.uint16)
    for number in range(8):
        start, shift = divmod(number * bits, 8)
        joined = np.zeros(blocks, dtype=np.uint32)
        for place in range(-(-(shift + bits) // 8)):
            joined |= padded[:, start + place].astype(np.uint32) << np.uint32(8 * place)
        words[number::8] = (joined >> np.uint32(shift)) & np.uint32(2**bits - 1)
    if blocks and int(words.max()) >= levels**each:
        raise G2Error(f"packed codes are damaged: one of them is beyond the {levels} levels there are")
    digits = np.empty((blocks * 8, each), dtype=_code_type(levels))
    for place in range(each - 1):
        rest = words // np.uint16(levels)
        digits[:, place] = words - rest * np.uint16(levels)
        words = rest
    digits[:, each - 1] = words
    codes = digits.reshape(-1)
    if codes[count:].any():
        raise G2Error("packed codes are damaged: what follows the last of them is not 0")
    return codes[:count]


def _code_type(levels: int) -> type[np.uint8 | np.uint16]:
    return np.uint8 if levels <= 2**8 else np.uint16
