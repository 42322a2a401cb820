"""`g2lstm bench`: measurements against named peers."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from g2lstm.cli.progress import Bar, bar
from g2lstm.cli.shared import Json, console, print_json, say, table
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from g2lstm.lab.bench.measure import Report

Rounds = Annotated[
    int, typer.Option(min=1, help="Minimum number of interleaved rounds; the tables show medians over them.")
]

JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per row, as they are measured.")]

app = typer.Typer(
    help="Measure speed and memory against named peers, in interleaved rounds of one process.", no_args_is_help=True
)


@app.command()
def layer(
    shape: Annotated[list[str] | None, typer.Option(help="T,B,I,H such as 35,20,200,200; repeatable.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Interleaved rounds; if not given, as many as three minutes allow.")
    ] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Also measure memory, in fresh processes.")] = False,
    busy: Annotated[
        int, typer.Option(min=0, max=64, help="Measure beside so many other processes, which keep a core busy each.")
    ] = 0,
    as_json: JsonLines = False,
) -> None:
    """Measure one layer: each backend of G2LSTM against torch.nn.LSTM, and training of G2GRU against torch.nn.GRU.

    The table of each shape appears as soon as it is measured; Ctrl-C keeps what is there.
    """
    shapes = []
    for text in shape or ():
        sizes = [int(part) for part in text.split(",") if part.isascii() and part.isdecimal()]
        if len(sizes) != 4 or text.count(",") != 3 or 0 in sizes:
            raise G2Error(f"--shape takes four whole numbers above 0, such as 35,20,200,200, got {text!r}")
        shapes.append((sizes[0], sizes[1], sizes[2], sizes[3]))

    from g2lstm.lab.bench.measure import busy_beside
    from g2lstm.lab.bench.train import SHAPES, measure_layer

    with bar() as show, busy_beside(busy):
        _print_as_they_come(as_json, measure_layer(shapes or SHAPES, rounds, memory, show), show)


@app.command()
def train(rounds: Rounds = 7, as_json: Json = False) -> None:
    """Measure a training step of the paper's 24M Penn Treebank model against the same model on torch.nn.LSTM."""
    from g2lstm.lab.bench.train import measure_language

    with bar() as show:
        print_reports(as_json, measure_language(rounds, show))


@app.command()
def infer(rounds: Rounds = 15, as_json: JsonLines = False) -> None:
    """Measure inference: stacks of LSTM layers step by step at batch 1, against other runtimes.

    The table of each stack appears as soon as it is measured; Ctrl-C keeps what is there.
    """
    from g2lstm.lab.bench import infer as bench
    from g2lstm.nn.kernel import find

    with bar() as show:
        reports = bench.measure_stacks(rounds, bench.STACKS, show)
        _print_as_they_come(as_json, reports, show, kernel=find().description)


def _print_as_they_come(as_json: bool, reports: "Iterable[Report]", show: Bar, **facts: object) -> None:
    """Prints each table when it is measured, or each of its rows as an object on a line of its own."""
    import torch

    for report in reports:
        with show.aside():
            if as_json:
                for row in report.rows:
                    print_json({"threads": torch.get_num_threads(), **facts, **row})
                sys.stdout.flush()
            else:
                print_reports(False, report)


def print_reports(as_json: bool, *reports: "Report", **facts: object) -> None:
    """Prints tables, or one object that holds the facts and the rows of each report."""
    import torch

    if as_json:
        print_json({"threads": torch.get_num_threads(), **facts, **{report.key: report.rows for report in reports}})
        return
    for report in reports:
        shown = [field for field in report.fields if field.heading]
        left = sum(not field.form for field in shown)
        rows = [[field.text(row) for field in shown] for row in report.rows]
        console().print(table([field.heading for field in shown], rows, title=report.title, left=left))
        for note in report.notes:
            say(note)
