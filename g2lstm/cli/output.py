"""How commands show progress and tables."""

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn


def console() -> Console:
    """Standard output; in a file or a pipe, lines are wide enough for every table."""
    return Console(width=None if sys.stdout.isatty() else 160)


def error_console() -> Console:
    """Standard error, where bars and messages go: standard output is for results."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else 160)


def progress_columns() -> list[ProgressColumn]:
    """A bar with what is done, of how much, and the time left."""
    return [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
