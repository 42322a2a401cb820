"""`g2lstm report`: everything known about some runs, in one file for any browser."""

from pathlib import Path
from typing import Annotated

import typer

from g2lstm.cli.shared import DataDir, Runs, say, tell, usable


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The file to write.", callback=usable)] = Path("report.html"),
    text: Annotated[
        list[str] | None, typer.Option(help="Show the gates of this sentence; repeatable.", metavar="TEXT")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Write a page about one or more runs, side by side: settings, scores, curves, compression and gates.

    Any browser can show it. Without --text, its sentences come from the validation text, if available.

    Example: `g2lstm report runs/ptb-small runs/ptb-small-sigmoid --out report.html`
    """
    from g2lstm.look.report import write_report

    write_report(runs, out, texts=text, data_dir=data_dir, progress=tell)
    say(f"written: {out}")
