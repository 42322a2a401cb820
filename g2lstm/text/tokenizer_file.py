"""What a `tokenizer.json` may say: a vocabulary, its merges, and which of our few settings go with them.

The library's format can say much more: patterns that take for ever, padding to any length, tables that make it panic.
A file that says anything else than what training writes is refused, before the library sees it.
"""

import json
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from g2lstm.errors import G2Error
from g2lstm.files import parse_json

UNK, EOS = "<unk>", "<eos>"
KINDS = {"WordLevel": "word", "BPE": "bpe"}  # the library's names, and ours


def new_backend(
    model: models.Model, *, lowercase: bool = False, is_tokenized: bool = False, prefix_space: bool = False
) -> tokenizers.Tokenizer:
    """The library's tokenizer with a model and our settings, which `train_word_tokenizer` and its like explain."""
    backend = tokenizers.Tokenizer(model)
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    if isinstance(model, models.WordLevel):
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return backend
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
    return backend


def parse_tokenizer(text: str) -> tokenizers.Tokenizer:
    """The library's tokenizer that a file describes.

    Raises:
        G2Error: it is not one that training writes.
    """
    try:
        found = parse_json(text)
    except ValueError as error:
        raise G2Error(f"is damaged, or not a tokenizer of the tokenizers library: {error}") from None
    model = found.get("model") if isinstance(found, dict) else None
    if not isinstance(model, dict) or not isinstance(kind := model.get("type"), str):
        raise G2Error("is damaged, or not a tokenizer of the tokenizers library: it has no model")
    if kind not in KINDS:
        raise G2Error(f"holds a tokenizer of type {kind[:40]}; only {' and '.join(KINDS)} are allowed")
    contents = {key: model.pop(key) for key in ("vocab", "merges") if key in model}
    ours = next((settings for settings in _all_settings() if _says_nothing_else(found, settings)), None)
    if ours is None:
        raise G2Error("holds a tokenizer with settings that training never writes; train the tokenizer anew")
    _check_ids(contents.get("vocab"))
    try:
        return tokenizers.Tokenizer.from_str(json.dumps({**ours, "model": {**ours["model"], **contents}}))
    except Exception as error:  # the library raises the bare class
        raise G2Error(f"is damaged, or not a tokenizer of the tokenizers library: {error}") from None


def _check_ids(vocabulary: Any) -> None:
    """A model has as many rows as there are tokens, so that no id may lie beyond, and each is one token's."""
    if not isinstance(vocabulary, dict) or not all(type(number) is int for number in vocabulary.values()):
        raise G2Error("holds no vocabulary: tokens with their ids, which are whole numbers")
    if wrong := set(vocabulary.values()) ^ set(range(len(vocabulary))):
        raise G2Error(
            f"holds a vocabulary of {len(vocabulary)} tokens whose ids are not 0 to {len(vocabulary) - 1}, each once; "
            f"look at the id {str(min(wrong))[:40]}"
        )


@cache
def _all_settings() -> tuple[dict[str, Any], ...]:
    """The files of tokenizers with every setting and an empty vocabulary."""
    return tuple(json.loads(backend.to_str()) for backend in _every_backend())


def _every_backend() -> Iterator[tokenizers.Tokenizer]:
    for lowercase, is_tokenized, prefix_space in product((False, True), repeat=3):
        yield new_backend(models.BPE(), lowercase=lowercase, is_tokenized=is_tokenized, prefix_space=prefix_space)
    for lowercase in (False, True):
        yield new_backend(models.WordLevel({UNK: 0}, unk_token=UNK), lowercase=lowercase)


def _says_nothing_else(found: Any, allowed: Any) -> bool:
    """Whether all that is said is allowed; older versions of the library said less."""
    if isinstance(found, dict) and isinstance(allowed, dict):
        return all(key in allowed and _says_nothing_else(value, allowed[key]) for key, value in found.items())
    if isinstance(found, list) and isinstance(allowed, list):
        return len(found) == len(allowed) and all(map(_says_nothing_else, found, allowed))
    return type(found) is type(allowed) and bool(found == allowed)
