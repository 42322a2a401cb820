"""Tokenizers: whole words, or byte-pair encoding; both kept as a `tokenizer.json` of the `tokenizers` library."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from g2lstm.data.cache import write_atomically
from g2lstm.errors import G2Error

UNK, EOS = "<unk>", "<eos>"
SPECIALS = (UNK, EOS)
MIN_BPE_VOCABULARY = 256 + len(SPECIALS)  # every byte has a token, so that any text can be encoded

_KINDS = {"WordLevel": "word", "BPE": "bpe"}
# What the library calls a word. Python's str.split() also splits at four control characters.
_WORD = re.compile(r"[\S\x1c-\x1f]+")


class Tokenizer:
    """Turns a line of text into token ids and back.

    A word tokenizer reads `<unk>` and `<eos>` in a text as these tokens, as the usual corpora have them; to byte-pair
    encoding they are text like any other. Neither adds `<eos>` by itself.

    Args:
        backend: the library's tokenizer, with `<unk>` and `<eos>` in its vocabulary.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        self.kind = _KINDS[type(backend.model).__name__]
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
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise G2Error(f"the tokenizer {path} cannot be read: {error}") from None
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises the bare class
            raise G2Error(f"{path} is damaged, or not a tokenizer of the tokenizers library: {error}") from None
        if type(backend.model).__name__ not in _KINDS:
            name = type(backend.model).__name__
            raise G2Error(f"{path} holds a tokenizer of type {name}; only WordLevel and BPE are allowed")
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
    normalizer = normalizers.Lowercase() if lowercase else None
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(_WORD.findall(normalizer.normalize_str(line) if normalizer else line))
    for special in SPECIALS:
        counts.pop(special, None)
    ranked = sorted((-count, word) for word, count in counts.items() if count >= min_frequency)
    if vocabulary is not None:
        del ranked[max(vocabulary - len(SPECIALS), 0) :]
    ids = {token: index for index, token in enumerate((*SPECIALS, *(word for _, word in ranked)))}
    backend = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if normalizer is not None:
        backend.normalizer = normalizer
    return Tokenizer(backend)


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
    backend = tokenizers.Tokenizer(models.BPE())
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if is_tokenized:
        words = pre_tokenizers.Split(" ", "merged_with_next")
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([words, to_bytes])
    if prefix_space:
        # The library's own option adds no space to a line that begins with one, and so could not be undone.
        prepend = normalizers.Prepend(" ")
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), prepend]) if lowercase else prepend
        backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
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
