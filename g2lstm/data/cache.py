"""Where downloaded and prepared files are kept, and how they are written: under a temporary name, then renamed."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from g2lstm.errors import G2Error


def cache_dir() -> Path:
    """The folder for what can be made again: `G2LSTM_CACHE` if that is set, else the user's cache on this system."""
    if given := os.environ.get("G2LSTM_CACHE"):
        return Path(given).expanduser()
    import pooch  # type: ignore[import-untyped]

    return Path(pooch.os_cache("g2lstm"))


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


def keep_file(path: Path, content: bytes) -> None:
    """Writes a file of the cache unless it is there with just this content; a damaged one is made again."""
    if not path.is_file() or path.read_bytes() != content:
        with write_atomically(path) as file:
            file.write(content)


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
