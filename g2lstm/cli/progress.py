"""Bars for work that reports what it has done."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress as Bar

from g2lstm.cli.output import error_console, progress_columns


@contextmanager
def bar() -> Iterator[Callable[[str, int, int], None]]:
    """A function that shows of what is being done so much of so much; nothing is drawn before its first call.

    So an error before the work begins stands alone, without an empty bar above it. Where standard error is no terminal,
    nothing is drawn at all.
    """
    console = error_console()
    shown = Bar(*progress_columns(), console=console, transient=True, disable=not console.is_terminal)
    tasks = {}

    def show(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = shown.add_task(what, total=total)
            shown.start()
        shown.update(tasks[what], completed=done, total=total)

    try:
        yield show
    finally:
        if shown.live.is_started:  # else it would print an empty line
            shown.stop()
