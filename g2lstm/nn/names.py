"""Names of modules inside a model, and patterns that pick some of them."""

from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from g2lstm.errors import G2Error


def called(name: str) -> str:
    """A module's name for people; the model itself has none."""
    return name or "the model itself"


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern, with `*` and `?`, matches a name or a module that contains it.

    "encoder" and "enc*" match "encoder" and "encoder.lstm"; "*.lstm" matches "encoder.lstm".
    """
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:count]), pattern) for count in range(1, len(parts) + 1))


def as_patterns(given: str | Iterable[str] | None) -> tuple[str, ...]:
    """One pattern, several or none as a tuple."""
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)


def check_patterns(patterns: Iterable[str], names: Iterable[str], what: str) -> None:
    """Raises if a pattern matches none of the names.

    Args:
        patterns: to check.
        names: those that exist.
        what: what has these names, in the plural, such as "recurrent layers".
    """
    names = list(names)
    for pattern in patterns:
        if any(matches(name, pattern) for name in names):
            continue
        near = get_close_matches(pattern, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        known = ", ".join(called(name) for name in names[:8]) + (", ..." if len(names) > 8 else "")
        raise G2Error(f"no {what} match {pattern!r}: there are {known or 'none'}{hint}")
