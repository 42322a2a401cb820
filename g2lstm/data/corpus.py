"""Token streams for language models: text is encoded once into a file, which is then read through memory mapping."""

import hashlib
import json
import mmap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from g2lstm.data.cache import cache_dir, write_atomically
from g2lstm.data.text import Piece, read_pieces, sha256_of
from g2lstm.data.tokenize import Tokenizer, train_tokenizer
from g2lstm.errors import G2Error

FORMAT = 1  # of the prepared files; part of their names
_ENCODE_CHARACTERS, _ENCODE_LINES = 1 << 18, 1 << 12  # text that is encoded at once
_READS_BEFORE_RELEASE = 256


class TokenStream:
    """The tokens of one split, in a file; reading a part of it brings only that part into memory.

    Args:
        path: a prepared file of tokens, see `prepare_stream`.
        text_sha256: of the text it was made of, for a result's signature.
    """

    def __init__(self, path: Path, text_sha256: str) -> None:
        self.path = path
        self.text_sha256 = text_sha256
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise ValueError(f"unexpected version {version}")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._tokens: npt.NDArray[np.unsignedinteger] = np.frombuffer(self._map, dtype, shape[0], file.tell())
        self._reads = 0

    def __len__(self) -> int:
        """How many tokens there are, each line's `<eos>` included."""
        return len(self._tokens)

    def read(self, start: int, length: int) -> npt.NDArray[np.int64]:
        """A copy of the tokens from `start` on: (length,)."""
        part = self._tokens[start : start + length].astype(np.int64)
        self._reads += 1
        # Pages that were read count as this process's memory until they are given back.
        if self._reads % _READS_BEFORE_RELEASE == 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
        return part


def prepare_tokenizer(
    text: Path,
    kind: str = "word",
    *,
    vocabulary: int | None = None,
    min_frequency: int = 1,
    lowercase: bool = False,
    cache: Path | None = None,
) -> Tokenizer:
    """The tokenizer of a training text, trained at the first call and kept.

    Args:
        text: the training text.
        kind: "word" or "bpe".
        vocabulary: at most so many tokens; None for all words.
        min_frequency: rarer words become `<unk>`; rarer pairs are not merged.
        lowercase: make the text lower-case first.
        cache: folder for prepared files; the user's cache if absent.
    """
    settings = {"kind": kind, "vocabulary": vocabulary, "min_frequency": min_frequency, "lowercase": lowercase}
    path = _cache_path(cache, {"text": sha256_of(text), **settings}, "json")
    if path.exists():
        with suppress(G2Error):  # damaged; what is in a cache can be made again
            return Tokenizer.load(path)
    lines = (piece.text for piece in read_pieces(text))
    tokenizer = train_tokenizer(kind, lines, vocabulary=vocabulary, min_frequency=min_frequency, lowercase=lowercase)
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


def _cache_path(cache: Path | None, made_of: Mapping[str, object], ending: str) -> Path:
    key = hashlib.sha256(json.dumps({"format": FORMAT, **made_of}, sort_keys=True).encode()).hexdigest()
    return (cache_dir() if cache is None else cache) / "prepared" / f"{key[:32]}.{ending}"


def _write_tokens(text: Path, tokenizer: Tokenizer, path: Path) -> None:
    """An .npy file, streamed: its header has room for the length, which is known at the end."""
    dtype = np.dtype("<u2" if len(tokenizer) <= 2**16 else "<u4")
    count = 0
    with write_atomically(path) as file:
        _write_header(file, dtype, count)
        for pieces in _batches(read_pieces(text)):
            encoded = tokenizer.encode_lines([piece.text for piece in pieces])
            for ids, piece in zip(encoded, pieces, strict=True):
                if piece.ends_line:
                    ids.append(tokenizer.eos_id)
            tokens = np.fromiter(chain.from_iterable(encoded), dtype)
            count += len(tokens)
            file.write(tokens.tobytes())
        file.seek(0)
        _write_header(file, dtype, count)


def _write_header(file: BinaryIO, dtype: np.dtype[np.unsignedinteger], count: int) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, header)


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
