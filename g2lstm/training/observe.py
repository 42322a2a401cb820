"""Who hears how training goes: an observer, and the files metrics.jsonl (for scripts) and events/ (TensorBoard)."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol

from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.task import Validation
from g2lstm.training.progress import TrainingProgress

_SECONDS_BETWEEN_LINES = 5.0
_COUNTERS = {"step", "epoch", "tokens", "seconds", "skipped"}  # every line begins with these


class Observer(Protocol):
    """Whoever wants to follow a training run; the command line draws a progress bar."""

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


class Metrics(Silent):
    """Writes what training measures into the run directory; a context manager.

    Args:
        run: the run directory.
        step: where training continues; TensorBoard drops later steps, which a crash has undone.
    """

    def __init__(self, run: RunDirectory, step: int = 0) -> None:
        self.run = run
        self.step = step
        self._last_line = 0.0

    def __enter__(self) -> "Metrics":
        from torch.utils.tensorboard import SummaryWriter

        self._events = SummaryWriter(str(self.run.events), purge_step=self.step + 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            self._append("gates", progress, counts)

    def _write(self, kind: str, progress: TrainingProgress, values: Mapping[str, float]) -> None:
        self._append(kind, progress, values)
        for name, value in values.items():
            self._events.add_scalar(f"{kind}/{name}", value, progress.step)

    def _append(self, kind: str, progress: TrainingProgress, values: Mapping[str, float]) -> None:
        self.run.append_metrics({"kind": kind, **progress.model_dump(include=_COUNTERS), **values})
