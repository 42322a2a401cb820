"""Text into arrays of tokens, in memory that does not grow with the text."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from g2lstm.files import write_atomically
from g2lstm.text.text import Piece, read_pieces
from g2lstm.text.tokenize import Tokenizer

_ENCODE_CHARACTERS, _ENCODE_LINES = 1 << 18, 1 << 12  # text that is encoded at once
_JOIN_NUMBERS = 1 << 20  # that are copied at once


def write_tokens(
    text: Path, tokenizer: Tokenizer, path: Path, index: Path | None = None, *, start: int = 0, stop: int | None = None
) -> None:
    """Writes the tokens of a text, `<eos>` after each line.

    Args:
        text: a UTF-8 file.
        tokenizer: what encodes it.
        path: the .npy file to write.
        index: a second one, if wanted, for the start and the length of each line.
        start: only lines that begin at this byte or after it.
        stop: only lines that begin before this byte; None for all.
    """
    with ExitStack() as stack:
        tokens = _GrowingArray(stack.enter_context(write_atomically(path)), token_type(tokenizer))
        lines = index and _GrowingArray(stack.enter_context(write_atomically(index)), np.dtype("<i8"), 2)
        line_start = 0
        for pieces in _batches(read_pieces(text, start=start, stop=stop)):
            encoded = tokenizer.encode_lines([piece.text for piece in pieces])
            for ids, piece in zip(encoded, pieces, strict=True):
                if piece.ends_line:
                    ids.append(tokenizer.eos_id)
            if lines:
                ends = tokens.count + np.cumsum([len(ids) for ids in encoded])
                bounds = np.concatenate(([line_start], ends[[piece.ends_line for piece in pieces]]))
                lines.append(np.stack((bounds[:-1], np.diff(bounds) - 1), axis=1))
                line_start = bounds[-1]
            tokens.append(np.fromiter(chain.from_iterable(encoded), token_type(tokenizer)))
        tokens.finish()
        if lines:
            lines.finish()


def join_tokens(parts: Iterable[Sequence[Path]], tokenizer: Tokenizer, path: Path, index: Path | None = None) -> None:
    """Joins what `write_tokens` wrote of the parts of a text; the result has the bytes of one that was written at once.

    Args:
        parts: the files of each: tokens and, if an index is wanted, that.
        tokenizer: what encoded them.
        path: the .npy file to write.
        index: a second one, if wanted.
    """
    with ExitStack() as stack:
        tokens = _GrowingArray(stack.enter_context(write_atomically(path)), token_type(tokenizer))
        lines = index and _GrowingArray(stack.enter_context(write_atomically(index)), np.dtype("<i8"), 2)
        for part, *part_index in parts:
            if lines:
                for rows in _read_rows(*part_index):
                    rows[:, 0] += tokens.count
                    lines.append(rows)
            for rows in _read_rows(part):
                tokens.append(rows)
        tokens.finish()
        if lines:
            lines.finish()


def token_type(tokenizer: Tokenizer) -> np.dtype[np.integer]:
    """The smallest type that holds a tokenizer's ids."""
    return np.dtype("<u2" if len(tokenizer) <= 2**16 else "<u4")


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


def _read_rows(path: Path) -> Iterator[npt.NDArray[Any]]:
    """The rows of an .npy file, many at a time."""
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        while len(numbers := np.fromfile(file, dtype, _JOIN_NUMBERS)):
            yield numbers.reshape(-1, *shape[1:])


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
