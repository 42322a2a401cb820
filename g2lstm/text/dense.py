"""Sub-words for scripts whose characters take several bytes each and whose words have no spaces between them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

_FREQUENT = 5  # how often a character must occur to become a token
# The words of the library's pre-tokenizer ByteLevel.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def is_dense(lines: Sequence[str]) -> bool:
    """Whether a tenth of the characters, spaces aside, take three bytes or more, as those of Chinese or Thai do."""
    words = "".join(lines).split()
    total, wide = sum(map(len, words)), sum(character >= "\u0800" for word in words for character in word)
    return 10 * wide > total


def characters_first(
    lines: list[str],
    specials: Sequence[str],
    spelling: Mapping[int, str],
    normalizer: Any,
    words: Any,
    settings: trainers.BpeTrainer,
) -> models.BPE:
    """Byte-pair encoding in which frequent characters are tokens, and longer tokens consist of whole characters.

    Where a word is a whole clause, the usual training spends its tokens on phrases that repeat and leaves most
    characters in pieces, which a model then puts together wrongly.

    Args:
        lines: the training text.
        specials: the first tokens.
        spelling: how each byte is spelt in tokens.
        normalizer: of the tokenizer; None for none.
        words: the pre-tokenizer that finds words; None for the usual one.
        settings: the size of the vocabulary, and how often a pair must occur.
    """
    if normalizer is not None:
        lines = [normalizer.normalize_str(line) for line in lines]
    counts = Counter(character for line in lines for character in line)
    often = max(settings.min_frequency, _FREQUENT)
    room = settings.vocab_size - len(specials) - len(spelling)
    frequent = sorted((-count, character) for character, count in counts.items() if count >= often)[: room // 2]
    rare = counts.keys() - {character for _, character in frequent}
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = words or pre_tokenizers.Split(tokenizers.Regex(_WORDS), "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=settings.min_frequency,
        show_progress=False,
    )
    # Rare characters stay bytes. (The library's own limit of the alphabet breaks ties at random.)
    ends = str.maketrans(dict.fromkeys(rare, "\n"))
    backend.train_from_iterator((part for line in lines for part in line.translate(ends).split("\n")), trainer)
    found = json.loads(backend.to_str())["model"]

    def spelt(text: str) -> str:
        return "".join(spelling[byte] for byte in text.encode())

    merges: list[tuple[str, str]] = []
    for token in sorted(found["vocab"], key=found["vocab"].__getitem__):
        parts = spelt(token) if len(token) == 1 else ""
        merges += [(parts[:end], parts[end]) for end in range(1, len(parts))]
    pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in found["merges"]]  # "a b" before 0.20
    merges += [(spelt(left), spelt(right)) for left, right in pairs]
    kept = list(dict.fromkeys(merges))[:room]  # characters share their first bytes
    tokens = [*specials, *sorted(spelling.values()), *(left + right for left, right in kept)]
    return models.BPE({token: index for index, token in enumerate(tokens)}, kept)
