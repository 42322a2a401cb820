"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one machine-readable object.")]
Run = Annotated[Path, typer.Argument(help="A run directory, made by `g2lstm train`.")]
DataDir = Annotated[
    Path | None, typer.Option(help="A folder that holds the named data sets; also by G2LSTM_DATA in the environment.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe; may be repeated.")
]
EvalGate = Annotated[
    str | None, typer.Option(help="soft, tempered or hard gates; the recipe's if not given.", metavar="GATE")
]
