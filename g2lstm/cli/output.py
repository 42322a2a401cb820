"""How commands print: results to standard output, messages to standard error, tables the same everywhere."""

import json
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

UNKNOWN = "-"  # stands for what was not measured


def console() -> Console:
    """Standard output; in a file or a pipe, lines are wide enough for every table."""
    return _console(is_error=False, is_terminal=sys.stdout.isatty())


def error_console() -> Console:
    """Standard error, for bars and messages: standard output is for results."""
    return _console(is_error=True, is_terminal=sys.stderr.isatty())


@cache
def _console(is_error: bool, is_terminal: bool) -> Console:
    """One per stream, so that a bar that starts while another is drawn appears below it."""
    return Console(stderr=is_error, width=None if is_terminal else 160)


def say(text: str) -> None:
    """Prints a line of the result as it is."""
    console().print(text, highlight=False, markup=False, soft_wrap=True)


def tell(text: str) -> None:
    """Prints a message to standard error as it is."""
    error_console().print(text, highlight=False, markup=False, soft_wrap=True)


def print_json(values: Any) -> None:
    """Prints one object for machines."""
    print(json.dumps(values))


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str] | None], *, title: str = "", caption: str = "", left: int = 1
) -> Table:
    """A table of plain text.

    Args:
        headings: of the columns.
        rows: cells from left to right; None draws a line.
        title: above it.
        caption: below it.
        left: the number of columns that are left-aligned; the others hold numbers.
    """
    made = Table(title=escape(title) or None, caption=escape(caption) or None, title_justify="left")
    for number, heading in enumerate(headings):
        made.add_column(escape(heading), justify="left" if number < left else "right")
    for row in rows:
        if row is None:
            made.add_section()
        else:
            made.add_row(*map(escape, row))
    return made
