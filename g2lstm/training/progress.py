"""How far training is, when it ends, and the learning rate on the way."""

import math
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from g2lstm.recipes.sections import AdamW, TrainSection

Count = Annotated[int, Field(ge=0, lt=2**63)]
_FIT_AFTER_SECONDS = 20.0  # by then the speed is known well enough to turn a budget in minutes into epochs
_FIRST_RATE = 0.04  # of the one-cycle schedule, as a share of the highest


class TrainingProgress(BaseModel):
    """How far a training run is; saved with every checkpoint."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    step: Count = 0  # batches, skipped ones included
    epoch: Count = 0
    tokens: Count = 0
    seconds: float = 0.0
    epochs: Annotated[float, Field(gt=0)] | None = None  # to train for; None until a budget in minutes is fitted
    validation_seconds: float = 0.0  # of the last validation
    validating_seconds: float = 0.0  # of all validations
    best: float | None = None  # lowest validation criterion; None before the first validation
    best_loss: float | None = None  # lowest loss among validations with that criterion
    best_scores: dict[str, float] = {}  # of that validation
    stale: Count = 0  # validations since then
    skipped: Count = 0  # updates skipped because the loss or the gradient was not finite
    skipped_in_a_row: Count = 0
    finished: bool = False

    def is_improved_by(self, criterion: float, loss: float) -> bool:
        """Whether this validation beats the best one so far: by its criterion, then by its loss."""
        if self.best is None:
            return True
        return (criterion, loss) < (self.best, math.inf if self.best_loss is None else self.best_loss)

    def share(self, settings: TrainSection, epochs_done: float) -> float:
        """How much of the training is done, in [0, 1]."""
        if self.epochs is not None:
            return min(epochs_done / self.epochs, 1.0)
        assert settings.minutes is not None
        used = self.seconds / (60 * settings.minutes)
        if settings.epochs is not None:
            used = max(used, epochs_done / settings.epochs)
        return min(used, 1.0)

    def fit_epochs(self, settings: TrainSection, epochs_done: float) -> bool:
        """Turns minutes into epochs once the speed is known, and says whether it just did.

        From then on the clock decides nothing, so a resumed run ends like an uninterrupted one.
        """
        minutes = settings.minutes
        training = self.seconds - self.validating_seconds
        if self.epochs is not None or minutes is None or training < min(_FIT_AFTER_SECONDS, 6 * minutes):
            return False
        epochs = fitted_epochs(minutes, training / epochs_done, self.validation_seconds)
        self.epochs = min(epochs, settings.epochs or math.inf)
        return True


def fitted_epochs(minutes: float, seconds_per_epoch: float, seconds_per_validation: float) -> float:
    """How many epochs fit into the minutes, with a validation after each; the last epoch may be a partial one."""
    budget = minutes * 60
    whole = math.floor(budget / (seconds_per_epoch + seconds_per_validation))
    rest = budget - whole * (seconds_per_epoch + seconds_per_validation) - seconds_per_validation
    return max(whole + max(rest, 0.0) / seconds_per_epoch, 1e-3)


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
