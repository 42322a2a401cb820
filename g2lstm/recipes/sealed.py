"""The text of a recipe: parsed within limits, and sealed in a run, so that a truncated or newer one is noticed."""

import re
import tomllib
from typing import Any

from g2lstm.errors import G2Error

VERSION = 1  # of the run directory's layout; a reader refuses a newer one
MAX_BYTES = 2**14  # a recipe has about 900; the time to read TOML can grow with the square
_FIRST, _LAST = re.compile(r"# g2lstm run, version (\d{1,9})"), "# end"


def parse_tables(content: bytes, source: str) -> dict[str, Any]:
    """What a recipe says; only the version and the last line of a run's recipe are checked.

    Args:
        content: of the file, at most `MAX_BYTES`.
        source: its name, for messages.
    """
    try:
        text = content.decode("utf-8")
        _check_seal(text, source)
        return tomllib.loads(text)
    except G2Error:
        raise
    except (ValueError, RecursionError) as error:  # tomllib raises more than TOMLDecodeError
        raise G2Error(f"the recipe {source} is not valid TOML: {str(error)[:200]}") from None


def seal(toml: str) -> str:
    """A run's recipe: the first line says its version, and the last that it is complete; both are comments."""
    return f"# g2lstm run, version {VERSION}\n{toml}{_LAST}\n"


def _check_seal(text: str, source: str) -> None:
    """Refuses a run's recipe that is newer or truncated. Other recipes need no such lines."""
    if not text.strip():
        raise G2Error(f"the recipe {source} is empty; if it belongs to a run, restore it from a copy, or train again")
    lines = text.splitlines()
    if (first := _FIRST.fullmatch(lines[0])) is None:
        return
    if int(first[1]) > VERSION:
        raise G2Error(f"{source} has version {first[1]}, but this g2lstm reads only up to {VERSION}; upgrade g2lstm")
    if _LAST not in lines:
        raise G2Error(
            f"the recipe {source} is truncated: its last line should be {_LAST!r}; restore it from a copy, or train "
            "again"
        )
