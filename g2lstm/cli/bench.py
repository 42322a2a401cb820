"""`g2lstm bench`: measurements against named peers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from g2lstm.cli.progress import bar
from g2lstm.cli.shared import DataDir, Json, console, print_json, say, table
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from g2lstm.lab.bench.measure import Report

Rounds = Annotated[
    int, typer.Option(min=1, help="Minimum number of interleaved rounds; the tables show medians over them.")
]

app = typer.Typer(
    help="Measure speed and memory against named peers, in interleaved rounds of one process.", no_args_is_help=True
)


@app.command()
def layer(
    shape: Annotated[list[str] | None, typer.Option(help="T,B,I,H such as 35,20,200,200; repeatable.")] = None,
    rounds: Rounds = 11,
    as_json: Json = False,
) -> None:
    """Measure one layer: a training step and an evaluation of each backend against torch.nn.LSTM."""
    shapes = []
    for text in shape or ():
        sizes = [int(part) for part in text.split(",") if part.isascii() and part.isdecimal()]
        if len(sizes) != 4 or text.count(",") != 3 or 0 in sizes:
            raise G2Error(f"--shape takes four whole numbers above 0, such as 35,20,200,200, got {text!r}")
        shapes.append((sizes[0], sizes[1], sizes[2], sizes[3]))

    from g2lstm.lab.bench.train import SHAPES, measure_layer

    with bar() as show:
        print_reports(as_json, measure_layer(shapes or SHAPES, rounds, show))


@app.command()
def train(rounds: Rounds = 7, as_json: Json = False) -> None:
    """Measure a training step of the paper's 24M model of Penn Treebank against the same model on torch.nn.LSTM."""
    from g2lstm.lab.bench.train import measure_language

    with bar() as show:
        print_reports(as_json, measure_language(rounds, show))


@app.command()
def infer(
    run: Annotated[Path | None, typer.Argument(help="A run directory; without one, stacks of LSTM layers.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Interleaved rounds; 15 by default, 5 for translation.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which split of the run's data to read: valid, test or train.")] = "test",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Measure inference: LSTM stacks at batch 1 against other runtimes or, given a RUN, what that run gains.

    For a language model: size, speed and perplexity of its LSTM layers, compressed by g2lstm and in other runtimes.
    For a translation model: sentences per second.
    """
    from g2lstm.lab.bench import infer as bench
    from g2lstm.nn.kernel import find
    from g2lstm.runs.directory import RunDirectory

    with bar() as show:
        if run is None:
            report = bench.measure_stacks(rounds or 15, bench.STACKS, show)
        else:
            measure = bench.MEASUREMENTS[RunDirectory.open(run).recipe.task]
            report = measure(run, rounds, data_dir, split, show=show)
    print_reports(as_json, report, **({"kernel": find().description} if run is None else {}))


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
