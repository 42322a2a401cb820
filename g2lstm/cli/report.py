"""`g2lstm report`: what is known of some runs, in one file that any browser shows."""

from pathlib import Path
from typing import Annotated

import typer

from g2lstm.cli.options import DataDir
from g2lstm.cli.output import console, error_console


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, compressed ones too.", metavar="RUN...")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    text: Annotated[
        list[str] | None, typer.Option(help="A sentence whose gates are shown; may be repeated.", metavar="TEXT")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Writes a page about one run or several side by side: settings, scores, curves, compression, gates.

    The file needs nothing but a browser. Without --text the sentences are from the validation text, if it is here.

    Example: `g2lstm report runs/ptb-small runs/ptb-small-sigmoid --out report.html`
    """
    from g2lstm.look.report import write_report

    def say(message: str) -> None:
        error_console().print(message, highlight=False, markup=False)

    write_report(runs, out, texts=text, data_dir=data_dir, progress=say)
    console().print(f"written: {out}", highlight=False, markup=False, soft_wrap=True)
