"""How far training is, and who is told of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from g2lstm.tasks.task import Validation


@dataclass
class Progress:
    """How far training is; saved with every checkpoint."""

    step: int = 0  # batches, those skipped included
    epoch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    epochs: float | None = None  # to train for; None until a budget in minutes has been fitted
    validation_seconds: float = 0.0  # of the last validation
    validating_seconds: float = 0.0  # of all of them
    best: float = math.inf  # the lowest criterion of a validation
    best_loss: float = math.inf  # of validations with that criterion, the lowest loss; earlier checkpoints lack it
    best_scores: dict[str, float] = field(default_factory=dict)  # of that validation
    stale: int = 0  # validations since then
    skipped: int = 0  # updates left out because a loss or a gradient was not finite
    skipped_in_a_row: int = 0  # of them, the last ones
    finished: bool = False

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> "Progress":
        """From the JSON of a checkpoint, in which a `best` or `best_loss` that is not there yet is None.

        Raises:
            TypeError, ValueError, AttributeError, OverflowError: it says something else.
        """
        bests = {"best": saved["best"], "best_loss": saved.get("best_loss")}
        progress = cls(**{**saved, **{name: math.inf if value is None else value for name, value in bests.items()}})
        counts = [progress.step, progress.epoch, progress.tokens, progress.stale]
        counts += [progress.skipped, progress.skipped_in_a_row]
        numbers = [progress.seconds, progress.validation_seconds, progress.validating_seconds]
        numbers += [progress.best, progress.best_loss, *progress.best_scores.values()]
        numbers += [] if progress.epochs is None else [progress.epochs]
        are_counts = all(type(count) is int and 0 <= count < 2**63 for count in counts)
        are_numbers = all(type(number) in (int, float) and not math.isnan(number) for number in numbers)
        has_end = progress.epochs is None or progress.epochs > 0
        if not are_counts or not are_numbers or not has_end or type(progress.finished) is not bool:
            raise ValueError(f"its progress is {str(saved)[:100]}")
        return progress


class Observer(Protocol):
    """Who wants to see training go on; the command line draws a bar."""

    def on_step(self, progress: Progress, share: float, values: dict[str, float]) -> None:
        """After every update: how much is done, in [0, 1], and what the last update measured."""

    def on_validation(self, progress: Progress, validation: Validation, is_best: bool) -> None:
        """After every validation."""

    def on_message(self, message: str) -> None:
        """Something worth a line."""


class Interrupted(Exception):  # noqa: N818  it is no error
    """Training was stopped by a signal, and its state is saved."""
