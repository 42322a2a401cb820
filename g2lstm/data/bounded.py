"""Limits for what anyone may have written: files up to a size, JSON that cannot do harm, and the memory there is."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def memory() -> int:
    """How many bytes of memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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
