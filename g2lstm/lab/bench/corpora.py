"""Synthetic texts of any size for `g2lstm bench data`: random words, the frequent ones more frequent."""

from itertools import pairwise
from pathlib import Path

import numpy as np

VOCABULARY = 50_000
TEXT_WORDS, PAIR_WORDS = 24, 12  # in a line of a text, or of a pair's side, on average
_LINES_AT_ONCE = 10_000


def write_text(path: Path, lines: int, words: int, seed: int = 0) -> None:
    """Lines of random words; that of rank r has a probability in proportion to 1 / r, as Zipf found it.

    Args:
        path: the file.
        lines: how many.
        words: in a line, on average; half as many at least.
        seed: of the words drawn.
    """
    generator = np.random.default_rng(seed)
    vocabulary = np.array([_word(rank) for rank in range(VOCABULARY)])
    shares = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, lines, _LINES_AT_ONCE):
            lengths = generator.integers(words // 2, words + words // 2 + 1, min(_LINES_AT_ONCE, lines - start))
            drawn = vocabulary[np.searchsorted(shares, generator.random(lengths.sum()) * shares[-1])].tolist()
            bounds = pairwise([0, *np.cumsum(lengths).tolist()])
            file.writelines(" ".join(drawn[first:last]) + "\n" for first, last in bounds)


def _word(rank: int) -> str:
    """A word of syllables; frequent ones are short, as in languages."""
    syllables = ""
    number = rank + 1
    while number:
        number, syllable = divmod(number, 60)
        syllables += "bdfgklmnprst"[syllable // 5] + "aeiou"[syllable % 5]
    return syllables
