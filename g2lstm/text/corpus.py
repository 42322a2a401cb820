"""Token streams: a text is encoded once into files, which are then memory-mapped and read piece by piece."""

import hashlib
import json
import math
import mmap
import os
import shutil
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from g2lstm.errors import G2Error
from g2lstm.text.lines import check_has_text, sample_lines, sha256_of
from g2lstm.text.parts import Part, add_counts, alone, cut, join_tokens, make_parts, write_tokens
from g2lstm.text.registry import cache_dir
from g2lstm.text.tokenize import Tokenizer, train_bpe_tokenizer, train_word_tokenizer, word_tokenizer

FORMAT = 1  # of the prepared files; part of their names
SAMPLE_BYTES = 1 << 27  # of text that byte-pair encoding is trained on
_READ_BYTES = 1 << 30  # Linux reads at most 2 GiB in one call
_COUNTED_AT_ONCE = 1 << 20  # tokens


class MappedArray:
    """An array in an .npy file that is mapped into memory, not read.

    Attributes:
        values: the array. Rows that were accessed count as this process's memory until `release`, and so do many around
            them, because systems map large pieces of a file at once. So use `read` to copy scattered rows.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise ValueError(f"unexpected version {version}")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            flat = np.frombuffer(self._map, dtype, math.prod(shape), file.tell())
            self._start = file.tell()
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self.values: npt.NDArray[Any] = flat.reshape(shape)

    def read(self, start: int, count: int) -> npt.NDArray[Any]:
        """A copy of the rows from `start` on: (count, …), fewer at the end."""
        rows = self.values[start : start + count]
        place, left = self._start + start * self.values.strides[0], rows.nbytes
        chunks = []
        while left:
            chunk = os.pread(self._file, min(left, _READ_BYTES), place)
            if not chunk:
                raise G2Error(f"a prepared file became {left} bytes shorter while it was being read; start again")
            place, left = place + len(chunk), left - len(chunk)
            chunks.append(chunk)
        return np.frombuffer(b"".join(chunks), rows.dtype).reshape(rows.shape)

    def release(self) -> None:
        """Returns the memory of accessed rows to the system."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


