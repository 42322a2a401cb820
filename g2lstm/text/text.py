"""Reads text files line by line: UTF-8 or a clear error, in memory that does not grow with the file."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from g2lstm.errors import G2Error

PIECE_BYTES = 1 << 20  # a longer line is read in parts
_STRETCHES = 256  # of a file, that a sample is made of
_BYTE_ORDER_MARK = "\ufeff"


class Piece(NamedTuple):
    """A line of text, or a part of a very long one."""

    text: str  # without the line's end
    ends_line: bool


def read_pieces(path: Path, limit: int = PIECE_BYTES, *, start: int = 0, stop: int | None = None) -> Iterator[Piece]:
    r"""Yields the lines of a file; one longer than `limit` bytes comes in parts, cut before a space where it has one.

    Lines end with \n or \r\n and nowhere else, and the last one may lack its end. A byte order mark is left out.

    Args:
        path: the file.
        limit: how many bytes are held at once.
        start: only lines that begin at this byte or after it.
        stop: only lines that begin before this byte; None for all.

    Raises:
        G2Error: the file is missing, cannot be read, is not UTF-8, or, if all of it is read, has no text in it.
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
            part, rest = chunk[:cut], chunk[cut:]
            text = _decode(part.removesuffix(b"\n").removesuffix(b"\r") if ends_line else part, path, offset)
            if not offset:
                text = text.removeprefix(_BYTE_ORDER_MARK)
            has_text = has_text or bool(text.strip())
            yield Piece(text, ends_line)
            offset += cut
    if not has_text and not start and stop is None:
        raise G2Error(f"{path} is empty: it has no text in it; put at least one line of words there")


def _go_to_line(file: BufferedReader, start: int, limit: int) -> int:
    """Goes to the first line that begins at `start` or after it, and returns where that is."""
    if start:
        file.seek(start - 1)
        while (skipped := file.readline(limit)) and not skipped.endswith(b"\n"):
            pass
    return file.tell()


def sample_lines(paths: Sequence[Path], most_bytes: int | None = None) -> Iterator[str]:
    """Yields the lines of some files, a long line in parts; of files that are larger, about so many bytes of lines.

    They are those of 256 stretches of each file, evenly spread. A file without text in it is an error.

    Args:
        paths: the files.
        most_bytes: of all together; None for all.
    """
    total = sum(path.stat().st_size for path in paths if path.exists())
    for path in paths:
        if most_bytes is None or total <= most_bytes:
            yield from (piece.text for piece in read_pieces(path))
            continue
        check_has_text(path)
        size = path.stat().st_size
        for stretch in range(_STRETCHES):
            start = size * stretch // _STRETCHES
            stop = start + size * most_bytes // (total * _STRETCHES)
            yield from (piece.text for piece in read_pieces(path, start=start, stop=stop))


def _where_to_cut(chunk: bytes) -> int:
    """Before the last space, which splits no word; else before the last character. Never at either end."""
    space = chunk.rfind(b" ", 1)
    if space > 0:
        return space
    cut = len(chunk) - 1
    while cut > len(chunk) - 4 and chunk[cut] & 0xC0 == 0x80:  # a byte inside a UTF-8 character
        cut -= 1
    return cut


def _decode(part: bytes, path: Path, offset: int) -> str:
    try:
        return part.decode("utf-8")
    except UnicodeDecodeError as error:
        raise G2Error(
            f"{path} is not UTF-8 text: byte 0x{part[error.start]:02x} at offset {offset + error.start}, line "
            f"{count_newlines(path, offset) + 1}; convert the file, for example with: iconv -f latin1 -t utf-8"
        ) from None


def count_newlines(path: Path, stop: int) -> int:
    """How many lines end within the first `stop` bytes of a file."""
    count = 0
    with open_to_read(path) as file:
        while stop > 0 and (chunk := file.read(min(stop, PIECE_BYTES))):
            count, stop = count + chunk.count(b"\n"), stop - len(chunk)
    return count


def check_has_text(path: Path) -> None:
    """Raises a G2Error if a file is missing or has no text in it; it is read up to the first word."""
    for piece in read_pieces(path):
        if piece.text.strip():
            return


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, as 64 hexadecimal digits."""
    with open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def open_to_read(path: Path) -> Iterator[BufferedReader]:
    """Opens a file of the user's; what the system objects to becomes a G2Error."""
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise G2Error(f"{path} does not exist; give the path of a text file") from None
    except IsADirectoryError:
        raise G2Error(f"{path} is a folder, not a text file") from None
    except OSError as error:
        raise G2Error(f"{path} cannot be read: {error.strerror}") from None
