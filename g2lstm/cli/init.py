"""`g2lstm init`: a commented recipe for one's own text, or sentence pairs."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from g2lstm.cli.shared import say, usable
from g2lstm.errors import G2Error


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
    from g2lstm.tasks.lm.automatic import automatic
    from g2lstm.tasks.mt.automatic import automatic as automatic_pairs
    from g2lstm.tasks.recipes import TASKS, parse_recipe
    from g2lstm.text.own_pairs import pair_endings

    *languages, name = text
    if len(languages) not in (0, 2):
        raise G2Error(f"give a text, or two languages and a folder, such as `g2lstm init de en FOLDER`; got {text}")
    path = usable(name)
    file = Path(f"{path.absolute().stem}.toml") if out is None else out
    if file.exists():
        raise G2Error(f"{file} exists; choose another name with --out")
    if languages or pair_endings(path):
        tables, look = automatic_pairs(str(path), *languages)
        say(f"{tables['data']['source']} to {tables['data']['target']}: {look}")
    else:
        tables = automatic(str(path))
    parse_recipe(tables)
    with write_atomically(file) as new:
        new.write(commented(tables, TASKS[tables["task"]].recipe).encode())
    say(f"written: {file}; change it as you like, `g2lstm recipe explain KEY` explains every key")
    say(f"next: g2lstm train {shlex.quote(str(file))}")