class TokenStream:
    """The tokens of one split, in a file of which only the requested parts are read; made by `prepare_stream`.

    The file `index` has the start and the length of each line; `text_sha256` is for a result's signature.
    """

    def __init__(self, path: Path, index: Path, text_sha256: str) -> None:
        self.path = path
        self.text_sha256 = text_sha256
        self._tokens, self._index = MappedArray(path), MappedArray(index)
        if self._index.values[-1].sum() + 1 != len(self):
            raise ValueError("the index belongs to other tokens")

    def __len__(self) -> int:
        """The number of tokens, including the `<eos>` of each line."""
        return len(self._tokens.values)

    def read(self, start: int, length: int) -> npt.NDArray[np.int64]:
        """A copy of the tokens from `start` on: (length,)."""
        return self._tokens.read(start, length).astype(np.int64)

    def counts(self, vocabulary_size: int) -> npt.NDArray[np.int64]:
        """How often each token of a vocabulary occurs: (vocabulary_size,)."""
        counts = np.zeros(vocabulary_size, np.int64)
        for start in range(0, len(self), _COUNTED_AT_ONCE):
            counts += np.bincount(self.read(start, _COUNTED_AT_ONCE), minlength=vocabulary_size)
        return counts

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The lengths of the lines without `<eos>`: (lines,), a view of the file."""
        self._index.release()  # what was accessed before
        return self._index.values[:, 1]

    def line(self, number: int) -> npt.NDArray[np.int64]:
        """A copy of a line's tokens, without `<eos>`."""
        ((start, length),) = self._index.read(number, 1).tolist()
        return self.read(start, length)

    def columns(
        self, numbers: npt.NDArray[np.integer], fill: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Copies of some lines, whose numbers are (B,), side by side, with `fill` after the end of each.

        Returns:
            tokens: (T + 1, B), where T is the length of the longest line.
            lengths: (B,), without `<eos>`.
        """
        bounds = np.concatenate([self._index.read(number, 1) for number in numbers.tolist()])
        lengths = bounds[:, 1]
        block = np.full((lengths.max() + 1, len(numbers)), fill, dtype=np.int64)
        for column, (start, length) in zip(block.T, bounds.tolist(), strict=True):
            column[:length] = self._tokens.read(start, length)
        return block, lengths


def prepare_tokenizer(
    text: Path | Sequence[Path],
    kind: str = "word",
    *,
    vocabulary: int | None = None,
    min_frequency: int = 1,
    lowercase: bool = False,
    is_tokenized: bool = False,
    prefix_space: bool = False,
    cache: Path | None = None,
    workers: int | None = None,
) -> Tokenizer:
    """The tokenizer of a training text, trained on the first call and kept.

    All words are counted. Byte-pair encoding is trained on at most 128 MB, taken from evenly spaced stretches of a
    longer text. So memory grows not with the text, but with the number of words that are kept.

    Args:
        text: the training text, or several that share the tokenizer.
        kind: "word" or "bpe".
        vocabulary: the maximum number of tokens; None for all words.
        min_frequency: words rarer than this become `<unk>`; pairs rarer than this are not merged.
        lowercase: convert the text to lower case first.
        is_tokenized: see `train_bpe_tokenizer`; word tokenizers ignore it.
        prefix_space: likewise.
        cache: folder for prepared files; by default the user's cache.
        workers: how many processes prepare a large text; by default one per core.
    """
    if kind not in ("word", "bpe"):
        raise G2Error(f"the tokenizer must be 'word' or 'bpe', got {kind!r}")
    texts = [text] if isinstance(text, Path) else text
    settings: dict[str, Any] = {"vocabulary": vocabulary, "min_frequency": min_frequency, "lowercase": lowercase}
    for_bpe = {"is_tokenized": is_tokenized, "prefix_space": prefix_space}
    made_of = {"texts": [sha256_of(text) for text in texts], "kind": kind, **settings, **for_bpe}
    path = _cache_path(cache, made_of, "json")
    with suppress(G2Error):  # absent or damaged; whatever is in a cache can be made again
        return Tokenizer.load(path)
    if kind == "bpe":
        tokenizer = train_bpe_tokenizer(sample_lines(texts, SAMPLE_BYTES), **settings, **for_bpe)
    elif all(len(cut(text)) == 1 for text in texts):
        tokenizer = train_word_tokenizer(sample_lines(texts), **settings)
    else:
        return _count_in_parts(texts, path, settings, workers)
    tokenizer.save(path)
    return tokenizer


def _count_in_parts(texts: Sequence[Path], path: Path, settings: Mapping[str, Any], workers: int | None) -> Tokenizer:
    """The word tokenizer of large texts, saved in `path`."""
    for text in texts:
        check_has_text(text)
    folder = path.with_suffix(".parts")
    with alone(path.parent):
        with suppress(G2Error):  # another process may have made it meanwhile
            return Tokenizer.load(path)
        spans = [(str(text), *span) for text in texts for span in cut(text)]
        parts = [
            Part(*span, [str(folder / f"{number:04}.txt")], lowercase=settings["lowercase"])
            for number, span in enumerate(spans)
        ]
        make_parts(parts, workers)
        tokenizer = word_tokenizer(add_counts(Path(part.files[0]) for part in parts), **settings)
        tokenizer.save(path)
        shutil.rmtree(folder, ignore_errors=True)
    return tokenizer


def prepare_stream(
    text: Path, tokenizer: Tokenizer, *, cache: Path | None = None, workers: int | None = None
) -> TokenStream:
    """The tokens of a text, with `<eos>` after each line; encoded on the first call and kept.

    Memory does not grow with the text. A large one is encoded in parts; after an interruption, the next call continues
    with the remaining parts. Two processes may prepare the same text at once. `cache` and `workers` are those of
    `prepare_tokenizer`.
    """
    sha256 = sha256_of(text)
    made_of = {"text": sha256, "tokenizer": tokenizer.fingerprint}
    path, index = _cache_path(cache, made_of, "npy"), _cache_path(cache, {**made_of, "index": "lines"}, "npy")
    with suppress(OSError, ValueError):  # absent or damaged
        return TokenStream(path, index, sha256)
    spans = cut(text)
    if len(spans) == 1:
        write_tokens(text, tokenizer, path, index)
        return TokenStream(path, index, sha256)
    check_has_text(text)
    folder = index.with_suffix(".parts")
    with alone(folder.parent):
        with suppress(OSError, ValueError):  # another process may have made them meanwhile
            return TokenStream(path, index, sha256)
        tokenizer_file = folder / "tokenizer.json"
        tokenizer.save(tokenizer_file)
        parts = []
        for number, span in enumerate(spans):
            files = [str(folder / f"{number:04}.{kind}.npy") for kind in ("tokens", "lines")]
            parts.append(Part(str(text), *span, files, str(tokenizer_file)))
        make_parts(parts, workers)
        join_tokens(parts, tokenizer, path, index)
        shutil.rmtree(folder, ignore_errors=True)
    return TokenStream(path, index, sha256)


def _cache_path(cache: Path | None, made_of: Mapping[str, object], ending: str) -> Path:
    key = hashlib.sha256(json.dumps({"format": FORMAT, **made_of}, sort_keys=True).encode()).hexdigest()
    return (cache_dir() if cache is None else cache) / "prepared" / f"{key[:32]}.{ending}"
