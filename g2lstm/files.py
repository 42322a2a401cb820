"""Reading files that anyone may have written, within limits; and writing them whole or not at all."""

import errno
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from g2lstm.errors import G2Error


def read_bounded(path: Path, limit: int) -> bytes:
    """The content of a file of at most `limit` bytes.

    Raises:
        G2Error: it is longer, or cannot be read, or is no file; pipes and devices might never end.
    """
    if not os.path.isfile(path):  # which raises for no name, however strange
        raise G2Error(f"{path} is not a file" if os.path.exists(path) else f"{path} does not exist")
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size <= limit:  # a file with holes can be of any length on any disk
                return file.read()
    except OSError as error:
        raise G2Error(f"{path} cannot be read: {error.strerror}") from None
    raise G2Error(f"{path} is longer than {limit:,} bytes, which such a file never is; put the right one there")


def parse_json(
    text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None, *, allow_nan: bool = True
) -> Any:
    """What JSON says.

    Args:
        text: anything.
        pairs: makes a table of its keys and values; `dict` if not given.
        allow_nan: take NaN and infinities, which Python writes too.

    Raises:
        ValueError: it is none, or nested too deeply, or has a number of thousands of digits.
    """
    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=None if allow_nan else _refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, limit: int) -> Any:
    """What a JSON file says that has at most `limit` bytes; one that says nothing is a `G2Error`."""
    content = read_bounded(path, limit)
    try:
        return parse_json(content)
    except ValueError as error:
        raise G2Error(f"{path} is no JSON that can be used: {error}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


@contextmanager
def write_atomically(path: Path) -> Iterator[BinaryIO]:
    """Opens a new file that takes the name `path` only when it is complete; after an error there is no trace of it.

    Args:
        path: the final name; folders above it are made.

    Raises:
        G2Error: the folder cannot be written to, or the disk is full.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    make_folder(path.parent)
    try:
        file = temporary.open("xb")
    except OSError as error:
        raise _refused(path.parent, error) from None
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise G2Error(
            f"{path} could not be written, the disk is full: {error.strerror}; what was there before is as it was. "
            "Make room, and try again"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it, if they are not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(folder, error) from None


def _refused(folder: Path, error: OSError) -> G2Error:
    return G2Error(f"{folder} cannot be written to: {error.strerror}; choose another folder (the cache: G2LSTM_CACHE)")


def is_disk_full(error: OSError) -> bool:
    """Whether there was no room to write: on the disk, within the user's share of it, or within a file's limit."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _sync_folder(folder: Path) -> None:
    """The new name, too, is on the disk when this returns."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
