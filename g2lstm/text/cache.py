"""Where downloaded and prepared files are kept."""

import os
from pathlib import Path

from g2lstm.files import write_atomically


def cache_dir() -> Path:
    """The folder for files that can be made again: `G2LSTM_CACHE` if set, else the user's cache on this system."""
    if given := os.environ.get("G2LSTM_CACHE"):
        return Path(given).expanduser()
    import pooch  # type: ignore[import-untyped]

    return Path(pooch.os_cache("g2lstm"))


def keep_file(path: Path, content: bytes) -> None:
    """Writes a file unless it already exists with exactly this content, so a damaged file is written again."""
    if not path.is_file() or path.read_bytes() != content:
        with write_atomically(path) as file:
            file.write(content)
