"""How far training is, and who is told of it."""

import math
from dataclasses import dataclass, field
from typing import Protocol

from g2lstm.training.task import Validation


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
    best_scores: dict[str, float] = field(default_factory=dict)  # of that validation
    stale: int = 0  # validations since then
    skipped: int = 0  # updates left out because a loss or a gradient was not finite
    skipped_in_a_row: int = 0  # of them, the last ones
    finished: bool = False


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
