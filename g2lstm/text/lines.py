"""Reads text files line by line: UTF-8 or a clear error, in memory that does not grow with the file."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from g2lstm.errors import G2Error

PIECE_BYTES = 1 << 20  # a longer line is read in pieces
_STRETCHES = 256  # of a file, that make up a sample
_BYTE_ORDER_MARK = "\ufeff"


class Piece(NamedTuple):
    """A line of text, or a piece of a very long one."""

    text: str  # without the line ending
    ends_line: bool


def read_pieces(path: Path, limit: int = PIECE_BYTES, *, start: int = 0, stop: int | None = None) -> Iterator[Piece]:
    r"""Yields the lines of a file; a line longer than `limit` bytes comes in pieces, cut before a space if it has one.

    Lines end only with \n or \r\n; the last line may lack its ending. A byte order mark is dropped.

    Args:
        path: the file.
        limit: how many bytes are held at once.
        start: skip lines that begin before this byte.
        stop: stop at the first line that begins at this byte or later; None to read to the end.

    Raises:
        G2Error: the file is missing, cannot be read, is not UTF-8, or, if all of it is read, contains no text.
    """
    has_text = False
    with open_to_read(path) as file:
        offset = _go_to_line(file, start, limit)
        rest, ends_line = b"", True
        while chunk := rest + file.readline(limit - len(rest)):
            if ends_line and stop is not None and offset >= stop:
                return
            ends_line = len(chunk) < limit or chunk.endswith(b"\n")
            cut = len(chunk) if ends_line else _where_to_cut(chunk)
            piece, rest = chunk[:cut], chunk[cut:]
            text = _decode(piece.removesuffix(b"\n").removesuffix(b"\r") if ends_line else piece, path, offset)
            if not offset:
                text = text.removeprefix(_BYTE_ORDER_MARK)
            has_text = has_text or bool(text.strip())
            yield Piece(text, ends_line)
            offset += cut
    if not has_text and not start and stop is None:
        raise G2Error(f"{path} contains no text; put at least one line of words in it")


def sample_lines(paths: Sequence[Path], max_bytes: int | None = None) -> Iterator[str]:
    """Yields the lines of some files, long lines in pieces; of large files, about `max_bytes` of lines.

    Those come from 256 evenly spaced stretches of each file. A file without text is an error.
    """
    total = sum(path.stat().st_size for path in paths if path.exists())
    for path in paths:
        if max_bytes is None or total <= max_bytes:
            yield from (piece.text for piece in read_pieces(path))
            continue
        check_has_text(path)
        size = path.stat().st_size
        for stretch in range(_STRETCHES):
            start = size * stretch // _STRETCHES
            stop = start + size * max_bytes // (total * _STRETCHES)
            yield from (piece.text for piece in read_pieces(path, start=start, stop=stop))


def check_has_text(path: Path) -> None:
    """Raises a G2Error if a file is missing or contains no text; reads up to the first word."""
    for piece in read_pieces(path):
        if piece.text.strip():
            return


def count_lines(path: Path, stop: int | None = None) -> int:
    """The number of lines in a file, or of those that begin before byte `stop`; the last may lack its ending."""
    count, last, left = 0, b"\n", math.inf if stop is None else stop
    with open_to_read(path) as file:
        while chunk := file.read(int(min(left, PIECE_BYTES))):
            count, last, left = count + chunk.count(b"\n"), chunk[-1:], left - len(chunk)
    return count + (last != b"\n")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, as 64 hexadecimal digits."""
    with open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def open_to_read(path: Path) -> Iterator[BufferedReader]:
    """Opens a user's file; turns the system's objections into a G2Error."""
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise G2Error(f"{path} does not exist; give the path of a text file") from None
    except IsADirectoryError:
        raise G2Error(f"{path} is a folder, not a text file") from None
    except OSError as error:
        raise G2Error(f"{path} cannot be read: {error.strerror}") from None


def _go_to_line(file: BufferedReader, start: int, limit: int) -> int:
    """Moves to the first line that begins at `start` or later, and returns its offset."""
    if start:
        file.seek(start - 1)
        while (skipped := file.readline(limit)) and not skipped.endswith(b"\n"):
            pass
    return file.tell()


def _where_to_cut(chunk: bytes) -> int:
    """Before the last space, which splits no word; failing that, before the last character. Never at either end."""
    space = chunk.rfind(b" ", 1)
    if space > 0:
        return space
    cut = len(chunk) - 1
    while cut > len(chunk) - 4 and chunk[cut] & 0xC0 == 0x80:  # a byte inside a UTF-8 character
        cut -= 1
    return cut


def _decode(piece: bytes, path: Path, offset: int) -> str:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError as error:
        raise G2Error(
            f"{path} is not UTF-8 text: byte 0x{piece[error.start]:02x} at offset {offset + error.start}, line "
            f"{count_lines(path, offset + 1)}; convert the file, for example with: iconv -f latin1 -t utf-8"
        ) from None
