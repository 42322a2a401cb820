"""How commands show progress and tables."""

import sys
from functools import cache

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn


def console() -> Console:
    """Standard output; in a file or a pipe, lines are wide enough for every table."""
    return _console(is_error=False, is_terminal=sys.stdout.isatty())


def error_console() -> Console:
    """Standard error, where bars and messages go: standard output is for results."""
    return _console(is_error=True, is_terminal=sys.stderr.isatty())


@cache
def _console(is_error: bool, is_terminal: bool) -> Console:
    """One for each stream, so that a bar that begins while another is drawn stands below it."""
    return Console(stderr=is_error, width=None if is_terminal else 160)


def progress_columns() -> list[ProgressColumn]:
    """A bar with what is done, of how much, and the time left."""
    return [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
