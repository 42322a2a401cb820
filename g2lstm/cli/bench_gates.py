"""`g2lstm bench gates`: what recording gates costs."""

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.markup import escape
from rich.table import Table

from g2lstm.cli.options import DataDir, Json
from g2lstm.cli.output import console


def gates(
    run: Annotated[Path | None, typer.Argument(help="A run directory; none for a random model of ptb-small.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Windows of text (60 if not given) or sentence pairs (500).")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds at least; medians are shown.")] = 7,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Recording gates into histograms against the same pass that returns and forgets them; and how memory grows."""
    from g2lstm.lab.bench.gates import RECIPE, SPLIT, measure

    found = measure(run, samples, rounds, data_dir)
    threads = torch.get_num_threads()
    if as_json:
        answer = {
            "threads": threads,
            "times": [row._asdict() for row in found.times],
            "memory": [row._asdict() for row in found.memory],
        }
        print(json.dumps(answer))
        return
    what = f"a random model of {RECIPE}'s size" if run is None else str(run)
    title = f"{what}, {SPLIT}, {found.memory[0].samples:,} samples, {threads} threads"
    table = Table(title=escape(title), title_justify="left")
    for heading in ("pass", "ms", "times that with gates returned"):
        table.add_column(heading, justify="left" if heading == "pass" else "right")
    for row in found.times:
        table.add_row(row.name, f"{row.milliseconds:.0f}", f"{row.ratio:.3f}")
    console().print(table)
    memory = Table("samples", "tokens", "peak MB above start", title="recorded in a process of its own")
    for each in found.memory:
        megabytes = "not measured" if each.megabytes is None else f"{each.megabytes:.0f}"
        memory.add_row(f"{each.samples:,}", f"{each.tokens:,}", megabytes)
    console().print(memory)
