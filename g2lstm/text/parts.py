"""Prepares large texts in parts: several processes work side by side, and an interrupted preparation resumes.

A part is made into files: token ids with an index of the lines, or counts of words. Memory does not grow with the text.
"""

import json
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from heapq import merge
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from g2lstm.errors import G2Error
from g2lstm.files import make_folder, write_atomically
from g2lstm.text.lines import Piece, open_to_read, read_pieces, sha256_of
from g2lstm.text.tokenize import Tokenizer, count_words

PART_BYTES = 1 << 25  # of text
_MAX_PARTS = 256  # larger texts have larger parts, because the files of all parts are open at once
_ENCODE_CHARACTERS, _ENCODE_LINES = 1 << 18, 1 << 12  # of text that is encoded at once
_JOIN_NUMBERS = 1 << 20  # that are copied at once
_USERS_MISTAKE = 2  # exit code of a process that made a part
_LOGGER = logging.getLogger(__name__)


class Part(NamedTuple):
    """A part of a text, and the files to be made from it."""

    text: str
    start: int  # the first byte: a line belongs to the part in which it begins
    stop: int  # the byte after the last
    files: list[str]  # tokens and an index of lines, or counts of words
    tokenizer: str | None = None  # a file; without one, words are counted
    lowercase: bool = False  # before words are counted

    def is_made(self) -> bool:
        """Whether all files exist as they were written."""
        with suppress(OSError, ValueError, G2Error):
            return bool(json.loads(self._seal.read_bytes()) == self._facts())
        return False

    def make(self) -> None:
        """Makes the files, then one that says which part they are, with their checksums."""
        text, paths = Path(self.text), [Path(file) for file in self.files]
        if self.tokenizer is None:
            lines = (piece.text for piece in read_pieces(text, start=self.start, stop=self.stop))
            write_counts(count_words(lines, lowercase=self.lowercase), *paths)
        else:
            write_tokens(text, Tokenizer.load(Path(self.tokenizer)), *paths, start=self.start, stop=self.stop)
        with write_atomically(self._seal) as file:
            file.write(json.dumps(self._facts()).encode())

    @property
    def _seal(self) -> Path:
        return Path(self.files[0] + ".json")

    def _facts(self) -> list[int | str]:
        return [self.start, self.stop, *(sha256_of(Path(file)) for file in self.files)]


