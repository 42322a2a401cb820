"""Training from a recipe to a run directory: prepares, opens the folder, runs the loop."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import InitProcessGroupKwargs

from g2lstm.errors import G2Error
from g2lstm.files import is_disk_full
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.recipes import Recipe
from g2lstm.tasks.task import Validation
from g2lstm.training.loop import Trainer
from g2lstm.training.prepare import prepare
from g2lstm.training.processes import deaths_told, noise_seed
from g2lstm.training.progress import Observer, Progress
from g2lstm.training.rendezvous import init_method

_PATIENCE = timedelta(hours=2)  # of processes that wait for the first, which prepares the data
_ONE_AT_A_TIME = threading.Lock()


def train(
    recipe: Recipe, out: str | Path, observer: Observer, *, resume: bool = False, data_dir: Path | None = None
) -> Progress:
    """Trains a model into the run directory `out`. One training at a time: they share torch's random numbers.

    Args:
        recipe: what to train.
        out: a new folder or, to go on, an existing run of the same recipe.
        observer: who is told how it goes.
        resume: go on with the run in `out`; one that has not begun is begun.
        data_dir: a folder that holds the named data sets.
    """
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        raise G2Error("another training is under way in this Python process; wait for it, or use a process for each")
    try:
        with _denormals_flushed(), deaths_told(), _own_accelerator(recipe.train.precision) as accelerator:
            return _train(_absolute(recipe), Path(out), observer, resume, data_dir, accelerator)
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise G2Error(f"the disk of {out} is full: {error}; make room, then --resume goes on") from None
    finally:
        _ONE_AT_A_TIME.release()


@contextmanager
def _own_accelerator(precision: str) -> Iterator[Accelerator]:
    """An accelerator with settings of its own; accelerate would keep those of the first in this Python process."""
    if precision == "fp16" and not torch.accelerator.is_available():
        raise G2Error('train.precision = "fp16" needs a GPU, and there is none; use "bf16" or "fp32"')
    shared: list[dict[str, Any]] = [AcceleratorState._shared_state, GradientState._shared_state]
    before = [dict(state) for state in shared]
    for state in shared:
        state.clear()
    try:
        yield Accelerator(
            # Accelerate joins processes on CPUs only if it is told that CPUs are meant.
            cpu=not torch.accelerator.is_available(),
            mixed_precision="no" if precision == "fp32" else precision,
            kwargs_handlers=[InitProcessGroupKwargs(init_method=init_method(), timeout=_PATIENCE)],
        )
    finally:
        for state, saved in zip(shared, before, strict=True):
            state.clear()
            state.update(saved)


@contextmanager
def _denormals_flushed() -> Iterator[None]:
    """Denormal numbers are zero in this thread, and in those that it starts; at the end, the setting is as before."""
    was_on = (torch.tensor([1e-310], dtype=torch.float64) * 1.0).item() == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was_on)


def _train(
    recipe: Recipe, out: Path, observer: Observer, resume: bool, data_dir: Path | None, accelerator: Accelerator
) -> Progress:
    run = RunDirectory(out)
    is_old = run.recipe_file.exists() and resume
    if is_old:
        _check_same(run.recipe, recipe, out)
    else:
        run.check_new()
    task, tokenizers = prepare(recipe, accelerator, data_dir, resumed=run if is_old else None)
    if accelerator.num_processes > 1:  # the same weights everywhere, but noise and masks of one's own
        torch.manual_seed(noise_seed(recipe.train.seed, accelerator.process_index))
    if not accelerator.is_main_process:
        return Trainer(task, recipe.train, run, accelerator, Silent()).train(resume=is_old)
    with run.locked():
        if not is_old:
            RunDirectory.create(out, recipe, tokenizers)
        return Trainer(task, recipe.train, run, accelerator, observer).train(resume=is_old)


def _absolute(recipe: Recipe) -> Recipe:
    """The recipe with paths that mean the same from any folder."""
    data, train = recipe.data, recipe.train
    if data.path is not None:
        data = data.model_copy(update={"path": str(Path(data.path).expanduser().absolute())})
    if train.finetune_from is not None:
        train = train.model_copy(update={"finetune_from": str(Path(train.finetune_from).expanduser().absolute())})
    return recipe.model_copy(update={"data": data, "train": train})


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
    before, now = (dict(_flat(one.model_dump(by_alias=True))) for one in (saved, wanted))
    keys = [key for key in before | now if before.get(key) != now.get(key)]
    if "task" in keys:
        raise G2Error(f"the run in {out} is of task {saved.task!r}, the recipe of {wanted.task!r}; give another --out")
    differences = [f"{key} is {_shown(before.get(key))} there, {_shown(now.get(key))} now" for key in keys[:5]]
    if len(keys) > 5:
        differences.append(f"and {len(keys) - 5} more")
    raise G2Error(
        f"the run in {out} was begun with another recipe: {'; '.join(differences)}; "
        "resume it with the same settings, or start anew with --out"
    )


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _shown(value: Any) -> str:
    return "not given" if value is None else json.dumps(value)
