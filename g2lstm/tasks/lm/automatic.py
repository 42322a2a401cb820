"""`automatic`: the settings of a language model for a text that nobody has described, chosen by looking at it."""

import math
from pathlib import Path
from typing import Any, NamedTuple

from g2lstm.text.lines import sample_lines
from g2lstm.text.own import looks_tokenised, own_texts

_SAMPLE_BYTES = 1 << 22  # of text to look at
_FULL_COLUMNS = 200_000  # characters; shorter texts are read in fewer columns, so that an epoch still has some updates


class Look(NamedTuple):
    """What a text looks like."""

    characters: int  # of the training text, roughly
    alphabet: int  # different characters that occur more than once
    is_tokenized: bool

    def __str__(self) -> str:
        kind = "tokenised" if self.is_tokenized else "plain"
        return f"{self.characters:,} characters to train on, {kind} text, {self.alphabet:,} different characters"


def look_at(path: Path) -> Look:
    """Looks at the training text of a file or a folder, in which lines are spread evenly if it is large."""
    train = own_texts(path)["train"]
    sample = "\n".join(sample_lines([train], _SAMPLE_BYTES))
    share = train.stat().st_size / max(len(sample.encode()), 1)
    counts: dict[str, int] = {}
    for character in sample:
        counts[character] = counts.get(character, 0) + 1
    return Look(round(len(sample) * share), sum(count > 1 for count in counts.values()), looks_tokenised(sample))


def automatic(path: str, *, hidden: int | None = None) -> dict[str, Any]:
    """The tables of a recipe for the text in `path`, as `own_texts` takes it.

    The longer the text, the more sub-words, the wider the layers, the less dropout and the more minutes. Layers of
    another width, `hidden`, get more dropout the wider they are.
    """
    look = look_at(Path(path))
    millions = look.characters / 1e6
    embedding = 64 * between(1, round(3 * millions**0.25), 8)
    width = 2 * embedding if hidden is None else hidden
    dropout = between(0.1, round(0.2 * millions**-0.25 * width / (2 * embedding), 2), 0.5)
    # Text in a script of thousands of characters, such as Chinese, needs a token for each that is not rare.
    vocabulary = between(300, max(two_digits(1000 * millions**0.6), 2 * look.alphabet), 16_000)
    return {
        "task": "lm",
        "data": {
            "path": path,
            "tokenizer": "bpe",
            "vocabulary": vocabulary,
            "is_tokenized": look.is_tokenized,
        },
        "model": {
            "method": "gumbel",
            "embedding": embedding,
            "hidden": width,
            "layers": 2,
            "weight_dropout": dropout,
            "dropout": {"input": round(dropout / 2, 2), "between": round(dropout / 2, 2), "output": dropout},
        },
        "train": {
            "minutes": between(1, round(10 * millions**0.5), 60),
            "epochs": 40,
            "batch_size": between(1, 16 * look.characters // _FULL_COLUMNS, 16),
            "optimizer": {"name": "adamw", "lr": 5e-3, "weight_decay": 0.05},
        },
    }


def between(least: Any, value: Any, most: Any) -> Any:
    """The value, or the limit that it goes beyond."""
    return max(least, min(value, most))


def two_digits(value: float) -> int:
    """The value without what its third digit and all others say."""
    unit = 10 ** max(math.floor(math.log10(max(value, 1))) - 1, 0)
    return round(value / unit) * unit
