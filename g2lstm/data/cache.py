"""Where downloaded and prepared files are kept, and how they are written: under a temporary name, then renamed."""

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
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = temporary.open("xb")
    except OSError as error:
        raise G2Error(
            f"{path.parent} cannot be written to: {error.strerror}; choose another folder (the cache: G2LSTM_CACHE)"
        ) from None
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
