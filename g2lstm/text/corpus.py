"""Token streams: text is encoded once into a file, which is then mapped and read in parts."""

import hashlib
import json
import math
import mmap
import os
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from g2lstm.errors import G2Error
from g2lstm.text.cache import cache_dir, keep_file
from g2lstm.text.counting import add_counts
from g2lstm.text.encode import join_tokens, write_tokens
from g2lstm.text.parts import Part, alone, cut, make_parts
from g2lstm.text.text import check_has_text, sample_lines, sha256_of
from g2lstm.text.tokenize import Tokenizer, train_tokenizer, word_tokenizer

FORMAT = 1  # of the prepared files; part of their names
_MOST_AT_ONCE = 1 << 30  # bytes; Linux reads no more than 2 GiB in one call
_COUNTED_AT_ONCE = 1 << 20  # tokens
SAMPLE_BYTES = 1 << 27  # of text that byte-pair encoding is trained on


class MappedArray:
    """An array in an .npy file that is mapped into memory, not read.

    Args:
        path: the file.

    Attributes:
        values: the array. What is looked at counts as this process's memory until `release`, and much of what is around
            it, since systems map large pieces of a file at once. So scattered rows are better copied with `read`.
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
        parts = []
        while left:
            part = os.pread(self._file, min(left, _MOST_AT_ONCE), place)
            if not part:
                raise G2Error(f"a prepared file has become {left} bytes shorter while it was read; start anew")
            place, left = place + len(part), left - len(part)
            parts.append(part)
        return np.frombuffer(b"".join(parts), rows.dtype).reshape(rows.shape)

    def release(self) -> None:
        """Gives the memory of rows that were looked at back to the system."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


class TokenStream:
    """The tokens of one split, in a file of which only the parts that are asked for are read.

    Args:
        path: a prepared file of tokens, see `prepare_stream`.
        text_sha256: of the text it was made of, for a result's signature.
    """

    def __init__(self, path: Path, text_sha256: str) -> None:
        self.path = path
        self.text_sha256 = text_sha256
        self._tokens = MappedArray(path)

    def __len__(self) -> int:
        """How many tokens there are, each line's `<eos>` included."""
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


