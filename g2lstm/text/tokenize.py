"""Tokenizers: words, characters, or byte-pair encoding; each is a `tokenizer.json` of the `tokenizers` library."""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from heapq import nsmallest
from itertools import chain, groupby, islice, product
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from g2lstm.errors import G2Error
from g2lstm.files import parse_json, read_bounded, write_atomically
from g2lstm.text.clean import check_unicode, cleaning
from g2lstm.text.dense import characters_first, is_dense

UNK, EOS = "<unk>", "<eos>"
SPECIALS = (UNK, EOS)
MIN_BPE_VOCABULARY = 256 + len(SPECIALS)  # every byte has a token, so any text can be encoded

_KINDS = {"WordLevel": "word", "BPE": "bpe"}  # the library's names, and ours
_MAX_FILE_BYTES = 2**28  # a vocabulary of a million long words takes a fifth of this
# What the library calls a word. Python's str.split() also splits at four control characters.
_WORD = re.compile(r"[\S\x1c-\x1f]+")
_SPACE = "Ġ"  # how byte-pair encoding writes the space before a word
_LONGEST = 1000  # characters of a word that byte-pair encoding is trained on: each merge goes through a whole word
_LONG_WORD = re.compile(rf"\S{{{_LONGEST}}}(?=\S)")
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")  # scripts without spaces
_JOINED = re.compile(rf"{_UNSPACED.pattern[:-1]}\u3000-\u303f\uff00-\uffef\ufffd]")  # and what stands among them
_LOOK_AT = 1000  # lines, to see the script
_SPACED_WORDS = pre_tokenizers.Split(" ", "merged_with_next")  # in text whose spaces separate punctuation too
_LOGGER = logging.getLogger(__name__)


class Tokenizer:
    """Turns a line of text into token ids and back.

    A word tokenizer reads `<unk>` and `<eos>` in a text as these tokens, because that is what they mean in the usual
    corpora; to the others they are ordinary text. None adds `<eos>` by itself.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        self.kind = _KINDS[type(backend.model).__name__]
        if self.kind == "word" and isinstance(backend.pre_tokenizer, pre_tokenizers.Split):
            self.kind = "character"
        self.is_cleaning = "NFC" in repr(backend.normalizer)
        self.unk_id = self.id_of(UNK)
        self.eos_id = self.id_of(EOS)

    def __len__(self) -> int:
        """The number of tokens, V."""
        return int(self.backend.get_vocab_size())

    def encoding(self, line: str) -> tokenizers.Encoding:
        """The token ids of a line, without `<eos>`, and where each of them begins and ends."""
        check_unicode(line)
        return self.backend.encode(line, add_special_tokens=False)

    def encode(self, line: str) -> list[int]:
        """The token ids of a line, without `<eos>`."""
        return list(self.encoding(line).ids)

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """The token ids of many lines, faster than one by one."""
        for line in lines:
            check_unicode(line)
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
        """The id of a token in the vocabulary."""
        found = self.backend.token_to_id(token)
        if found is None:
            raise G2Error(f"the vocabulary has no token {token!r}; it has {len(self)} others")
        return int(found)

    def token_of(self, token_id: int) -> str:
        """The token with this id, as the vocabulary spells it."""
        found = self.backend.id_to_token(token_id) if token_id >= 0 else None
        if found is None:
            raise G2Error(f"no token has the id {token_id}; ids go from 0 to {len(self) - 1}")
        return str(found)

    def readable(self, ids: Sequence[int]) -> list[str]:
        """Tokens as people can read them; if a word is several tokens, all but the first begin with ##.

        In scripts without spaces, where no token begins a word, none does.
        """
        words: list[str] = []
        for token_id in ids:
            token = self.token_of(token_id)
            if self.kind != "bpe" or token_id in (self.eos_id, self.unk_id):
                words.append("␣" if token == " " else printable(token))
                continue
            text = printable(self.backend.decoder.decode([token]).strip(" ") or "␣")
            is_first = begins_word(token) or not words or _JOINED.match(text)
            words.append(text if is_first else f"##{text}")
        return words

    def bytes_of(self, token_id: int) -> bytes:
        """What a token adds to a text in UTF-8: whole words follow a space, and `<eos>` is the end of a line."""
        token = self.token_of(token_id)
        if token_id == self.eos_id:
            return b"\n"
        if self.kind == "character":
            return token.encode()
        if self.kind == "word" or token_id == self.unk_id:
            return f" {token}".encode()
        return bytes(_bytes_by_character()[character] for character in token)

    def __contains__(self, token: str) -> bool:
        return self.backend.token_to_id(token) is not None

    def to_json(self) -> str:
        """The content of a `tokenizer.json`."""
        return str(self.backend.to_str(pretty=True))

    @cached_property
    def fingerprint(self) -> str:
        """A SHA-256 that is the same for tokenizers that behave alike."""
        canonical = json.dumps(json.loads(self.backend.to_str()), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Writes a `tokenizer.json`."""
        with write_atomically(path) as file:
            file.write(self.to_json().encode())

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Reads a `tokenizer.json`; one that training could not have written is an error."""
        try:
            text = read_bounded(path, _MAX_FILE_BYTES).decode()
        except (G2Error, UnicodeDecodeError) as error:
            raise G2Error(f"cannot read the tokenizer {path}: {error}") from None
        try:
            return cls(_parse(text))
        except G2Error as error:
            raise G2Error(f"{path} is not a tokenizer that g2lstm can use: {error}") from None


def begins_word(token: str) -> bool:
    """Whether a token of byte-pair encoding follows a space."""
    return token.startswith(_SPACE)


@cache
def _bytes_by_character() -> dict[str, int]:
    """The byte that each character of byte-pair encoding stands for: printable ones for themselves, then the others."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


