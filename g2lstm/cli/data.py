"""`g2lstm data`: the named data sets."""

from typing import Annotated

import typer
from rich.table import Table

from g2lstm.cli.options import DataDir
from g2lstm.cli.output import console
from g2lstm.text.registry import data_sets, fetch, folder_of

app = typer.Typer(help="List, fetch and find the named data sets.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Of a data set; `g2lstm data list` shows them.")]


@app.command("list")
def list_sets() -> None:
    """Shows the data sets."""
    table = Table("name", "task", "what it is", box=None)
    for name, found in data_sets().items():
        table.add_row(name, found.task, found.summary)
    console().print(table)


@app.command()
def get(name: Name, data_dir: DataDir = None) -> None:
    """Downloads a data set, checks it, and prints where it is."""
    print(fetch(name, data_dir))


@app.command()
def path(name: Name, data_dir: DataDir = None) -> None:
    """Prints the folder of a data set, whether it is there or not."""
    print(folder_of(name, data_dir))
