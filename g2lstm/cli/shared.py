"""What commands share: their options, and printing: results to standard output, messages to standard error."""

import json
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print one machine-readable object.")]
Run = Annotated[Path, typer.Argument(help="A run directory, made by `g2lstm train`.")]
Runs = Annotated[list[Path], typer.Argument(help="Run directories, compressed or not.", metavar="RUN")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="The folder that holds the named data sets; the environment variable G2LSTM_DATA also sets it."),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe; repeatable.")
]
EvalGate = Annotated[
    str | None,
    typer.Option(help="Gates in evaluation: soft, tempered or hard; by default the recipe's.", metavar="GATE"),
]
Beam = Annotated[int | None, typer.Option(min=1, help="The number of hypotheses to follow; 1 is greedy search.")]
LengthPenalty = Annotated[float | None, typer.Option(help="Divide scores by the length raised to this power.")]

UNKNOWN = "-"  # stands for what was not measured


def console() -> Console:
    """Standard output; in a file or a pipe, lines are wide enough for every table."""
    return _console(is_error=False, is_terminal=sys.stdout.isatty())


def error_console() -> Console:
    """Standard error, for bars and messages: standard output is for results."""
    return _console(is_error=True, is_terminal=sys.stderr.isatty())


@cache
def _console(is_error: bool, is_terminal: bool) -> Console:
    """One per stream, so that a second bar appears below the first."""
    return Console(stderr=is_error, width=None if is_terminal else 160)


def say(text: str, to: Console | None = None) -> None:
    """Prints a line as it is, by default to standard output."""
    (to or console()).print(text, highlight=False, markup=False, soft_wrap=True)


def tell(text: str) -> None:
    """Prints a message to standard error as it is."""
    say(text, error_console())


def print_json(values: Any) -> None:
    """Prints one object for machines."""
    print(json.dumps(values))


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str] | None], *, title: str = "", caption: str = "", left: int = 1
) -> Table:
    """A table of plain text; a row that is None draws a line, and columns after the first `left` hold numbers."""
    made = Table(title=escape(title) or None, caption=escape(caption) or None, title_justify="left")
    for number, heading in enumerate(headings):
        made.add_column(escape(heading), justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        if row is None:
            made.add_section()
        else:
            made.add_row(*map(escape, row))
    return made
