"""`g2lstm train`: from a recipe, or a text alone, to a run directory."""

import os
import shlex
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from g2lstm.cli.progress import TrainingBar, scores_in_words
from g2lstm.cli.shared import DataDir, Set, console, say, tell, usable

if TYPE_CHECKING:
    from g2lstm.tasks.recipes import Recipe
    from g2lstm.training.progress import TrainingProgress


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="Your own text, as a file or a folder with train.txt; or a recipe file, or the name of a shipped "
            "recipe, which `list` shows.",
            metavar="TEXT|RECIPE",
        ),
    ],
    overrides: Set = None,
    out: Annotated[Path | None, typer.Option(help="The run directory; runs/NAME by default.", callback=usable)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run if it has already begun.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Train a model on your own text, or from a recipe, into a run directory.

    For a text, it chooses the settings, and splits off a validation and a test text if there are none; `g2lstm init`
    writes these settings into a recipe. Ctrl-C saves the state and exits with code 130; --resume continues from there.

    Examples: `g2lstm train my.txt --set train.minutes=10`, `g2lstm train my.toml --set model.method=sigmoid --resume`
    """
    from g2lstm.recipes.files import shipped_recipes
    from g2lstm.tasks.recipes import load_recipe

    if recipe == "list":
        for name, summary in shipped_recipes().items():
            console().print(f"[bold]{name}[/]  {summary}", highlight=False)
        return
    chosen = load_recipe(recipe, overrides or ())

    folder = out
    if folder is None:  # the recipe of a run stands for that run
        path = Path(recipe)
        folder = path.parent if path.name == "recipe.toml" and path.is_file() else Path("runs") / path.stem
    again = ["train", str(folder / "recipe.toml"), "--out", str(folder)]
    say_trained(folder, train_with_bar(chosen, folder, resume, data_dir, again))


def say_trained(folder: Path, progress: "TrainingProgress | None") -> None:
    """Says how a training went, and what to do next; nothing in all processes but the first."""
    if progress is None:
        return
    if progress.skipped:
        say(f"{progress.skipped} of {progress.step} updates were skipped because they were not finite")
    say(f"{folder}: best validation {scores_in_words(progress.best_scores)} after {progress.seconds / 60:.1f} minutes")
    say(f"next: g2lstm eval {shlex.quote(str(folder))} --split test")


def train_with_bar(
    recipe: "Recipe", folder: Path, resume: bool, data_dir: Path | None, command: list[str]
) -> "TrainingProgress | None":
    """Trains with a progress bar; returns None in all processes but the first.

    If interrupted, says how to continue, with `--resume` after `command`, and exits with 130.
    """
    from g2lstm.training.environment import Interrupted
    from g2lstm.training.start import train_recipe

    is_main = os.environ.get("RANK", "0") == "0"  # among the processes that torchrun or accelerate started
    try:
        with closing(TrainingBar(is_shown=is_main)) as observer:
            progress = train_recipe(recipe, folder, observer, resume=resume, data_dir=data_dir)
            observer.bar.update(observer.task, completed=1.0)  # patience may end training before its budget does
    except Interrupted as interrupted:
        if is_main:
            again = ["g2lstm", *command, "--resume"]
            again += [] if data_dir is None else ["--data-dir", str(data_dir)]
            tell(f"{interrupted}; continue with: {shlex.join(again)}")
        raise typer.Exit(130) from None
    return progress if is_main else None
