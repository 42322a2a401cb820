"""`g2lstm train`: from a recipe to a run directory."""

import math
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from g2lstm.cli.options import DataDir, Set
from g2lstm.cli.output import console, error_console

if TYPE_CHECKING:
    from g2lstm.tasks.learner import Validation
    from g2lstm.training.progress import TrainingProgress


_SECONDS_BETWEEN_LINES = 30.0  # in a log, where a bar cannot be drawn


class BarObserver:
    """Draws training as a bar with speed, perplexity and time left; validations become lines, as does all in a log."""

    def __init__(self, bar: Bar) -> None:
        self.bar = bar
        self.task = bar.add_task("training", total=1.0, rate="", perplexity="")
        self._smooth: float | None = None
        self._next_line = 0.0

    def on_step(self, progress: "TrainingProgress", share: float, values: dict[str, float]) -> None:
        """Moves the bar; the loss shown is a running mean."""
        self.bar.start()  # not before there is something to show: an error should stand alone
        loss = values["loss"]
        self._smooth = loss if self._smooth is None else 0.98 * self._smooth + 0.02 * loss
        rate = progress.tokens / max(progress.seconds - progress.validating_seconds, 1e-9)
        perplexity = f"perplexity {math.exp(min(self._smooth, 99)):,.1f}"  # one more digit would say no more
        self.bar.update(
            self.task,
            completed=share,
            description=f"epoch {progress.epoch + 1}",
            rate=f"{rate:,.0f} tokens/s",
            perplexity=perplexity,
        )
        if not self.bar.console.is_terminal and progress.seconds >= self._next_line:
            self._next_line = progress.seconds + _SECONDS_BETWEEN_LINES
            left = (progress.seconds - progress.validating_seconds) * (1 / share - 1) / 60
            self.on_message(
                f"epoch {progress.epoch + 1}, {share:.0%}: {perplexity}, {rate:,.0f} tokens/s, {left:.0f} minutes left"
            )

    def on_validation(self, progress: "TrainingProgress", validation: "Validation", is_best: bool) -> None:
        """One line: the scores, and how binary the gates are."""
        gates = [value for name, value in validation.scores.items() if name.startswith("saturation/")]
        text = f"epoch {progress.epoch}: validation {_shown(validation.scores)}"
        if gates:
            text += f", {sum(gates) / len(gates):.0%} of i and f beyond 0.1/0.9 in evaluation"
        self.bar.console.print(text + (" (best)" if is_best else ""), highlight=False, markup=False)

    def on_message(self, message: str) -> None:
        """As it is."""
        self.bar.console.print(message, highlight=False, markup=False)


def _stop(bar: Bar) -> None:
    if bar.live.is_started:  # else it would print an empty line
        bar.stop()


def _shown(scores: Mapping[str, float]) -> str:
    """BLEU if there is one, and perplexity."""
    bleu = f"BLEU {scores['bleu']:.2f}, " if "bleu" in scores else ""
    return f"{bleu}perplexity {scores['perplexity']:.2f}"


def train(
    recipe: Annotated[str, typer.Argument(help="A file, or the name of a shipped recipe; `list` shows those.")],
    overrides: Set = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; runs/NAME if not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run if it has begun.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Trains a model by a recipe into a run directory.

    Ctrl-C saves the state and exits with 130; `--resume` goes on from there.

    Examples: `g2lstm train ptb-small`, `g2lstm train my.toml --set model.method=sigmoid --resume`
    """
    from g2lstm.recipes.files import shipped_recipes
    from g2lstm.tasks.recipes import load_recipe

    if recipe == "list":
        for shipped in shipped_recipes():
            console().print(f"[bold]{shipped.name}[/]  {shipped.summary}", highlight=False)
        return
    chosen = load_recipe(recipe, overrides or ())

    from g2lstm.training.environment import Interrupted
    from g2lstm.training.start import train_recipe

    folder = out
    if folder is None:  # the recipe of a run means that run
        path = Path(recipe)
        folder = path.parent if path.name == "recipe.toml" and path.is_file() else Path("runs") / path.stem
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f}% {task.fields[rate]} {task.fields[perplexity]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    is_main = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun or accelerate started
    bar = Bar(*columns, console=error_console(), speed_estimate_period=120, disable=not is_main)
    try:
        observer = BarObserver(bar)
        progress = train_recipe(chosen, folder, observer, resume=resume, data_dir=data_dir)
        bar.update(observer.task, completed=1.0)  # patience may end training before its budget does
    except Interrupted as interrupted:
        _stop(bar)
        if is_main:
            again = ["g2lstm", "train", str(folder / "recipe.toml"), "--out", str(folder), "--resume"]
            again += [] if data_dir is None else ["--data-dir", str(data_dir)]
            text = f"{interrupted}; go on with: {shlex.join(again)}"
            error_console().print(text, highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    finally:
        _stop(bar)
    if not is_main:
        return
    if progress.skipped:
        console().print(f"{progress.skipped} of {progress.step} updates were skipped: they were not finite")
    best = _shown(progress.best_scores)
    console().print(
        f"{folder}: best validation {best} after {progress.seconds / 60:.1f} minutes", highlight=False, markup=False
    )
    console().print(f"next: g2lstm eval {shlex.quote(str(folder))} --split test", highlight=False, markup=False)
