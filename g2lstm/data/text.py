"""Reads text files line by line: UTF-8 or a clear error, in memory that does not grow with the file."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from g2lstm.errors import G2Error

PIECE_BYTES = 1 << 20  # a longer line is read in parts
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Piece(NamedTuple):
    """A line of text, or a part of a very long one."""

    text: str  # without the line's end
    ends_line: bool


def read_pieces(path: Path, limit: int = PIECE_BYTES) -> Iterator[Piece]:
    r"""Yields the lines of a file; one longer than `limit` bytes comes in parts, cut before a space where it has one.

    Lines end with \n or \r\n and nowhere else, and the last one may lack its end. A byte order mark is left out.

    Args:
        path: the file.
        limit: how many bytes are held at once.

    Raises:
        G2Error: the file is missing, cannot be read, is not UTF-8, or has no text in it.
    """
    has_text = False
    with open_to_read(path) as file:
        offset = len(_BYTE_ORDER_MARK) if file.read(len(_BYTE_ORDER_MARK)) == _BYTE_ORDER_MARK else 0
        file.seek(offset)
        line, rest = 1, b""
        while chunk := rest + file.readline(limit - len(rest)):
            ends_line = len(chunk) < limit or chunk.endswith(b"\n")
            cut = len(chunk) if ends_line else _where_to_cut(chunk)
            part, rest = chunk[:cut], chunk[cut:]
            text = _decode(part.removesuffix(b"\n").removesuffix(b"\r") if ends_line else part, path, line, offset)
            has_text = has_text or bool(text.strip())
            yield Piece(text, ends_line)
            line, offset = line + ends_line, offset + cut
    if not has_text:
        raise G2Error(f"{path} is empty: it has no text in it; put at least one line of words there")


def _where_to_cut(chunk: bytes) -> int:
    """Before the last space, which splits no word; else before the last character. Never at either end."""
    space = chunk.rfind(b" ", 1)
    if space > 0:
        return space
    cut = len(chunk) - 1
    while cut > len(chunk) - 4 and chunk[cut] & 0xC0 == 0x80:  # a byte inside a UTF-8 character
        cut -= 1
    return cut


def _decode(part: bytes, path: Path, line: int, offset: int) -> str:
    try:
        return part.decode("utf-8")
    except UnicodeDecodeError as error:
        raise G2Error(
            f"{path} is not UTF-8 text: byte 0x{part[error.start]:02x} at offset {offset + error.start}, line {line}; "
            "convert the file, for example with: iconv -f latin1 -t utf-8"
        ) from None


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
