"""How far training is, when it ends, its learning rate and gates, and who is told about it."""

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Annotated, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

from g2lstm.nn.schedule import GateSchedule
from g2lstm.recipes.sections import AdamW, ModelSection, TrainSection
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.records import Count
from g2lstm.tasks.task import Validation

_FIRST_RATE = 0.04  # of the one-cycle schedule, as a share of the highest
_SECONDS_BETWEEN_LINES = 5.0
_COUNTERS = {"step", "epoch", "tokens", "seconds", "skipped"}  # every line begins with these


class TrainingProgress(BaseModel):
    """How far a training run is; saved with every checkpoint."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    step: Count = 0  # batches, skipped ones included
    epoch: Count = 0
    tokens: Count = 0
    seconds: float = 0.0
    epochs: Annotated[float, Field(gt=0)] | None = None  # to train for; None while the clock decides
    validation_seconds: float = 0.0  # of the last validation
    validating_seconds: float = 0.0  # of all validations
    best: float | None = None  # lowest validation criterion; None before the first validation
    best_loss: float | None = None  # lowest loss among validations with that criterion
    first_loss: float | None = None  # before training
    last_loss: float | None = None  # of the last validation
    best_scores: dict[str, float] = {}  # of that validation
    best_is_plain: bool = False  # whether it was before the recipe's gates began
    stale: Count = 0  # validations since then
    skipped: Count = 0  # updates skipped because the loss or the gradient was not finite
    skipped_in_a_row: Count = 0
    finished: bool = False

    def is_improved_by(self, criterion: float, loss: float, *, is_plain: bool = False) -> bool:
        """Whether this validation beats the best one so far: by its criterion, then by its loss.

        A model with the recipe's gates beats every one with plain gates, which is another function.
        """
        loss_before = math.inf if self.best_loss is None else self.best_loss
        is_first = self.best is None or (self.best_is_plain and not is_plain)
        return is_first or (criterion, loss) < (self.best, loss_before)

    def share(self, settings: TrainSection, epoch_progress: float) -> float:
        """How much of the training is done, in [0, 1], once this share of the current epoch is.

        A budget in minutes is used up by everything that takes time, and the last validation is still to come; with
        `train.average`, two are.
        """
        epochs_done = self.epoch + epoch_progress
        if self.epochs is not None:
            return min(epochs_done / self.epochs, 1.0)
        assert settings.minutes is not None
        left = self.validation_seconds * (1 if settings.average is None else 2)
        used = self.seconds / max(60 * settings.minutes - left, 1e-9)
        return min(max(used, epochs_done / (settings.epochs or math.inf)), 1.0)


def learning_rate(settings: TrainSection, share: float) -> float:
    """The learning rate once this share of the training, in [0, 1], is done.

    AdamW follows one cycle: a straight line up to `lr`, then half a cosine down to `final_lr`. The others keep `lr`.
    """
    chosen = settings.optimizer
    if not isinstance(chosen, AdamW):
        return chosen.lr
    if share < chosen.warmup:
        return chosen.lr * (_FIRST_RATE + (1 - _FIRST_RATE) * share / chosen.warmup)
    fall = (1 + math.cos(math.pi * (share - chosen.warmup) / (1 - chosen.warmup))) / 2
    return chosen.lr * (chosen.final_lr + (1 - chosen.final_lr) * fall)


def gate_schedule(model: ModelSection, settings: TrainSection) -> GateSchedule | None:
    """The course of the gates that a recipe describes; the values of its section `model` are the last ones."""
    course = settings.gates
    if course is None:
        return None
    assert model.tau is not None
    first_rate = model.noise_rate if course.noise_rate is None else course.noise_rate
    first_tau = model.tau if course.tau is None else course.tau
    return GateSchedule(
        model.method,
        start=course.start,
        noise_rate=(first_rate, model.noise_rate),
        tau=(first_tau, model.tau),
        soft_rate=(course.soft_rate, 0.0),
        eval_gate=model.eval_gate,
    )


class Turn(NamedTuple):
    """A part of a training run that takes turns with others."""

    epochs: int  # of the whole training, as it is planned now
    until: int  # the epoch after which it is the others' turn


class Observer(Protocol):
    """Hears how a training run goes; the command line's observer draws a progress bar."""

    def on_step(self, progress: TrainingProgress, share: float, values: dict[str, float]) -> None:
        """Called after every update, with the share of the training that is done and what the update measured."""
        return

    def on_validation(self, progress: TrainingProgress, validation: Validation, is_best: bool) -> None:
        """Called after every validation."""
        return

    def on_message(self, message: str) -> None:
        """Called with a line that is worth showing."""
        return


class Silent(Observer):
    """An observer that ignores everything."""


class Metrics(Silent, AbstractContextManager["Metrics"]):
    """Writes metrics.jsonl (for scripts) and events/ (TensorBoard) into a run directory.

    TensorBoard drops everything after `step`, where training continues: a crash has undone it.
    """

    def __init__(self, run: RunDirectory, step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.run = run
        self._events = SummaryWriter(str(run.events), purge_step=step + 1)
        self._last_line = 0.0

    def __exit__(self, *_: object) -> None:
        self._events.close()

    def on_step(self, progress: TrainingProgress, share: float, values: dict[str, float]) -> None:
        """Writes the first update, then one every few seconds."""
        if time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self._write("train", progress, values)

    def on_validation(self, progress: TrainingProgress, validation: Validation, is_best: bool) -> None:
        """Writes every validation, and the counts of gate values as a line of their own: {"input/0": 12, ...}."""
        self._write("valid", progress, {"loss": validation.loss, **validation.scores})
        if validation.gates:
            counts = {f"{gate}/{k}": n for gate, each in validation.gates.items() for k, n in enumerate(each)}
            self._write("gates", progress, counts)
            for gate, each in validation.gates.items():
                self._add_histogram(f"gates/{gate}", each, progress.step)

    def _add_histogram(self, name: str, counts: list[int], step: int) -> None:
        """Adds counts of values in equal bins from 0 to 1."""
        edges = [(k + 1) / len(counts) for k in range(len(counts))]
        middles = [edge - 0.5 / len(counts) for edge in edges]
        total = sum(count * middle for count, middle in zip(counts, middles, strict=True))
        squares = sum(count * middle**2 for count, middle in zip(counts, middles, strict=True))
        sums = {"num": sum(counts), "sum": total, "sum_squares": squares}
        self._events.add_histogram_raw(
            name, min=0.0, max=1.0, **sums, bucket_limits=edges, bucket_counts=counts, global_step=step
        )

    def _write(self, kind: str, progress: TrainingProgress, values: Mapping[str, float]) -> None:
        self.run.append_metrics({"kind": kind, **progress.model_dump(include=_COUNTERS), **values})
        if kind != "gates":
            for name, value in values.items():
                self._events.add_scalar(f"{kind}/{name}", value, progress.step)
