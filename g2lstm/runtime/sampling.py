"""Draws token after token from the log-probabilities of a model."""

import math
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression.encodings.base import is_whole
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from g2lstm.text.tokenize import Tokenizer

Logits: TypeAlias = NDArray[np.floating[Any]]

_AT_ONCE = 256  # tokens of a prompt: a session makes log-probabilities of all of them, though only the last ones count


class Utf8:
    """Which tokens may follow a text in UTF-8 whose last character lacks 0 to 3 bytes, and how many it lacks then."""

    def __init__(self, spellings: Sequence[bytes]) -> None:
        after = np.array([[_missing(missing, spelling) for spelling in spellings] for missing in range(4)])
        self.after: NDArray[np.int64] = after  # (4, V); -1 where a token would break a character
        self.forbidden = [np.flatnonzero(row < 0) for row in after]

    @classmethod
    def of(cls, tokenizer: "Tokenizer") -> Self | None:
        """That of a tokenizer; None if every token consists of whole characters."""
        return cls([tokenizer.bytes_of(one) for one in range(len(tokenizer))]) if tokenizer.kind == "bpe" else None

    def allows(self, missing: Any, tokens: NDArray[np.int64], room: Any) -> NDArray[np.bool_]:
        """Which tokens may follow, if at most `room` more may follow them; each is a token that makes a byte."""
        after = self.after[missing, tokens]
        return (after >= 0) & (after <= np.maximum(room, 0))

    def finished(self, tokens: Sequence[int]) -> Sequence[int]:
        """These tokens without the last ones, if they are only the beginning of a character."""
        missing, end = 0, 0
        for place, token in enumerate(tokens):
            missing = int(self.after[missing, token])
            if missing == 0:
                end = place + 1
        return tokens[:end]


def _missing(missing: int, spelling: bytes) -> int:
    """How many bytes the last character lacks after these, if it lacked so many before; -1 if they are no UTF-8."""
    if spelling.isascii():
        return -1 if missing and spelling else missing
    for byte in spelling:
        if (0x80 <= byte < 0xC0) != (missing > 0):
            return -1
        if missing:
            missing -= 1
        elif byte >= 0x80:
            missing = 1 + (byte >= 0xE0) + (byte >= 0xF0)
            if byte < 0xC2 or byte > 0xF4:
                return -1
    return missing


def continuation(
    read: Callable[[Sequence[int]], Logits],
    prompt: Sequence[int],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    forbidden: Sequence[int] = (),
    utf8: Utf8 | None = None,
    generator: np.random.Generator,
) -> Iterator[int]:
    """Yields token ids without end that continue a prompt.

    Args:
        read: reads the next tokens, and returns the logits (V,) after the last of them.
        prompt: at least one token, such as the end of a sentence.
        temperature: below 1, likely tokens become likelier; 0 always takes the likeliest.
        top_k: draw only from the k likeliest tokens.
        top_p: draw only from the likeliest tokens that together have this probability.
        forbidden: ids that are never drawn, such as that of `<unk>`.
        utf8: keeps tokens that are parts of characters from making anything but characters.
        generator: one random number is drawn from it for each token.
    """
    check_temperature(temperature)
    if top_k is not None and not is_whole(top_k, 1):
        raise G2Error(f"top_k must be a whole number of at least 1, got {top_k!r}; None means all tokens")
    if not is_number(top_p, 0, 1) or top_p == 0:
        raise G2Error(f"top_p is a probability and must lie in (0, 1], got {top_p!r}; 1 means all tokens")

    def draw() -> Iterator[int]:
        *earlier, tokens = [prompt[start : start + _AT_ONCE] for start in range(0, len(prompt), _AT_ONCE)]
        for piece in earlier:
            read(piece)
        missing = 0
        while True:
            logits = read(tokens)
            logits[list(forbidden)] = -math.inf
            if utf8 is not None:
                logits[utf8.forbidden[missing]] = -math.inf
            tokens = [choose(logits, temperature, top_k, top_p, generator)]
            if utf8 is not None:
                missing = int(utf8.after[missing, tokens[0]])
            yield tokens[0]

    return draw()


def check_temperature(temperature: float) -> None:
    """Raises for what is no temperature."""
    if not is_number(temperature, 0) or temperature == math.inf:
        raise G2Error(f"temperature must be a finite number of at least 0, got {temperature!r}; 1 is the model's own")


def check_seed(seed: int | None) -> None:
    """Raises for what is no seed."""
    if seed is not None and not is_whole(seed, 0):
        raise G2Error(f"seed must be a whole number of at least 0, got {seed!r}; None draws one")


def is_number(value: object, lowest: float, highest: float = math.inf) -> bool:
    """Whether this is a number within bounds, perhaps of NumPy."""
    return isinstance(value, Real) and lowest <= float(value) <= highest


def choose(logits: Logits, temperature: float, top_k: int | None, top_p: float, generator: np.random.Generator) -> int:
    """Draws a token from logits (V,); the arguments are those of `continuation`."""
    if not np.isfinite(logits.max()):  # NaN if there is one
        raise G2Error("the model gives logits that are not finite: its weights are too large; train it again")
    if temperature == 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")
    ordered = logits[order].astype(np.float64)
    with np.errstate(over="ignore"):  # a tiny temperature makes all but the likeliest impossible
        weights = np.exp((ordered - ordered[0]) / temperature)
    if top_k is not None:
        weights[top_k:] = 0
    if top_p < 1:
        # A token is kept if those before it have not reached top_p, so the likeliest always is.
        weights = weights / weights.sum()
        weights[weights.cumsum() - weights >= top_p] = 0
    cumulative = weights.cumsum()
    place = np.searchsorted(cumulative, generator.random() * cumulative[-1], side="right")
    return int(order[min(int(place), int(np.flatnonzero(weights)[-1]))])