def cut(text: Path) -> list[tuple[int, int]]:
    """Where the parts of a text start and stop, in bytes."""
    with open_to_read(text) as file:
        size = file.seek(0, os.SEEK_END)
    count = min(max(-(-size // PART_BYTES), 1), _MAX_PARTS)
    return [(size * number // count, size * (number + 1) // count) for number in range(count)]


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits until no other process prepares a large text in a folder; a process that dies blocks nobody."""
    make_folder(folder)
    lock = FileLock(folder.with_suffix(".lock"))
    try:
        lock.acquire()
    except OSError as error:
        raise G2Error(f"cannot lock {folder}: {error.strerror}; set G2LSTM_CACHE to another folder") from None
    try:
        yield
    finally:
        lock.release()


def make_parts(parts: Sequence[Part], workers: int | None = None) -> None:
    """Makes the parts that are missing or damaged; the log reports each.

    As many processes as `workers` make them, by default one per core. With 1, this process does the work.
    """
    missing = [part for part in parts if not part.is_made()]
    made = _make(missing, min(workers or _cores(), len(missing)))
    for done, part in enumerate(made, start=len(parts) - len(missing) + 1):
        _LOGGER.info("%s: %d of %d parts are done", f"preparing {part.text}", done, len(parts))


def _make(parts: Sequence[Part], workers: int) -> Iterator[Part]:
    """Makes parts, and yields each when it is complete."""
    if workers <= 1:
        for part in parts:
            part.make()
            yield part
        return
    with ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(_make_in_new_process, part): part for part in parts}
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        finally:
            pool.shutdown(cancel_futures=True)  # after an error, only parts already begun are completed


def _make_in_new_process(part: Part) -> None:
    # Not `multiprocessing`: that would run the user's own script again, and fail if it lacks a guard against this.
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__],
        input=json.dumps(part).encode(),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
        process_group=0,  # an interrupt on the keyboard is for the process that started this one
        check=False,
    )
    if done.returncode == _USERS_MISTAKE:
        raise G2Error(done.stdout.decode())
    if done.returncode:
        raise G2Error(
            f"a process preparing {part.text} ended early, with code {done.returncode} (-9 may mean that memory ran "
            "out); run the same command again, and it continues with the remaining parts"
        )


def main() -> None:
    """Makes the part described on standard input; writes the message of a user's mistake to standard output."""
    try:
        Part(*json.load(sys.stdin)).make()
    except G2Error as error:
        with suppress(BrokenPipeError):  # the process that started this one has died
            os.write(1, str(error).encode())
        sys.exit(_USERS_MISTAKE)


def write_tokens(
    text: Path, tokenizer: Tokenizer, path: Path, index: Path, *, start: int = 0, stop: int | None = None
) -> None:
    """Writes .npy files: the tokens of a text, with `<eos>` after each line, and the start and length of each line.

    `read_pieces` explains `start` and `stop`.
    """
    with _token_files(tokenizer, path, index) as (tokens, lines):
        line_start = 0
        for pieces in _batches(read_pieces(text, start=start, stop=stop)):
            encoded = tokenizer.encode_lines([piece.text for piece in pieces])
            for ids, piece in zip(encoded, pieces, strict=True):
                if piece.ends_line:
                    ids.append(tokenizer.eos_id)
            ends = tokens.count + np.cumsum([len(ids) for ids in encoded])
            bounds = np.concatenate(([line_start], ends[[piece.ends_line for piece in pieces]]))
            lines.append(np.stack((bounds[:-1], np.diff(bounds) - 1), axis=1))
            line_start = bounds[-1]
            tokens.append(np.fromiter(chain.from_iterable(encoded), np.int64))


def join_tokens(parts: Iterable[Part], tokenizer: Tokenizer, path: Path, index: Path) -> None:
    """Joins the files of parts into the same bytes that `write_tokens` would have written for the whole text."""
    with _token_files(tokenizer, path, index) as (tokens, lines):
        for part in parts:
            part_tokens, part_index = map(Path, part.files)
            for rows in _read_rows(part_index):
                rows[:, 0] += tokens.count
                lines.append(rows)
            for rows in _read_rows(part_tokens):
                tokens.append(rows)


def write_counts(counts: Counter[str], path: Path) -> None:
    """Writes counts of words, one word per line, in alphabetical order."""
    with write_atomically(path) as file:
        file.writelines(f"{word} {count}\n".encode() for word, count in sorted(counts.items()))


def add_counts(paths: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """Adds up files of `write_counts`: each word once, in order. Memory holds one line of each file."""

    def parse(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
        for line in lines:
            word, count = line.split(" ")
            yield word, int(count)

    with ExitStack() as stack:
        files = [stack.enter_context(path.open(encoding="utf-8", newline="\n")) for path in paths]
        for word, group in groupby(merge(*map(parse, files)), key=itemgetter(0)):
            yield word, sum(count for _, count in group)


class _GrowingArray:
    """An .npy file written in chunks: its header leaves room for the number of rows, which is known only at the end."""

    def __init__(self, file: BinaryIO, dtype: str, *row_shape: int) -> None:
        self.count = 0
        self._file, self._dtype, self._row_shape = file, np.dtype(dtype), row_shape
        self.write_header()

    def append(self, rows: npt.NDArray[np.integer]) -> None:
        self._file.write(rows.astype(self._dtype, copy=False).tobytes())
        self.count += len(rows)

    def write_header(self) -> None:
        self._file.seek(0)
        descr, shape = np.lib.format.dtype_to_descr(self._dtype), (self.count, *self._row_shape)
        np.lib.format.write_array_header_1_0(self._file, {"descr": descr, "fortran_order": False, "shape": shape})


@contextmanager
def _token_files(tokenizer: Tokenizer, path: Path, index: Path) -> Iterator[tuple[_GrowingArray, _GrowingArray]]:
    """New files for tokens, in the smallest type that holds their ids, and for the index of lines."""
    with write_atomically(path) as tokens_file, write_atomically(index) as lines_file:
        tokens = _GrowingArray(tokens_file, "<u2" if len(tokenizer) <= 2**16 else "<u4")
        lines = _GrowingArray(lines_file, "<i8", 2)
        yield tokens, lines
        tokens.write_header()
        lines.write_header()


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


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    main()
