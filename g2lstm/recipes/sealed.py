"""The recipe of a run says its version first and its end last, so that a newer or a truncated one is noticed."""

import re

from g2lstm.errors import G2Error

VERSION = 1  # of the run directory's layout; a reader refuses a newer one
_FIRST = re.compile(r"# g2lstm run, version (\d{1,9})")
_LAST = "# end"


def seal(toml: str) -> str:
    """The recipe with the line before it and the line after it; both are comments, so that it still is TOML."""
    return f"# g2lstm run, version {VERSION}\n{toml}{_LAST}\n"


def check_sealed(text: str, source: str) -> None:
    """Raises if a text is empty, or says it is a run's recipe and is of a newer version or has lost its end.

    Args:
        text: of any recipe; one that was written by hand, or by an older g2lstm, has no such lines and is fine.
        source: what messages call it.
    """
    if not text.strip():
        raise G2Error(f"the recipe {source} is empty; if it is a run's, put back a copy of it, or train anew")
    lines = text.splitlines()
    first = _FIRST.fullmatch(lines[0]) if lines else None
    if first is None:
        return
    if int(first[1]) > VERSION:
        raise G2Error(f"{source} is of version {first[1]}, this g2lstm reads up to {VERSION}; install a newer g2lstm")
    if _LAST not in lines:
        raise G2Error(
            f"the recipe {source} is truncated: its last line should be {_LAST!r}; put back a copy of it, or train anew"
        )
