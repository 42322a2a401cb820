"""`Entropy`: equidistant levels in as few bits as they are worth, because common ones take fewer bits in a file."""

import functools
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression.encodings.base import (
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
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from torch import Tensor

FEWEST, MOST = 1.0, 6.0  # bits per weight
HIGHEST_CODE = 127
_MOST_PER_BYTE = 40  # weights: five to a symbol of at least one bit; so no small file can fill all memory
_OVERHEAD = 1.02  # what Huffman's code takes more than the entropy
_COMMON = 50  # words that are about as common as the most common one, at least
_ZLIB = -15  # the largest window, without a checksum: a file has one for everything


class _Width(NamedTuple):
    """Codes from -highest to highest, `each` of them in a byte, so that zlib's code for bytes can be short for them."""

    highest: int
    each: int


_WIDTHS = (_Width(1, 5), _Width(2, 3), _Width(7, 2), _Width(HIGHEST_CODE, 1))


@dataclass(frozen=True, eq=False, repr=False)
class Entropy(Coded):
    """Multiples of a step, in zlib's Huffman code: value = code · scale.

    Attributes:
        codes: (rows, columns), int8, -127 to 127.
        scales: (4,), float32, one for the rows of each width.
        common: if rows are words in the order of their frequency, how many of the first are about equally common; their
            scales are also multiplied by the root of a row's number plus this. Else 0, and scales are what they are.
    """

    kinds: ClassVar = {"entropy": ("bytes",), "entropy_zipf": ("bytes", "common")}
    forms: ClassVar = ("bits:B", "bits:B,zipf")
    is_factor: ClassVar = False
    derived: ClassVar = ("bytes", "common", "bits_per_weight")

    codes: Array
    scales: Array
    common: int = 0

    @classmethod
    def encode(cls, values: "Tensor", arguments: Arguments) -> Self:
        """Gives all rows the same step, such that normally distributed weights take B bits each; others take fewer.

        That has the least squared error for its bits: rows of larger weights get more of them. With zipf, an error
        counts as often as its row is used, by Zipf's law: steps are proportional to the roots of the rows' numbers.
        """
        import torch

        cls.check(arguments)
        weights, bits = check_values(values), float(arguments["bits"] or 0) / _OVERHEAD
        deviations = weights.double().square().mean(dim=1).sqrt_().numpy()
        largest = weights.abs().amax(dim=1).numpy()
        common = _COMMON if "zipf" in arguments else 0
        shares, step = _steps(deviations, bits, common)
        while common and common < 64 * len(weights) and (largest > HIGHEST_CODE * step * shares).any():
            common *= 2
            shares, step = _steps(deviations, bits, common)
        steps = shares * max(step, float((largest / shares).max()) / HIGHEST_CODE)
        inverse = np.divide(1, steps, where=steps > LEAST, out=np.zeros_like(steps))
        quotients = weights * torch.from_numpy(inverse.astype(np.float32)).unsqueeze(1)
        up = torch.from_numpy(_rounding(np.divide(steps, deviations, where=deviations > 0, out=np.ones_like(steps))))
        sizes = quotients.abs().add_(up.float().unsqueeze(1)).floor_()
        sizes.clamp_(max=HIGHEST_CODE if common else _enough(quotients.abs(), sizes))
        codes = sizes.copysign_(quotients)
        products, squares = (codes * weights).sum(dim=1).numpy(), codes.square().sum(dim=1).numpy()
        numbers = codes.to(torch.int8).numpy()
        widths = _widths(numbers)
        above, below = (np.bincount(widths, one, len(_WIDTHS)) for one in (shares * products, shares**2 * squares))
        scales = np.divide(above, below, where=below > 0, out=np.zeros_like(above))
        return cls(numbers, scales.astype(np.float32), common)

    @classmethod
    def check(cls, arguments: Arguments) -> None:
        if not FEWEST <= (bits := arguments["bits"] or 0) <= MOST:
            raise G2Error(f"the B of bits:B must lie between {FEWEST} and {MOST}, got {bits}")

    @property
    def kind(self) -> str:
        return "entropy_zipf" if self.common else "entropy"

    @cached_property
    def group_scales(self) -> Floats:
        scales = self.scales[_widths(self.codes)] * _shares(len(self.codes), self.common)
        return scales.astype(np.float32)[:, None]

    @property
    def bytes(self) -> int:
        """The size of the packed codes, which only packing tells."""
        return len(self.packed["codes"])

    def pack(self) -> dict[str, Array]:
        """The width of each row, then the codes of the rows of each width, in one stream of zlib."""
        widths = _widths(self.codes)
        stream = zlib.compressobj(9, zlib.DEFLATED, _ZLIB, 9, zlib.Z_HUFFMAN_ONLY)
        content = b""
        for part in [widths, *(_joined(self.codes[widths == k], width) for k, width in enumerate(_WIDTHS))]:
            content += stream.compress(part.tobytes())
            content += stream.flush(zlib.Z_SYNC_FLUSH)  # so that each has its own code
        content += stream.flush()
        return {"codes": np.frombuffer(bytearray(content), np.uint8), "scales": self.scales}

    @classmethod
    def outlines(cls, entry: Entry) -> dict[str, Outline]:
        rows, columns = entry.shape
        if entry.kind == "entropy_zipf":
            entry.whole("common", 1, 2**31 - 1)
        size = entry.whole("bytes", -(-rows * columns // _MOST_PER_BYTE), 2**31 - 1)
        return {"codes": Outline("uint8", (size,)), "scales": Outline("float32", (len(_WIDTHS),))}

    @classmethod
    def unpack(cls, entry: Entry, packed: Mapping[str, Array]) -> Self:
        codes = _unpack_codes(packed["codes"].tobytes(), *entry.shape)
        if codes is None:
            raise G2Error(f"the codes of {brief(entry.name)} are damaged")
        return cls(codes, packed["scales"], entry.facts.get("common", 0))


def _unpack_codes(content: bytes, rows: int, columns: int) -> NDArray[np.int8] | None:
    """The codes (rows, columns); None if the bytes can't have been packed."""
    stream, size = zlib.decompressobj(_ZLIB), rows * (columns + 1)
    try:
        unpacked = np.frombuffer(stream.decompress(content, size), np.uint8)
    except zlib.error:
        return None
    widths, rest = unpacked[:rows], unpacked[rows:]
    if not stream.eof or stream.unused_data or len(widths) < rows or widths.max() >= len(_WIDTHS):
        return None
    codes = np.empty((rows, columns), np.int8)
    for k, width in enumerate(_WIDTHS):
        count = int((widths == k).sum()) * columns
        part, rest = np.split(rest, [-(-count // width.each)])
        apart = _apart(part, width)
        if len(apart) < count or apart[count:].any():
            return None
        codes[widths == k] = (apart[:count].astype(np.int16) - width.highest).reshape(-1, columns)
    return codes if len(rest) == 0 and np.array_equal(_widths(codes), widths) else None


def _widths(codes: NDArray[np.int8]) -> NDArray[np.uint8]:
    """The width that each row needs."""
    return np.searchsorted([one.highest for one in _WIDTHS], np.abs(codes).max(axis=1)).astype(np.uint8)


def _joined(codes: NDArray[np.int8], width: _Width) -> NDArray[np.uint8]:
    """Several codes to a byte, as the digits of a number; the last byte is filled up with zeros."""
    digits = codes.reshape(-1).astype(np.int16) + width.highest
    places = np.pad(digits, (0, -len(digits) % width.each)).reshape(-1, width.each)
    return (places @ _powers(width)).astype(np.uint8)


def _apart(joined: NDArray[np.uint8], width: _Width) -> NDArray[np.uint8]:
    """The digits that `_joined` joined, the filling included; one of them is too large if a byte is."""
    powers, levels = _powers(width), 2 * width.highest + 1
    first = joined[:, None] // powers[:-1].astype(np.uint8) % levels
    return np.concatenate([first, joined[:, None] // powers[-1].astype(np.uint8)], axis=1).reshape(-1)


def _powers(width: _Width) -> NDArray[np.int16]:
    return np.array([(2 * width.highest + 1) ** k for k in range(width.each)], np.int16)


# ---------------------------------------------------------------------------------------------------------------------


def _enough(quotients: "Tensor", sizes: "Tensor") -> int:
    """The highest code that is needed: few weights lie beyond 3 or 7, which a session reads in three or four bits."""
    most = int(sizes.max())
    for highest in (3, 7):
        if highest < most <= 2 * highest + 1:
            beyond = quotients[sizes > highest] - highest
            if float(beyond.square().sum()) < 0.01 * float((quotients - sizes).square_().sum()):
                return highest
    return HIGHEST_CODE


def _shares(rows: int, common: int) -> NDArray[np.float64]:
    """What the steps of the rows are proportional to."""
    return np.sqrt(np.arange(rows) + float(common)) if common else np.ones(rows)


def _steps(deviations: NDArray[np.float64], bits: float, common: int) -> tuple[NDArray[np.float64], float]:
    """The shares of the rows, and the step of a share of 1."""
    shares = _shares(len(deviations), common)
    return shares, _step(deviations / shares, bits)


def _step(deviations: NDArray[np.float64], bits: float) -> float:
    """The step with which rows of normally distributed numbers take so many bits each, on average."""
    present = np.log2(deviations[deviations > 0])
    if not present.size:
        return 1.0
    logarithms, rates = _rates()
    low, high = float(present.min()) + logarithms[0], float(present.max()) + logarithms[-1]
    share = present.size / deviations.size
    for _ in range(50):
        middle = (low + high) / 2
        is_fine = np.interp(middle - present, logarithms, rates).mean() * share > bits
        low, high = (middle, high) if is_fine else (low, middle)
    return float(2**high)


@functools.cache
def _rates() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The entropy, in bits, of a normally distributed number in steps of 2^k deviations, for several k."""
    logarithms = np.linspace(-7, 5, 97)
    return logarithms, np.array([sum(_entropies(2.0**k)) for k in logarithms])


def _entropies(ratio: float) -> Iterator[float]:
    """What each code adds to the entropy."""
    up, below = float(_rounding(np.array(ratio))), 0.0
    for code in range(math.ceil(6 / ratio) + 1):
        up_to = math.erf((code + 1 - up) * ratio / math.sqrt(2))
        share, below = up_to - below, up_to
        if share > 0:
            yield -share * math.log2(share / (2 if code else 1))  # codes above 0 stand for two each


def _rounding(ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    """What is added to a quotient before its fraction is cut off, for steps of so many deviations.

    With coarse steps it pays to round towards 0, where codes are short: a little more error, for fewer bits.
    """
    return 0.5 - 0.1 * np.minimum(ratios, 1)
