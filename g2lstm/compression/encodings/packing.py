"""Packs codes of few levels into bytes, for files: five levels take 2.33 bits per code instead of three."""

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from g2lstm.errors import G2Error

MOST_LEVELS = 2**16
_MOST_BITS = 16


class Word(NamedTuple):
    """A word of `bits` bits that holds `codes` codes as the digits of one number."""

    codes: int
    bits: int


@functools.cache
def word_for(levels: int) -> Word:
    """The word with the fewest bits per code; of equally good ones, the shortest."""
    if not 2 <= levels <= MOST_LEVELS:
        raise G2Error(f"only codes with 2 to {MOST_LEVELS} levels can be packed, got {levels}")
    fitting = []
    for bits in range(1, _MOST_BITS + 1):
        codes = 0
        while levels ** (codes + 1) <= 2**bits:
            codes += 1
        if codes:
            fitting.append(Word(codes, bits))
    return min(fitting, key=lambda one: one.bits / one.codes)


def packed_size(count: int, levels: int) -> int:
    """The number of bytes that `count` packed codes take: whole words, rounded up to whole bytes."""
    codes, bits = word_for(levels)
    if count < 0:
        raise G2Error(f"the number of packed codes can't be negative, got {count}")
    return -(-(-(-count // codes) * bits) // 8)


def pack(codes: npt.NDArray[np.integer[Any]], levels: int) -> npt.NDArray[np.uint8]:
    """Packs codes so that `unpack` restores them.

    A word holds a few codes as digits in base `levels`, least significant first. The words follow each other without
    gaps, again least significant bit first. Whatever is left over in the last word and the last byte is 0.

    Args:
        codes: any shape, read row by row; each from 0 to levels - 1 (see `pack_signed` for others).
        levels: 2 to 65536.

    Returns:
        (packed_size(codes.size, levels),)
    """
    each, bits = word_for(levels)
    if not np.issubdtype(codes.dtype, np.integer):
        raise G2Error(f"codes must be integers, got {codes.dtype}")
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
    """Restores packed codes; bytes that `pack` can't have produced are an error.

    Args:
        packed: (packed_size(count, levels),); nothing is allocated before this is checked.
        count: the number of codes.
        levels: the number that they were packed with.

    Returns:
        (count,), uint8 for up to 256 levels, else uint16.
    """
    (each, bits), size = word_for(levels), packed_size(count, levels)
    if packed.dtype != np.uint8 or packed.shape != (size,):
        raise G2Error(
            f"{count} codes of {levels} levels take a row of {size} bytes, got {packed.dtype} {packed.shape}; "
            "the file is damaged, or its header belongs to another file"
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
        raise G2Error(f"packed codes are damaged: one of them is outside the {levels} levels")
    digits = np.empty((blocks * 8, each), dtype=_code_type(levels))
    for place in range(each - 1):
        rest = words // np.uint16(levels)
        digits[:, place] = words - rest * np.uint16(levels)
        words = rest
    digits[:, each - 1] = words
    codes = digits.reshape(-1)
    if codes[count:].any():
        raise G2Error("packed codes are damaged: the padding after the last one is not 0")
    return codes[:count]


def pack_signed(codes: npt.NDArray[np.integer[Any]], lowest: int, levels: int) -> npt.NDArray[np.uint8]:
    """Packs codes from `lowest` to lowest + levels - 1."""
    return pack(codes.astype(np.int32) - lowest, levels)


def unpack_signed(
    packed: npt.NDArray[np.uint8], shape: tuple[int, int], lowest: int, levels: int
) -> npt.NDArray[np.int32]:
    """Restores what `pack_signed` packed, in this shape."""
    codes = unpack(packed, shape[0] * shape[1], levels).astype(np.int32)
    codes += lowest
    return codes.reshape(shape)


def _code_type(levels: int) -> type[np.uint8 | np.uint16]:
    return np.uint8 if levels <= 2**8 else np.uint16
