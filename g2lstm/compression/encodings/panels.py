"""How codes lie in files, packed into bytes, and in panels, as the compiled kernel and exported C read them.

Their sides are in `nn/csrc/products.h` and `export/c/templates/products.c`.
"""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

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


DENSE, INT8, INT4, INT3, GROUPED_INT4, INT2, ODD3, ODD2, *_MORE = range(12)
GROUPED_INT3, GROUPED_INT2, GROUPED_ODD3, GROUPED_ODD2 = _MORE
# Columns that are read at once, by the bits of a code; rows are padded to them. The kernel has no six bits.
CHUNKS = {2: 16, 3: 32, 4: 8, 6: 16, 8: 8}
CHUNK = CHUNKS[8]
LONGEST_GROUP = 4096

Bytes = NDArray[np.uint8]


class Form(NamedTuple):
    """A way to pack codes: their bits, whether all are odd, and whether groups of columns have scales of their own."""

    bits: int
    is_odd: bool = False
    is_grouped: bool = False

    def holds(self, lowest: int, highest: int) -> bool:
        """Whether codes from the lowest to the highest fit."""
        most = 2**self.bits - 1 if self.is_odd else 2 ** (self.bits - 1)
        return -most <= lowest and highest <= (most if self.is_odd else most - 1)


_FORMS = {  # those with fewer bits first
    Form(2): INT2, Form(2, True): ODD2, Form(3): INT3, Form(3, True): ODD3, Form(4): INT4, Form(8): INT8,
    Form(2, False, True): GROUPED_INT2, Form(2, True, True): GROUPED_ODD2, Form(3, False, True): GROUPED_INT3,
    Form(3, True, True): GROUPED_ODD3, Form(4, False, True): GROUPED_INT4,
}  # fmt: skip


class Panels(NamedTuple):
    """A matrix as the kernel reads it.

    Attributes:
        form: DENSE or one of the others above.
        group: the columns per scale of a grouped form, else 0.
        data: (panels, bytes).
    """

    form: int
    group: int
    data: Bytes


def dense_panels(values: NDArray[np.float32], panel: int) -> Panels:
    """Values (n, m) in panels of `panel` rows."""
    return Panels(DENSE, 0, _flat(_bytes(cut(values, panel, CHUNK).swapaxes(1, 2))))


def code_panels(
    codes: NDArray[Any], scales: NDArray[np.float32], panel: int, group: int = 0, parts: NDArray[Any] | None = None
) -> Panels | None:
    """Codes (n, m) in as few bits as they need; None if no form holds them.

    Args:
        codes: of any integers.
        scales: what each row is multiplied by, (n,).
        panel: rows per panel.
        group: columns that share one of `parts`, a multiple of CHUNK; 0 if there are none.
        parts: what each group of columns is multiplied by, (n, groups), numbers that float16 can hold.
    """
    if (form := narrowest(codes, group)) is None:
        return None
    number = _FORMS[form]
    packed, end = pack_codes(codes, panel, form), vector_panels(scales, panel)
    if parts is None:
        return Panels(number, 0, np.hstack([_flat(packed), end]))
    halves = _bytes(cut(parts.astype(np.float16), panel).swapaxes(1, 2))
    return Panels(number, group, np.hstack([_interleave(packed, halves, group // CHUNKS[form.bits]), end]))


def narrowest(codes: NDArray[Any], group: int = 0, forms: Iterable[Form] = _FORMS) -> Form | None:
    """The form that packs codes in the fewest bits, with a scale for each row or `group` columns; None if none can."""
    lowest, highest, is_odd = codes.min(), codes.max(), bool((codes & 1).all())
    for form in forms:
        is_readable = form.is_grouped == bool(group) and group % CHUNKS[form.bits] == 0
        if is_readable and form.is_odd <= is_odd and form.holds(lowest, highest):
            return form
    return None


def vector_panels(values: NDArray[np.float32], panel: int) -> Bytes:
    """One number per row (n,), such as a bias: (panels, bytes)."""
    return _bytes(cut(values[:, None], panel)[..., 0])


def cut(rows: NDArray[Any], panel: int, multiple: int = 1) -> NDArray[Any]:
    """Cuts rows (n, m) into panels padded with zeros: (panels, panel, columns)."""
    count, width = rows.shape
    padded = np.zeros((-(-count // panel) * panel, -(-width // multiple) * multiple), rows.dtype)
    padded[:count, :width] = rows
    return padded.reshape(-1, panel, padded.shape[1])


def pack_codes(codes: NDArray[Any], panel: int, form: Form) -> Bytes:
    """Packs codes (n, m) into bytes (panels, chunks, bytes)."""
    bits, chunk = form.bits, CHUNKS[form.bits]
    unsigned = codes.astype(np.uint8)  # modulo 256, as the sum
    unsigned += np.uint8(2**bits - 1 if form.is_odd else 2 ** (bits - 1))
    unsigned >>= np.uint8(form.is_odd)
    rows = cut(unsigned, panel, chunk)  # the padding may be any code: it meets zeros
    fours = rows.reshape(*rows.shape[:2], -1, chunk // 4, 4)  # (panels, panel, chunks, fours, columns)
    a = fours.transpose(3, 0, 2, 1, 4)  # (fours, panels, chunks, panel, columns)
    if bits == 8:
        words = [a[0], a[1]]
    elif bits == 6:
        words = [a[k] | (a[3] >> 2 * k & 3) << 6 for k in range(3)]
    elif bits != 3:
        words = [np.bitwise_or.reduce([four << bits * k for k, four in enumerate(a)])]
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