def printable(text: str) -> str:
    r"""The text with control characters as escapes such as \x1b, so that no terminal or picture interprets them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def train_word_tokenizer(
    lines: Iterable[str],
    *,
    vocabulary: int | None = None,
    min_frequency: int = 1,
    lowercase: bool = False,
    is_cleaning: bool = False,
    is_split: bool = False,
) -> Tokenizer:
    """A tokenizer whose tokens are the words between white space, most frequent first.

    The vocabulary, if limited, includes `<unk>` and `<eos>`. Words rarer than `min_frequency` become `<unk>`. With
    `is_split`, every character is a word, white space too; `is_cleaning` is that of `train_bpe_tokenizer`.
    """
    backend = _new_backend(models.WordLevel({UNK: 0}, unk_token=UNK), lowercase, is_cleaning, is_split)
    counts: Counter[str] = Counter()
    for line in lines:
        text = line if backend.normalizer is None else backend.normalizer.normalize_str(line)
        counts.update(text if is_split else _WORD.findall(text))
    ranked = ((-count, word) for word, count in counts.items() if count >= min_frequency and word not in SPECIALS)
    first = sorted(ranked) if vocabulary is None else nsmallest(vocabulary - len(SPECIALS), ranked)
    ids = {token: index for index, token in enumerate((*SPECIALS, *(word for _, word in first)))}
    backend.model = models.WordLevel(ids, unk_token=UNK)
    return Tokenizer(backend)


def train_bpe_tokenizer(
    lines: Iterable[str],
    *,
    vocabulary: int | None,
    min_frequency: int = 2,
    lowercase: bool = False,
    is_cleaning: bool = False,
    is_tokenized: bool = False,
    prefix_space: bool = False,
) -> Tokenizer:
    """Byte-pair encoding over bytes: every text can be encoded, and decoding gives it back exactly.

    Args:
        lines: the training text.
        vocabulary: the maximum number of tokens, including the 256 bytes, `<unk>` and `<eos>`.
        min_frequency: pairs rarer than this are not merged.
        lowercase: convert the text to lower case first.
        is_cleaning: read a line in Unicode's form NFC, without control characters, without space around it, and with
            one space in place of white space of all kinds, so that what looks alike is alike.
        is_tokenized: spaces already separate words and punctuation, so that only a space ends a word: "&apos;s" is one.
        prefix_space: encode the first word of a line like any other, after a space, which decoding removes.
    """
    if vocabulary is None or vocabulary < MIN_BPE_VOCABULARY:
        raise G2Error(f"byte-pair encoding needs a vocabulary of at least {MIN_BPE_VOCABULARY}, got {vocabulary}")
    backend = _new_backend(models.BPE(), lowercase, is_cleaning, is_tokenized, prefix_space)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=min_frequency,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    short = _with_short_words(lines)
    beginning = list(islice(short, _LOOK_AT))
    if is_dense(beginning):
        spelling = {byte: character for character, byte in _bytes_by_character().items()}
        words = _SPACED_WORDS if is_tokenized else None
        backend.model = characters_first([*beginning, *short], SPECIALS, spelling, backend.normalizer, words, trainer)
        return Tokenizer(backend)
    backend.train_from_iterator(chain(beginning, short), trainer)
    # The trainer also tells the library to look for the special tokens in texts; a user's text must not produce them.
    settings = json.loads(backend.to_str())
    settings["added_tokens"] = []
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(settings)))


def _with_short_words(lines: Iterable[str]) -> Iterator[str]:
    """The lines, cut within words that are too long; says so once, unless the script has no spaces between words."""
    is_said = False
    for line in lines:
        start = 0
        for found in _LONG_WORD.finditer(line) if len(line) > _LONGEST else ():
            if not is_said and not _UNSPACED.search(found[0]):
                _LOGGER.warning(
                    "a word of more than %s characters is cut into pieces for training the tokenizer: %s...; if it is "
                    "not a word, remove it from the text", f"{_LONGEST:,}", printable(found[0][:40]),
                )  # fmt: skip
                is_said = True
            yield line[start : found.end()]
            start = found.end()
        yield line[start:]


def _new_backend(
    model: models.Model, lowercase: bool, is_cleaning: bool, is_tokenized: bool = False, prefix_space: bool = False
) -> tokenizers.Tokenizer:
    """The library's tokenizer with a model and our settings, which the functions for training explain."""
    backend = tokenizers.Tokenizer(model)
    is_word = isinstance(model, models.WordLevel)
    steps = [*cleaning()] if is_cleaning else []
    if lowercase:
        steps.append(normalizers.Lowercase())
    if prefix_space and not is_word:
        # The library's own option adds no space to a line that begins with one, so decoding could not undo it.
        steps.append(normalizers.Prepend(" "))
    if steps:
        backend.normalizer = normalizers.Sequence(steps) if len(steps) > 1 else steps[0]
    if is_word:
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        if is_tokenized:  # in the text itself, character by character
            backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
            backend.decoder = decoders.Fuse()
        return backend
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if is_tokenized:
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([_SPACED_WORDS, to_bytes])
    if prefix_space:
        backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return backend


