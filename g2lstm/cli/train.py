"""`g2lstm train` and `distill`: train a model from a text, or from the translations of another."""

import os
import shlex
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from g2lstm.cli.progress import TrainingBar, bar, scores_in_words
from g2lstm.cli.shared import Beam, DataDir, Run, Set, console, error_console, say, tell, usable

if TYPE_CHECKING:
    from g2lstm.tasks.recipes import Recipe
    from g2lstm.training.progress import TrainingProgress

_FEW = 3  # passes through a text; more nearly always help


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="Your own text, as a file or a folder with train.txt; a folder of pairs, such as train.de and train.en"
            "; or a recipe file, or the name of a shipped recipe, which `list` shows.",
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
    passes = progress.epochs or 0.0
    if passes < _FEW and passes % 1:  # the clock ended it
        say(f"it read the training text only {passes:.1f} times; more train.minutes usually give a better model")
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


def distill(
    teacher: Run,
    student: Annotated[str, typer.Option(help="The student's recipe: a file, or the name of a shipped one.")],
    out: Annotated[
        Path | None, typer.Option(help="The student's run directory; TEACHER-student by default.", callback=usable)
    ] = None,
    overrides: Set = None,
    beam: Beam = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue if it has already begun.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Train a small translation model on the translations of a large one, which are easier to learn than people's.

    The teacher translates the sources that it was trained on with beam search, into the folder OUT-data. Then the
    student trains on them with its own recipe, whose data they replace. It is validated and tested on the teacher's
    splits, with people's translations. Ctrl-C saves the state and exits with code 130; --resume continues from there.

    Example: `g2lstm distill runs/multi30k-small --student multi30k-small --set model.hidden=128 --out runs/student`
    """
    from g2lstm.errors import G2Error
    from g2lstm.runs.directory import RunDirectory
    from g2lstm.runs.trained import load_as
    from g2lstm.tasks.recipes import MT
    from g2lstm.training.distill import distil_text, student_recipe

    loaded, home = load_as(MT, teacher), teacher.absolute()
    out = home.with_name(f"{home.name}-student") if out is None else out
    texts = out.absolute().with_name(f"{out.absolute().name}-data")
    recipe = student_recipe(loaded, student, overrides or (), texts)
    if not resume:
        RunDirectory(out).check_new()
        if texts.exists():
            raise G2Error(f"{texts} exists; continue with --resume, or choose another --out")
    sets = [word for each in overrides or () for word in ("--set", each)]
    sets += [] if beam is None else ["--beam", str(beam)]
    again = ["distill", str(teacher), "--student", student, "--out", str(out), *sets]

    try:
        with bar() as show:

            def progress(done: int, total: int) -> None:
                show("translating", done, total)
                if not error_console().is_terminal:
                    tell(f"translating: {done:,} of {total:,} lines are done")

            files = distil_text(loaded, texts, beam=beam, data_dir=data_dir, progress=progress)
    except KeyboardInterrupt:
        folder = [] if data_dir is None else ["--data-dir", str(data_dir)]
        tell(f"interrupted; continue with: {shlex.join(['g2lstm', *again, '--resume', *folder])}")
        raise typer.Exit(130) from None
    say(f"{files.target}: the translations of {teacher}")
    del loaded  # the student needs the memory
    say_trained(out, train_with_bar(recipe, out, resume, data_dir, again))
