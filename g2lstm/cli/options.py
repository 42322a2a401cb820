"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one machine-readable object.")]
Run = Annotated[Path, typer.Argument(help="A run directory, made by `g2lstm train`.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="The folder that holds the named data sets; the environment variable G2LSTM_DATA also sets it."),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe; repeatable.")
]
EvalGate = Annotated[
    str | None,
    typer.Option(help="Gates in evaluation: soft, tempered or hard; the recipe's by default.", metavar="GATE"),
]
