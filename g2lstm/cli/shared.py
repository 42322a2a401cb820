"""What commands share: their options, and printing: results to standard output, messages to standard error.

Names, tokens and texts may come from anyone, so nothing else in this package prints: everything passes `safe`.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from g2lstm.errors import G2Error

_LONGEST_NAME = 200  # bytes; most file systems allow 255, and a file has a longer name while it is written


def usable(path: Any) -> Any:
    """A path from the command line, or several, with ~ expanded; refuses what no file can be called."""
    if isinstance(path, list | tuple):
        return [usable(one) for one in path]
    if path is None:
        return None
    found = Path(os.path.expanduser(path))
    if found.parts and found.parts[0].startswith("~"):
        raise typer.BadParameter(
            f"there is no user {found.parts[0][1:]!r}; a folder of that name is ./{found.parts[0]}"
        )
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in found.parts) or len(os.fsencode(found)) > 4000:
        raise typer.BadParameter(f"{str(path)[:40]}... is too long for a file name; choose a shorter one")
    return found


Json = Annotated[bool, typer.Option("--json", help="Print one machine-readable object.")]
Run = Annotated[Path, typer.Argument(help="A run directory, made by `g2lstm train`.", callback=usable)]
Runs = Annotated[list[Path], typer.Argument(help="Run directories, compressed or not.", metavar="RUN", callback=usable)]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="The folder that holds the named data sets; the environment variable G2LSTM_DATA also sets it.",
        callback=usable,
    ),
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

MAX_INPUT = 1 << 20  # bytes of a prompt or a line on standard input, which might never end
UNKNOWN = "-"  # stands for what was not measured
# What a terminal obeys instead of showing it: control characters except tab and newline, line separators, marks that
# turn the direction of the text; and halves of surrogate pairs, which can't be written at all.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def safe(text: str) -> str:
    r"""The text with everything that a terminal would obey written out, as in JSON: \u001b."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _plain(text: str) -> Text:
    """The text for rich, which would take [brackets] and :colons: in a string for markup."""
    return Text(safe(text))


def not_utf8(error: UnicodeDecodeError) -> str:
    """What is wrong with bytes that are no text, and what to do."""
    return (
        f"is not UTF-8 text: byte 0x{error.object[error.start]:02x} at position {error.start + 1}; convert it first, "
        "for example with: iconv -f latin1 -t utf-8, if it is in latin1"
    )


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


def say(text: str, to: Console | None = None, *, is_prose: bool = False) -> None:
    """Prints a line, by default to standard output; a terminal gets prose with its lines broken between words."""
    to = to or console()
    to.print(_plain(text), highlight=False, soft_wrap=not (is_prose and to.is_terminal))


def tell(text: str) -> None:
    """Prints a message to standard error."""
    say(text, error_console())


def put(text: str) -> None:
    """Prints a line of text that a model made: to files and pipes as it is."""
    print(safe(text) if sys.stdout.isatty() else text)


def print_json(values: Any, *, ascii_only: bool = True) -> None:
    """Prints one object for machines; JSON has no NaN and no infinity."""
    try:
        text = json.dumps(values, ensure_ascii=ascii_only, allow_nan=False)
    except ValueError:
        raise G2Error("a result is infinite or not a number, so --json can't print it; leave out --json") from None
    print(safe(text))


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str] | None], *, title: str = "", caption: str = "", left: int = 1
) -> Table:
    """A table of plain text; a row that is None draws a line, and columns after the first `left` hold numbers."""
    made = Table(title=_plain(title) or None, caption=_plain(caption) or None, title_justify="left")
    for number, heading in enumerate(headings):
        made.add_column(_plain(heading), justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        if row is None:
            made.add_section()
        else:
            made.add_row(*map(_plain, row))
    return made


Model = TypeVar("Model")


def open_quickly(run: Path, kind: type[Model], eval_gate: str | None = None) -> Model | None:
    """The model in the runtime without torch, which answers the same; None if it can't be had.

    Then load the run with torch, whose checks say more about what is wrong with it.
    """
    from g2lstm.runtime.opened import load

    if run.is_file():
        return None
    try:
        found = load(run, eval_gate=eval_gate)
    except G2Error:
        return None
    return found if isinstance(found, kind) else None
