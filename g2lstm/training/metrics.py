"""Writes what training measures: metrics.jsonl for scripts, TensorBoard's events for people."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.task import Validation

_SECONDS_BETWEEN_LINES = 5.0


class Metrics:
    """The metrics files of a run; a context manager.

    Args:
        run: where they are.
        is_main: whether this process writes; the others keep still.
        step: where training goes on; what was written of later ones was lost in a crash.
    """

    def __init__(self, run: RunDirectory, is_main: bool = True, step: int = 0) -> None:
        self.run = run
        self.is_main = is_main
        self.step = step
        self._last_line = 0.0

    def __enter__(self) -> "Metrics":
        if self.is_main:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self.run.events), purge_step=self.step + 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_main:
            self._events.close()

    def on_step(self, progress: Mapping[str, Any], values: Mapping[str, float]) -> None:
        """Writes the first step's values and then those of a step every few seconds."""
        if not self.is_main or time.monotonic() - self._last_line < _SECONDS_BETWEEN_LINES:
            return
        self._last_line = time.monotonic()
        self._write("train", progress, values)

    def on_validation(self, progress: Mapping[str, Any], validation: Validation) -> None:
        """Writes every validation, and in a line of its own the counts of gate values: {"input/0": 12, ...}."""
        if not self.is_main:
            return
        self._write("valid", progress, {"loss": validation.loss, **validation.scores})
        if validation.gates:
            counts = {f"{gate}/{k}": n for gate, each in validation.gates.items() for k, n in enumerate(each)}
            self._append("gates", progress, counts)

    def _write(self, kind: str, progress: Mapping[str, Any], values: Mapping[str, float]) -> None:
        self._append(kind, progress, values)
        for name, value in values.items():
            self._events.add_scalar(f"{kind}/{name}", value, progress["step"])

    def _append(self, kind: str, progress: Mapping[str, Any], values: Mapping[str, float]) -> None:
        facts = {name: progress[name] for name in ("step", "epoch", "tokens", "seconds", "skipped")}
        self.run.append_metrics({"kind": kind, **facts, **values})