def _parse(text: str) -> tokenizers.Tokenizer:
    """The library's tokenizer that a file describes.

    The library's format allows much more than training writes: patterns that run forever, padding to any length, tables
    that make the library panic. So the library never sees a file that says anything else.
    """
    try:
        found = parse_json(text)
    except ValueError as error:
        raise G2Error(f"it is damaged: {error}") from None
    model: Any = found.get("model") if isinstance(found, dict) else None
    kind = model.get("type") if isinstance(model, dict) else None
    if kind not in list(_KINDS):
        raise G2Error(f"its type is {str(kind)[:40]}, and only {' and '.join(_KINDS)} are allowed")
    contents = {key: model.pop(key) for key in ("vocab", "merges") if key in model}
    ours = next((settings for settings in _all_settings() if _says_nothing_else(found, settings)), None)
    if ours is None:
        raise G2Error("it has settings that training never writes; train the tokenizer again")
    ids = vocabulary.values() if isinstance(vocabulary := contents.get("vocab"), dict) else ()
    # A model has one row per token, so no id may lie beyond them.
    if not ids or {*map(type, ids)} != {int} or {*ids} != {*range(len(ids))}:
        raise G2Error("the ids of its tokens must be 0, 1, 2 and so on, each once")
    try:
        return tokenizers.Tokenizer.from_str(json.dumps({**ours, "model": {**ours["model"], **contents}}))
    except Exception as error:  # the library raises the bare class
        raise G2Error(f"it is damaged: {error}") from None


@cache
def _all_settings() -> tuple[dict[str, Any], ...]:
    """What training writes for every combination of settings, with an empty vocabulary."""
    kinds = (models.BPE(), models.WordLevel({UNK: 0}, unk_token=UNK))
    backends = [_new_backend(kind, *options) for kind in kinds for options in product((False, True), repeat=4)]
    return tuple(json.loads(backend.to_str()) for backend in backends)


def _says_nothing_else(found: Any, allowed: Any) -> bool:
    """Whether everything found is allowed; older versions of the library wrote fewer settings."""
    if isinstance(found, dict) and isinstance(allowed, dict):
        return all(key in allowed and _says_nothing_else(value, allowed[key]) for key, value in found.items())
    if isinstance(found, list) and isinstance(allowed, list):
        return len(found) == len(allowed) and all(map(_says_nothing_else, found, allowed))
    return type(found) is type(allowed) and bool(found == allowed)
