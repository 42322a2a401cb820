"""`g2lstm data`: the named data sets."""

from typing import Annotated

import typer

from g2lstm.cli.shared import DataDir, console, put, table

app = typer.Typer(help="List, download and locate the named data sets.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The name of a data set; `g2lstm data list` shows them.")]


@app.command("list")
def list_sets() -> None:
    """List the data sets."""
    from g2lstm.text.datasets import data_sets

    rows = [(name, found.task, found.summary) for name, found in data_sets().items()]
    console().print(table(("name", "task", "what it is"), rows, left=3))


@app.command()
def get(name: Name, data_dir: DataDir = None) -> None:
    """Download a data set, check it, and print its folder."""
    from g2lstm.text.datasets import fetch

    put(str(fetch(name, data_dir)))


@app.command()
def path(name: Name, data_dir: DataDir = None) -> None:
    """Print the folder of a data set, whether it has been downloaded or not."""
    from g2lstm.text.datasets import folder_of

    put(str(folder_of(name, data_dir)))
