"""`g2lstm recipe` and `init`: what a key of a recipe means, and a recipe for one's own text."""

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from g2lstm.cli.shared import say, usable
from g2lstm.errors import G2Error

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


def init(
    text: Annotated[
        list[str],
        typer.Argument(
            help="A text file, or a folder with train.txt; for translation two languages and a folder, such as "
            "de en FOLDER for one with train.de and train.en.",
            metavar="[SOURCE TARGET] TEXT",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The recipe; NAME.toml by default.", callback=usable)] = None,
) -> None:
    """Write a recipe for a model on your own text, with a comment on every key, and say what the text looks like.

    It looks at the text: how long it is, whether it is tokenised, how many different characters it has, and for pairs
    whether sides are empty or far too long. `g2lstm train` chooses the same settings if it is given the text itself.

    Examples: `g2lstm init my.txt`, then `g2lstm train my.toml`; `g2lstm init de en pairs`
    """
    from g2lstm.files import write_atomically
    from g2lstm.recipes.explain import commented
    from g2lstm.tasks.lm.automatic import automatic, look_at
    from g2lstm.tasks.mt.automatic import automatic as automatic_pairs
    from g2lstm.tasks.mt.task import bleu_remark
    from g2lstm.tasks.recipes import TASKS, parse_recipe
    from g2lstm.text.datasets import cache_dir
    from g2lstm.text.lines import count_lines
    from g2lstm.text.own import pair_endings

    *languages, name = text
    if len(languages) not in (0, 2):
        raise G2Error(f"give a text, or two languages and a folder, such as `g2lstm init de en FOLDER`; got {text}")
    path = usable(name)
    if languages and os.path.isdir(languages[0]) and not path.is_dir():
        raise G2Error(f"the folder comes last: `g2lstm init {' '.join([*text[1:], text[0]])}`")
    file = Path(f"{path.absolute().stem}.toml") if out is None else out
    if file.exists():
        raise G2Error(f"{file} exists; choose another name with --out")
    if file.absolute().parent != Path.cwd():  # where one might train from
        path = path.absolute()
    if is_pairs := bool(languages or pair_endings(path)):
        tables, pairs = automatic_pairs(str(path), *languages)
        say(f"{tables['data']['source']} to {tables['data']['target']}: {pairs}")
    else:
        tables = automatic(str(path))
        say(f"{path}: {look_at(path)}")
    recipe: Any = parse_recipe(tables)
    files = {split: file.source if is_pairs else file for split, file in recipe.data.files().items()}
    made = [split for split in ("valid", "test") if files[split].is_relative_to(cache_dir())]
    if made:
        unit = "pairs" if is_pairs else "lines"
        counts = (f"{count_lines(files[split]):,} {unit} for {split}" for split in made)
        say(f"held out from the training text: {', '.join(counts)}")
    if is_pairs and (remark := bleu_remark(recipe)):
        say(remark)
    with write_atomically(file) as new:
        new.write(commented(tables, TASKS[tables["task"]].recipe).encode())
    say(f"written: {file}; change it as you like, `g2lstm recipe explain KEY` explains every key")
    say(f"next: g2lstm train {shlex.quote(str(file))}")
