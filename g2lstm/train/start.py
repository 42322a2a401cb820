"""Training from a recipe to a run directory: prepares, opens the folder, runs the loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from accelerate import Accelerator

from g2lstm.config import Recipe, recipe_to_toml
from g2lstm.errors import G2Error
from g2lstm.runs.directory import RunDirectory
from g2lstm.train.loop import Observer, Progress, Trainer
from g2lstm.train.prepare import prepare
from g2lstm.train.task import Validation


def train(
    recipe: Recipe, out: Path, observer: Observer, *, resume: bool = False, data_dir: Path | None = None
) -> Progress:
    """Trains a model into the run directory `out`.

    Args:
        recipe: what to train.
        out: a new folder or, to go on, an existing run of the same recipe.
        observer: who is told how it goes.
        resume: go on with the run in `out`; one that has not begun is begun.
        data_dir: a folder that holds the named data sets.
    """
    with _denormals_flushed():
        return _train(recipe, out, observer, resume, data_dir)


@contextmanager
def _denormals_flushed() -> Iterator[None]:
    """Denormal numbers are zero in this thread, and in those that it starts; at the end, the setting is as before."""
    was_on = (torch.tensor([1e-310], dtype=torch.float64) * 1.0).item() == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was_on)


def _train(recipe: Recipe, out: Path, observer: Observer, resume: bool, data_dir: Path | None) -> Progress:
    # Accelerate joins processes on CPUs only if it is told that CPUs are meant.
    accelerator = Accelerator(
        cpu=not torch.accelerator.is_available(), mixed_precision="bf16" if recipe.train.precision == "bf16" else "no"
    )
    task, tokenizers = prepare(recipe, accelerator, data_dir)
    if accelerator.num_processes > 1:  # the same weights everywhere, but noise and masks of one's own
        torch.manual_seed(recipe.train.seed + accelerator.process_index)
    run = RunDirectory(out)
    if not accelerator.is_main_process:
        return Trainer(task, recipe.train, run, accelerator, Silent()).train(resume=resume)
    with run.locked():
        is_old = run.recipe_file.exists()
        if is_old and resume:
            _check_same(RunDirectory.open(out).recipe, recipe, out)
        else:
            RunDirectory.create(out, recipe, tokenizers)
        return Trainer(task, recipe.train, run, accelerator, observer).train(resume=resume and is_old)


class Silent:
    """The observer of all processes but the first."""

    def on_step(self, progress: Progress, share: float, values: dict[str, float]) -> None:
        """Nothing."""

    def on_validation(self, progress: Progress, validation: Validation, is_best: bool) -> None:
        """Nothing."""

    def on_message(self, message: str) -> None:
        """Nothing."""


def _check_same(saved: Recipe, wanted: Recipe, out: Path) -> None:
    if saved == wanted:
        return
    pairs = zip(recipe_to_toml(saved).splitlines(), recipe_to_toml(wanted).splitlines(), strict=False)
    differences = [f"{old} there, {new} now" for old, new in pairs if old != new]
    raise G2Error(
        f"the run in {out} was begun with another recipe: {'; '.join(differences)}; "
        "resume it with the same settings, or start anew with --out"
    )
