"""How long to train: a number of epochs, given or fitted to a number of minutes; and the learning rate on the way."""

import math

from g2lstm.recipes.sections import AdamW, NtAsgd, TrainSection
from g2lstm.training.optim import one_cycle
from g2lstm.training.progress import Progress

_FIT_AFTER_SECONDS = 20.0  # a budget in minutes is turned into epochs once the speed is known


def share(settings: TrainSection, progress: Progress, epochs_done: float) -> float:
    """How much of the training is done, in [0, 1]."""
    if progress.epochs is not None:
        return min(epochs_done / progress.epochs, 1.0)
    assert settings.minutes is not None
    passed = progress.seconds / (60 * settings.minutes)
    if settings.epochs is not None:
        passed = max(passed, epochs_done / settings.epochs)
    return min(passed, 1.0)


def learning_rate(settings: TrainSection, share: float) -> float:
    """The rate when a share of the training is done."""
    chosen = settings.optimizer
    if isinstance(chosen, AdamW):
        # Until a budget in minutes is fitted, little of it is used: the rise has hardly begun.
        return chosen.lr * one_cycle(share, chosen.warmup, final=chosen.final_lr)
    return chosen.lr


def ends_by_trigger(settings: TrainSection) -> bool:
    """Whether this is a finetune phase, which ends when validation stops improving."""
    return isinstance(settings.optimizer, NtAsgd) and settings.optimizer.start == "asgd"


def fit(settings: TrainSection, progress: Progress, epochs_done: float) -> bool:
    """Turns minutes into epochs as soon as the speed is known; from then on the clock decides nothing. If it did so."""
    minutes = settings.minutes
    training = progress.seconds - progress.validating_seconds
    if progress.epochs is not None or minutes is None or training < min(_FIT_AFTER_SECONDS, 6 * minutes):
        return False
    epochs = fitted_epochs(minutes, training / epochs_done, progress.validation_seconds)
    progress.epochs = min(epochs, settings.epochs or math.inf)
    return True


def fitted_epochs(minutes: float, seconds_per_epoch: float, seconds_per_validation: float) -> float:
    """How many epochs, with a validation at the end of each, fit into the minutes; the last may be a part of one."""
    budget = minutes * 60
    whole = math.floor(budget / (seconds_per_epoch + seconds_per_validation))
    rest = budget - whole * (seconds_per_epoch + seconds_per_validation) - seconds_per_validation
    return max(whole + max(rest, 0.0) / seconds_per_epoch, 1e-3)
