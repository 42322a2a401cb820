"""Tokenizers: whole words, or byte-pair encoding; both kept as a `tokenizer.json` of the `tokenizers` library."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from heapq import nsmallest
from itertools import groupby
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from g2lstm.errors import G2Error
from g2lstm.files import read_bounded, write_atomically
from g2lstm.text.counting import count_words
from g2lstm.text.tokenizer_file import EOS, KINDS, UNK, new_backend, parse_tokenizer

__all__ = ["EOS", "UNK", "Tokenizer", "train_bpe_tokenizer", "train_tokenizer", "train_word_tokenizer"]

SPECIALS = (UNK, EOS)
MIN_BPE_VOCABULARY = 256 + len(SPECIALS)  # every byte has a token, so that any text can be encoded

_LONGEST_FILE = 2**28  # bytes; a vocabulary of a million long words has a fifth of it


class Tokenizer:
    """Turns a line of text into token ids and back.

    A word tokenizer reads `<unk>` and `<eos>` in a text as these tokens, as the usual corpora have them; to byte-pair
    encoding they are text like any other. Neither adds `<eos>` by itself.

    Args:
        backend: the library's tokenizer, with `<unk>` and `<eos>` in its vocabulary.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        self.kind = KINDS[type(backend.model).__name__]
        self.unk_id = self.id_of(UNK)
        self.eos_id = self.id_of(EOS)

    def __len__(self) -> int:
        """How many tokens there are, V."""
        return int(self.backend.get_vocab_size())

    def encode(self, line: str) -> list[int]:
        """The ids of a line's tokens, without `<eos>`."""
        return list(self.backend.encode(line, add_special_tokens=False).ids)

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of many lines' tokens, faster than one by one."""
        return [encoding.ids for encoding in self.backend.encode_batch_fast(list(lines), add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; each `<eos>` ends a line."""
        lines: list[str] = [""]
        for is_end, group in groupby(ids, key=lambda token: token == self.eos_id):
            if is_end:
                lines.extend("" for _ in group)
            else:
                lines[-1] = self.backend.decode(list(group), skip_special_tokens=False)
        return "\n".join(lines)

    def id_of(self, token: str) -> int:
        """The id of a token that is in the vocabulary."""
        found = self.backend.token_to_id(token)
        if found is None:
            raise G2Error(f"the vocabulary has no token {token!r}; it has {len(self)} others")
        return int(found)

    def token_of(self, token_id: int) -> str:
        """The token with this id, as it stands in the vocabulary."""
        found = self.backend.id_to_token(token_id) if token_id >= 0 else None
        if found is None:
            raise G2Error(f"no token has the id {token_id}; ids go from 0 to {len(self) - 1}")
        return str(found)

    def __contains__(self, token: str) -> bool:
        return self.backend.token_to_id(token) is not None

    def to_json(self) -> str:
        """The tokenizer as the text of a `tokenizer.json`."""
        return str(self.backend.to_str(pretty=True))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what the tokenizer does; equal for equal tokenizers."""
        canonical = json.dumps(json.loads(self.backend.to_str()), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Writes a `tokenizer.json`."""
        with write_atomically(path) as file:
            file.write(self.to_json().encode())

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Reads a `tokenizer.json`."""
        try:
            text = read_bounded(path, _LONGEST_FILE).decode()
        except (G2Error, UnicodeDecodeError) as error:
            raise G2Error(f"the tokenizer {path} cannot be read: {error}") from None
        try:
            backend = parse_tokenizer(text)
        except G2Error as error:
            raise G2Error(f"{path} {error}") from None
        try:
            return cls(backend)
        except G2Error as error:
            raise G2Error(f"{path} does not fit: {error}") from None


def train_word_tokenizer(
    lines: Iterable[str], *, vocabulary: int | None = None, min_frequency: int = 1, lowercase: bool = False
) -> Tokenizer:
    """A tokenizer whose tokens are the words between white space, the frequent ones first.

    Args:
        lines: the training text.
        vocabulary: at most so many tokens, with `<unk>` and `<eos>`; None for all.
        min_frequency: rarer words become `<unk>`.
        lowercase: make the text lower-case first.
    """
    counts = count_words(lines, lowercase=lowercase).items()
    return word_tokenizer(counts, vocabulary=vocabulary, min_frequency=min_frequency, lowercase=lowercase)


def word_tokenizer(
    counts: Iterable[tuple[str, int]], *, vocabulary: int | None, min_frequency: int, lowercase: bool
) -> Tokenizer:
    """Like `train_word_tokenizer`, of words that are counted already."""
    ranked = ((-count, word) for word, count in counts if count >= min_frequency and word not in SPECIALS)
    first = sorted(ranked) if vocabulary is None else nsmallest(vocabulary - len(SPECIALS), ranked)
    ids = {token: index for index, token in enumerate((*SPECIALS, *(word for _, word in first)))}
    return Tokenizer(new_backend(models.WordLevel(ids, unk_token=UNK), lowercase=lowercase))


def train_bpe_tokenizer(
    lines: Iterable[str],
    *,
    vocabulary: int,
    min_frequency: int = 2,
    lowercase: bool = False,
    is_tokenized: bool = False,
    prefix_space: bool = False,
) -> Tokenizer:
    """Byte-pair encoding over bytes: every text can be encoded, and decoding gives it back exactly.

    Args:
        lines: the training text.
        vocabulary: at most so many tokens, with the 256 bytes, `<unk>` and `<eos>`.
        min_frequency: pairs rarer than this are not merged.
        lowercase: make the text lower-case first.
        is_tokenized: words and punctuation stand apart in the text, so that only a space ends a word: "&apos;s" is one.
        prefix_space: encode the first word of a line like any other, with a space before it, which decoding takes away.
    """
    if vocabulary < MIN_BPE_VOCABULARY:
        raise G2Error(f"byte-pair encoding needs a vocabulary of at least {MIN_BPE_VOCABULARY}, got {vocabulary}")
    backend = new_backend(models.BPE(), lowercase=lowercase, is_tokenized=is_tokenized, prefix_space=prefix_space)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=min_frequency,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(lines, trainer)
    # The trainer also lists the special tokens as ones to find in a text; a user's text must not be able to make them.
    settings = json.loads(backend.to_str())
    settings["added_tokens"] = []
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(settings)))


def train_tokenizer(
    kind: str,
    lines: Iterable[str],
    *,
    vocabulary: int | None = None,
    min_frequency: int = 1,
    lowercase: bool = False,
    is_tokenized: bool = False,
    prefix_space: bool = False,
) -> Tokenizer:
    """A tokenizer of the kind "word" or "bpe"; see `train_word_tokenizer` and `train_bpe_tokenizer`.

    The last two arguments are for byte-pair encoding alone; words are what stands between white space.
    """
    if kind == "word":
        return train_word_tokenizer(lines, vocabulary=vocabulary, min_frequency=min_frequency, lowercase=lowercase)
    if kind != "bpe":
        raise G2Error(f"the tokenizer must be 'word' or 'bpe', got {kind!r}")
    if vocabulary is None:
        raise G2Error("byte-pair encoding needs a vocabulary size, for example vocabulary = 8000")
    return train_bpe_tokenizer(
        lines,
        vocabulary=vocabulary,
        min_frequency=min_frequency,
        lowercase=lowercase,
        is_tokenized=is_tokenized,
        prefix_space=prefix_space,
    )
