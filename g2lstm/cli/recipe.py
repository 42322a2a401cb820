"""`g2lstm recipe`: what the keys of recipes mean."""

from typing import Annotated

import typer

from g2lstm.cli.shared import say

app = typer.Typer(help="What the keys of recipes mean.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """What the keys of recipes mean."""


@app.command("explain")
def explain(
    key: Annotated[str, typer.Argument(help="A key such as train.minutes or hidden, or a section such as model.")],
) -> None:
    """Say what a key of a recipe means, which values it takes, and its default.

    Example: `g2lstm recipe explain train.minutes`
    """
    from g2lstm.recipes import explain as recipes
    from g2lstm.tasks.recipes import TASKS

    for text in recipes.explain(key, {name: task.recipe for name, task in TASKS.items()}):
        say(text)
