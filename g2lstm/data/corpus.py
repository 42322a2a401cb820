"""Token streams: text is encoded once into a file, which is then read through memory mapping."""

import hashlib
import json
import math
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from g2lstm.data.cache import cache_dir, write_atomically
from g2lstm.data.text import Piece, read_pieces, sha256_of
from g2lstm.data.tokenize import Tokenizer, train_tokenizer
from g2lstm.errors import G2Error

FORMAT = 1  # of the prepared files; part of their names
_ENCODE_CHARACTERS, _ENCODE_LINES = 1 << 18, 1 << 12  # text that is encoded at once
_READS_BEFORE_RELEASE = 256


class MappedArray:
    """An array in an .npy file; reading a part of it brings only that part into memory.

    Args:
        path: the file.

    Attributes:
        values: the array.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise ValueError(f"unexpected version {version}")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            flat = np.frombuffer(self._map, dtype, math.prod(shape), file.tell())
        self.values: npt.NDArray[Any] = flat.reshape(shape)
        self._reads = 0

    def count_reads(self, reads: int) -> None:
        """To be called after reading, with how many places were read."""
        self._reads += reads
        # Pages that were read count as this process's memory until they are given back.
        if self._reads >= _READS_BEFORE_RELEASE:
            self._reads = 0
            if hasattr(mmap, "MADV_DONTNEED"):
                self._map.madvise(mmap.MADV_DONTNEED)


class TokenStream:
    """The tokens of one split, in a file that is read through memory mapping.

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
        part = self._tokens.values[start : start + length].astype(np.int64)
        self._tokens.count_reads(1)
        return part


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
        self._index.count_reads(_READS_BEFORE_RELEASE)  # since whoever asks for them may read them all
        return self._index.values[:, 1]

    def line(self, number: int) -> npt.NDArray[np.int64]:
        """A copy of a line's tokens, without `<eos>`."""
        start, length = self._index.values[number].tolist()
        self._index.count_reads(1)
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
        starts, lengths = self._index.values[numbers].T
        steps = np.arange(lengths.max() + 1)[:, None]
        is_token = steps < lengths
        block = np.full(is_token.shape, fill, dtype=np.int64)
        block[is_token] = self._tokens.values[(starts + steps)[is_token]]
        self._index.count_reads(len(numbers))
        self._tokens.count_reads(len(numbers))
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
) -> Tokenizer:
    """The tokenizer of a training text, trained at the first call and kept.

    Args:
        text: the training text, or several that share the tokenizer.
        kind: "word" or "bpe".
        vocabulary: at most so many tokens; None for all words.
        min_frequency: rarer words become `<unk>`; rarer pairs are not merged.
        lowercase: make the text lower-case first.
        is_tokenized: see `train_bpe_tokenizer`, like the next.
        prefix_space: encode the first word of a line like any other.
        cache: folder for prepared files; the user's cache if absent.
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
    if path.exists():
        with suppress(G2Error):  # damaged; what is in a cache can be made again
            return Tokenizer.load(path)
    lines = (piece.text for text in texts for piece in read_pieces(text))
    tokenizer = train_tokenizer(kind, lines, **settings)
    tokenizer.save(path)
    return tokenizer


def prepare_stream(text: Path, tokenizer: Tokenizer, *, cache: Path | None = None) -> TokenStream:
    """The tokens of a text, `<eos>` after each line; encoded at the first call and kept.

    Memory does not grow with the text. Two processes may prepare the same text at once.

    Args:
        text: a UTF-8 file.
        tokenizer: what encodes it.
        cache: folder for prepared files; the user's cache if absent.
    """
    sha256 = sha256_of(text)
    path = _cache_path(cache, {"text": sha256, "tokenizer": tokenizer.fingerprint}, "npy")
    if path.exists():
        with suppress(ValueError):  # damaged, as above
            return TokenStream(path, sha256)
    _write_tokens(text, tokenizer, path)
    return TokenStream(path, sha256)


def prepare_lines(text: Path, tokenizer: Tokenizer, *, cache: Path | None = None) -> LineStream:
    """Like `prepare_stream`, with an index of the lines."""
    sha256 = sha256_of(text)
    made_of = {"text": sha256, "tokenizer": tokenizer.fingerprint}
    path, index = _cache_path(cache, made_of, "npy"), _cache_path(cache, {**made_of, "index": "lines"}, "npy")
    if path.exists() and index.exists():
        with suppress(ValueError):
            return LineStream(path, index, sha256)
    _write_tokens(text, tokenizer, path, index)
    return LineStream(path, index, sha256)


def _cache_path(cache: Path | None, made_of: Mapping[str, object], ending: str) -> Path:
    key = hashlib.sha256(json.dumps({"format": FORMAT, **made_of}, sort_keys=True).encode()).hexdigest()
    return (cache_dir() if cache is None else cache) / "prepared" / f"{key[:32]}.{ending}"


def _write_tokens(text: Path, tokenizer: Tokenizer, path: Path, index: Path | None = None) -> None:
    """Writes the tokens and, if there is a path for it, the index: start and length of each line."""
    dtype = np.dtype("<u2" if len(tokenizer) <= 2**16 else "<u4")
    with ExitStack() as stack:
        tokens = _GrowingArray(stack.enter_context(write_atomically(path)), dtype)
        lines = index and _GrowingArray(stack.enter_context(write_atomically(index)), np.dtype("<i8"), 2)
        line_start = 0
        for pieces in _batches(read_pieces(text)):
            encoded = tokenizer.encode_lines([piece.text for piece in pieces])
            for ids, piece in zip(encoded, pieces, strict=True):
                if piece.ends_line:
                    ids.append(tokenizer.eos_id)
            if lines:
                ends = tokens.count + np.cumsum([len(ids) for ids in encoded])
                bounds = np.concatenate(([line_start], ends[[piece.ends_line for piece in pieces]]))
                lines.append(np.stack((bounds[:-1], np.diff(bounds) - 1), axis=1))
                line_start = bounds[-1]
            tokens.append(np.fromiter(chain.from_iterable(encoded), dtype))
        tokens.finish()
        if lines:
            lines.finish()


class _GrowingArray:
    """An .npy file, streamed: its header has room for the number of rows, which is known at the end."""

    def __init__(self, file: BinaryIO, dtype: np.dtype[np.integer], *row_shape: int) -> None:
        self.count = 0
        self._file, self._dtype, self._row_shape = file, dtype, row_shape
        self._write_header()

    def append(self, rows: npt.NDArray[np.integer]) -> None:
        self._file.write(rows.astype(self._dtype, copy=False).tobytes())
        self.count += len(rows)

    def finish(self) -> None:
        self._file.seek(0)
        self._write_header()

    def _write_header(self) -> None:
        descr, shape = np.lib.format.dtype_to_descr(self._dtype), (self.count, *self._row_shape)
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= _ENCODE_CHARACTERS or len(batch) >= _ENCODE_LINES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
