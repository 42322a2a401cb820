"""Draws token after token from the log-probabilities of a model."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from g2lstm.errors import G2Error

Logits: TypeAlias = NDArray[np.floating[Any]]

_AT_ONCE = 256  # tokens of a prompt: a session makes log-probabilities of all of them, though only the last ones count


def continuation(
    read: Callable[[Sequence[int]], Logits],
    prompt: Sequence[int],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    forbidden: Sequence[int] = (),
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
        generator: one random number is drawn from it for each token.
    """
    check_temperature(temperature)
    if top_k is not None and top_k < 1:
        raise G2Error(f"top_k must be at least 1, got {top_k}; None means all tokens")
    if not 0 < top_p <= 1:
        raise G2Error(f"top_p is a probability and must lie in (0, 1], got {top_p}; 1 means all tokens")

    def draw() -> Iterator[int]:
        *earlier, tokens = [prompt[start : start + _AT_ONCE] for start in range(0, len(prompt), _AT_ONCE)]
        for piece in earlier:
            read(piece)
        while True:
            logits = read(tokens)
            logits[list(forbidden)] = -math.inf
            tokens = [choose(logits, temperature, top_k, top_p, generator)]
            yield tokens[0]

    return draw()


def check_temperature(temperature: float) -> None:
    """Raises for what is no temperature."""
    if not 0 <= temperature < math.inf:
        raise G2Error(f"temperature must be a finite number of at least 0, got {temperature}; 1 is the model's own")


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
