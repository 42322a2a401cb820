"""Reads text files line by line: UTF-8 or a clear error, in memory that does not grow with the file."""

import codecs
import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from g2lstm.errors import G2Error

PIECE_BYTES = 1 << 20  # a longer line is read in pieces
REPORT_BYTES = 1 << 24  # after which the log says how much has been read
_BINARY = "looks like binary data, not text; give a file of UTF-8 text"
_LOGGER = logging.getLogger(__name__)


class Piece(NamedTuple):
    """A line of text, or a piece of a very long one."""

    text: str  # without the line ending
    ends_line: bool


def read_pieces(path: Path, limit: int = PIECE_BYTES) -> Iterator[Piece]:
    r"""Yields the lines of a file; a line longer than `limit` bytes comes in pieces, cut before a space if it has one.

    Lines end only with \n or \r\n; the last line may lack its ending. A byte order mark is dropped. The log reports the
    progress in large files.

    Raises:
        G2Error: the file is missing, cannot be read, is not UTF-8, or contains no text.
    """
    has_text, rest = False, b""
    offset, line = 0, 1
    with open_to_read(path) as file:
        size, start = os.fstat(file.fileno()).st_size, file.peek()
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise G2Error(f"{path} is UTF-16 text, and UTF-8 is needed; convert it with: iconv -f utf-16 -t utf-8")
        if 100 * start.count(0) > len(start):
            raise G2Error(f"{path} {_BINARY}")
        while chunk := rest + file.readline(limit - len(rest)):
            ends_line = len(chunk) < limit or chunk.endswith(b"\n")
            try:
                text, used = codecs.utf_8_decode(chunk, "strict", ends_line)
            except UnicodeDecodeError as error:
                if 0 in start:
                    raise G2Error(f"{path} {_BINARY}") from None
                raise G2Error(
                    f"{path} is not UTF-8 text: byte 0x{chunk[error.start]:02x} at offset {offset + error.start}, line "
                    f"{line}; convert the file, for example with: iconv -f latin1 -t utf-8, if it is in latin1"
                ) from None
            if ends_line:
                text = text.removesuffix("\n").removesuffix("\r")
            else:  # cut before the last space, which splits no word; failing that, before the last character
                text = text[: text.rfind(" ", 1)]
                used = len(text.encode())
            if not offset:
                text = text.removeprefix("\ufeff")
            has_text = has_text or bool(text.strip())
            yield Piece(text, ends_line)
            before, offset, line, rest = offset, offset + used, line + ends_line, chunk[used:]
            if before // REPORT_BYTES < offset // REPORT_BYTES or offset == size >= REPORT_BYTES:
                _LOGGER.info("%s: %d of %d KB are done", f"reading {path}", offset >> 10, size >> 10)
    if not has_text:
        raise G2Error(f"{path} contains no text; put at least one line of words in it")


def sample_lines(paths: Sequence[Path], max_bytes: int | None = None) -> Iterator[str]:
    """Yields the lines of some files, long lines in pieces; from large files only about `max_bytes`, evenly spread.

    A file without text is an error.
    """
    total = sum(path.stat().st_size for path in paths)
    share = 1.0 if max_bytes is None else min(1.0, max_bytes / max(total, 1))
    for path in paths:
        for number, piece in enumerate(read_pieces(path)):
            if int((number + 1) * share) > int(number * share):
                yield piece.text


def count_characters(path: Path) -> int:
    """The number of characters in a text, with one for the end of each line."""
    return sum(len(piece.text) + piece.ends_line for piece in read_pieces(path))


def count_lines(path: Path) -> int:
    """The number of lines in a file; the last may lack its ending."""
    count, last = 0, b"\n"
    with open_to_read(path) as file:
        while chunk := file.read(PIECE_BYTES):  # not by lines: one may be longer than the memory
            count, last = count + chunk.count(b"\n"), chunk[-1:]
    return count + (last != b"\n")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, as 64 hexadecimal digits."""
    with open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def open_to_read(path: Path) -> Iterator[BufferedReader]:
    """Opens a user's file; turns the system's errors into a `G2Error`."""
    if not os.path.isfile(path) and os.path.exists(path):  # a pipe or a device might never end
        what = "a folder" if os.path.isdir(path) else "a pipe or a device"
        raise G2Error(f"{path} is {what}, not a text file; copy the text into a file")
    try:
        with path.open("rb") as file:
            if (hole := _first_hole(file)) is not None:
                raise G2Error(f"{path} has a hole at offset {hole}, where nothing was written; copy the text again")
            yield file
    except FileNotFoundError:
        raise G2Error(f"{path} does not exist; give the path of a text file") from None
    except OSError as error:
        raise G2Error(f"{path} cannot be read: {error.strerror}") from None


def _first_hole(file: BufferedReader) -> int | None:
    """Where a sparse file has no content, which reads as zeros; it can be longer than the disk."""
    if not hasattr(os, "SEEK_HOLE"):
        return None
    size = os.fstat(file.fileno()).st_size
    try:
        hole = os.lseek(file.fileno(), 0, os.SEEK_HOLE) if size else size
    except OSError:  # not every file system can tell
        return None
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    return hole if hole < size else None
