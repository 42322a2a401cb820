"""Reads untrusted files within limits, and writes files completely or not at all."""

import errno
import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from g2lstm.errors import G2Error


def read_bounded(path: Path, limit: int) -> bytes:
    """The content of a file of at most `limit` bytes.

    Raises a `G2Error` if it is longer, or can't be read, or is not a regular file; pipes and devices might never end.
    """
    if not os.path.isfile(path):  # never raises, however strange the name
        raise G2Error(f"{path} is not a file" if os.path.exists(path) else f"{path} does not exist")
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size <= limit:  # a sparse file can be longer than the disk
                return file.read()
    except OSError as error:
        raise G2Error(f"{path} cannot be read: {error.strerror}") from None
    raise G2Error(f"{path} is longer than {limit:,} bytes, too long for such a file; check that it is the right one")


def parse_json(
    text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None, *, allow_nan: bool = True
) -> Any:
    """Parses untrusted JSON; raises a `ValueError` if it is wrong or nested too deeply.

    Args:
        text: anything.
        pairs: makes a table from its keys and values; `dict` if not given.
        allow_nan: whether to accept NaN and infinities, which are not JSON but which Python writes.
    """
    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=None if allow_nan else _refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def in_order(content: bytes) -> bytes:
    """The content of a safetensors file with sorted metadata: the library writes them in a new order every time."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    facts = dict(sorted(header.pop("__metadata__", {}).items()))
    text = json.dumps({"__metadata__": facts} | header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors stay aligned
    return len(text).to_bytes(8, "little") + text + content[end:]


@contextmanager
def write_atomically(path: Path) -> Iterator[BinaryIO]:
    """Opens a new file that gets the name `path` only once it is complete; an error leaves no trace of it.

    Missing folders above it are created. Raises a `G2Error` if the folder can't be written to, or the disk is full.
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
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # so that the new name is on the disk, too
        finally:
            os.close(folder)
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise G2Error(
            f"{path} could not be written, the disk is full: {error.strerror}; the old content is unchanged. "
            "Free some space and try again"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file completely or not at all; see `write_atomically`."""
    with write_atomically(path) as file:
        file.write(content)


def refuse_existing(folder: Path, names: Sequence[str]) -> None:
    """Raises if one of these files exists."""
    if taken := [folder / name for name in names if os.path.lexists(folder / name)]:
        raise G2Error(
            f"{taken[0]} exists already; choose another name, or replace it: --force, or force=True in Python"
        )


@contextmanager
def together(path: Path, names: Sequence[str]) -> Iterator[Path]:
    """A temporary folder for files that get these names beside `path` together, or not at all after an error."""
    parent = path.parent
    is_new = not parent.exists()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=parent) as temporary:
            yield (folder := Path(temporary))
            for name in names:
                with (folder / name).open("rb") as file:
                    os.fsync(file.fileno())
            for name in names:
                os.replace(folder / name, parent / name)
    except OSError as error:
        raise G2Error(f"can't write {path}: {error.strerror or error}; choose another place with --out") from None
    finally:
        if is_new and parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()


def make_folder(folder: Path) -> None:
    """Creates a folder and those above it, unless they exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(folder, error) from None


def _refused(folder: Path, error: OSError) -> G2Error:
    return G2Error(f"{folder} cannot be written to: {error.strerror}; choose another folder (the cache: G2LSTM_CACHE)")


def is_disk_full(error: OSError) -> bool:
    """Whether a write failed for lack of space: a full disk, the user's quota or a limit on file sizes."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
