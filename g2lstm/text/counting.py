"""How often each word occurs: counts of the parts of a text, kept in files and added up without holding them all."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from tokenizers import normalizers

from g2lstm.files import write_atomically

# What the tokenizers library calls a word. Python's str.split() also splits at four control characters.
_WORD = re.compile(r"[\S\x1c-\x1f]+")


def count_words(lines: Iterable[str], *, lowercase: bool = False) -> Counter[str]:
    """How often each word occurs, a word being what stands between white space.

    Args:
        lines: the text.
        lowercase: make it lower-case first.
    """
    normalizer = normalizers.Lowercase() if lowercase else None
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(_WORD.findall(normalizer.normalize_str(line) if normalizer else line))
    return counts


def write_counts(counts: Counter[str], path: Path) -> None:
    """Writes counts, a line for each word, in the order of the words."""
    with write_atomically(path) as file:
        file.writelines(f"{word} {count}\n".encode() for word, count in sorted(counts.items()))


def add_counts(paths: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """Adds up what `write_counts` wrote: each word once, in order; memory holds a line of each file."""
    with ExitStack() as stack:
        files = [stack.enter_context(path.open(encoding="utf-8", newline="\n")) for path in paths]
        for word, group in groupby(merge(*map(_parse, files)), key=itemgetter(0)):
            yield word, sum(count for _, count in group)


def _parse(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    for line in lines:
        word, count = line.split(" ")
        yield word, int(count)