class LineStream(TokenStream):
    """The tokens of one split, which know their lines.

    Args:
        path: a prepared file of tokens.
        index: a prepared file with the start and the length of each line, see `prepare_lines`.
        text_sha256: of the text.
    """

    def __init__(self, path: Path, index: Path, text_sha256: str) -> None:
        super().__init__(path, text_sha256)
        self._index = MappedArray(index)
        if self._index.values[-1].sum() + 1 != len(self):
            raise ValueError("the index belongs to other tokens")

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Of the lines, without `<eos>`: (lines,), a view of the file."""
        self._index.release()  # those that were asked for before
        return self._index.values[:, 1]

    def line(self, number: int) -> npt.NDArray[np.int64]:
        """A copy of a line's tokens, without `<eos>`."""
        ((start, length),) = self._index.read(number, 1).tolist()
        return self.read(start, length)

    def columns(
        self, numbers: npt.NDArray[np.integer], fill: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Copies of some lines side by side.

        Args:
            numbers: (B,), of the lines.
            fill: what stands after the end of each.

        Returns:
            tokens: (T + 1, B), T being the length of the longest of them.
            lengths: (B,), without `<eos>`.
        """
        bounds = np.concatenate([self._index.read(number, 1) for number in numbers.tolist()])
        lengths = bounds[:, 1]
        block = np.full((lengths.max() + 1, len(numbers)), fill, dtype=np.int64)
        for column, (start, length) in zip(block.T, bounds.tolist(), strict=True):
            column[:length] = self._tokens.read(start, length)
        return block, lengths


Stream = TypeVar("Stream", bound=TokenStream)


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
    """The tokenizer of a training text, trained at the first call and kept.

    Words are counted in all of it. Byte-pair encoding is trained on 128 MB at most: of a longer text on stretches that
    are evenly spread over it. So memory does not grow with the text, but with the number of words that are kept.

    Args:
        text: the training text, or several that share the tokenizer.
        kind: "word" or "bpe".
        vocabulary: at most so many tokens; None for all words.
        min_frequency: rarer words become `<unk>`; rarer pairs are not merged.
        lowercase: make the text lower-case first.
        is_tokenized: see `train_bpe_tokenizer`, like the next.
        prefix_space: encode the first word of a line like any other.
        cache: folder for prepared files; the user's cache if absent.
        workers: processes that count the words of large texts side by side; as many as there are cores if absent.
    """
    texts = [text] if isinstance(text, Path) else text
    settings: dict[str, Any] = {
        "vocabulary": vocabulary,
        "min_frequency": min_frequency,
        "lowercase": lowercase,
        "is_tokenized": is_tokenized,
        "prefix_space": prefix_space,
    }
    path = _cache_path(cache, {"texts": [sha256_of(text) for text in texts], "kind": kind, **settings}, "json")
    with suppress(G2Error):  # absent or damaged; what is in a cache can be made again
        return Tokenizer.load(path)
    if kind == "word" and any(len(cut(text)) > 1 for text in texts):
        return _count_in_parts(texts, path, vocabulary, min_frequency, lowercase, workers)
    tokenizer = train_tokenizer(kind, sample_lines(texts, SAMPLE_BYTES if kind == "bpe" else None), **settings)
    tokenizer.save(path)
    return tokenizer


def _count_in_parts(
    texts: Sequence[Path],
    path: Path,
    vocabulary: int | None,
    min_frequency: int,
    lowercase: bool,
    workers: int | None,
) -> Tokenizer:
    """The word tokenizer of large texts, to be kept in `path`."""
    for text in texts:
        check_has_text(text)
    folder = path.with_suffix(".parts")
    with alone(path.parent):
        with suppress(G2Error):  # another process has made it meanwhile
            return Tokenizer.load(path)
        spans = [(text, *span) for text in texts for span in cut(text)]
        files = [str(folder / f"{number:04}.txt") for number in range(len(spans))]
        parts = [
            Part(str(text), start, stop, [file], lowercase=lowercase)
            for (text, start, stop), file in zip(spans, files, strict=True)
        ]
        make_parts(parts, workers)
        counts = add_counts(map(Path, files))
        tokenizer = word_tokenizer(counts, vocabulary=vocabulary, min_frequency=min_frequency, lowercase=lowercase)
        tokenizer.save(path)
        shutil.rmtree(folder, ignore_errors=True)
    return tokenizer


def prepare_stream(
    text: Path, tokenizer: Tokenizer, *, cache: Path | None = None, workers: int | None = None
) -> TokenStream:
    """The tokens of a text, `<eos>` after each line; encoded at the first call and kept.

    Memory does not grow with the text. A large one is encoded in parts; if that is cut short, the next call goes on
    with the parts that are left. Two processes may prepare the same text at once.

    Args:
        text: a UTF-8 file.
        tokenizer: what encodes it.
        cache: folder for prepared files; the user's cache if absent.
        workers: processes that encode a large text side by side; as many as there are cores if absent.
    """
    sha256 = sha256_of(text)
    path = _cache_path(cache, {"text": sha256, "tokenizer": tokenizer.fingerprint}, "npy")
    return _prepare(lambda: TokenStream(path, sha256), text, tokenizer, [path], workers)


def prepare_lines(
    text: Path, tokenizer: Tokenizer, *, cache: Path | None = None, workers: int | None = None
) -> LineStream:
    """Like `prepare_stream`, with an index of the lines."""
    sha256 = sha256_of(text)
    made_of = {"text": sha256, "tokenizer": tokenizer.fingerprint}
    path, index = _cache_path(cache, made_of, "npy"), _cache_path(cache, {**made_of, "index": "lines"}, "npy")
    return _prepare(lambda: LineStream(path, index, sha256), text, tokenizer, [path, index], workers)


def _prepare(
    open_files: Callable[[], Stream], text: Path, tokenizer: Tokenizer, paths: list[Path], workers: int | None
) -> Stream:
    """Opens prepared files, tokens and perhaps an index, or makes them first."""
    with suppress(OSError, ValueError):  # absent or damaged
        return open_files()
    spans = cut(text)
    if len(spans) == 1:
        write_tokens(text, tokenizer, *paths)
        return open_files()
    check_has_text(text)
    folder = paths[-1].with_suffix(".parts")
    with alone(folder.parent):
        with suppress(OSError, ValueError):  # another process has made them meanwhile
            return open_files()
        keep_file(folder / "tokenizer.json", tokenizer.to_json().encode())
        files = [
            [folder / f"{number:04}.{kind}.npy" for kind in ("tokens", "lines")[: len(paths)]]
            for number in range(len(spans))
        ]
        parts = [
            Part(str(text), *span, list(map(str, some)), str(folder / "tokenizer.json"))
            for span, some in zip(spans, files, strict=True)
        ]
        make_parts(parts, workers)
        join_tokens(files, tokenizer, *paths)
        shutil.rmtree(folder, ignore_errors=True)
    return open_files()


def _cache_path(cache: Path | None, made_of: Mapping[str, object], ending: str) -> Path:
    key = hashlib.sha256(json.dumps({"format": FORMAT, **made_of}, sort_keys=True).encode()).hexdigest()
    return (cache_dir() if cache is None else cache) / "prepared" / f"{key[:32]}.{ending}"
