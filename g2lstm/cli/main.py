"""`g2lstm`: the command line. Every command has a file of its own; errors and exit codes are handled here."""

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from g2lstm.cli import (
    bench,
    compress,
    data,
    demo,
    evaluate,
    export,
    gates,
    generate,
    info,
    report,
    study,
    train,
    translate,
    view,
)
from g2lstm.cli.progress import preparing_shown
from g2lstm.errors import G2Error
from g2lstm.version import __version__

app = typer.Typer(
    help="LSTMs whose gates learn to be 0 or 1: train, score, compress and use them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("demo")(demo.demo)
app.add_typer(data.app, name="data")
app.command("train")(train.train)
app.command("eval")(evaluate.evaluate)
app.command("compress", help=compress.HELP)(compress.compress)
app.command("generate")(generate.generate)
app.command("translate")(translate.translate)
app.command("export")(export.export)
app.command("gates")(gates.gates)
app.command("view")(view.view)
app.command("report")(report.report)
app.command("study")(study.study)
app.command("info")(info.info)
app.add_typer(bench.app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"g2lstm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Exit codes: 0 done; 2 a mistake in what was asked; 130 interrupted, state saved; 1 a bug of ours."""


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Runs the command line; a user's mistake becomes one line and exit code 2.

    SIGTERM counts as an interrupt, so that half-written files are cleaned up. Training has its own handlers.
    """
    try:
        signal.signal(signal.SIGTERM, _interrupt)
        with preparing_shown():
            app()
    except G2Error as error:
        if "--debug" in sys.argv[1:]:
            raise
        print(f"g2lstm: {error}", file=sys.stderr)
        sys.exit(2)
