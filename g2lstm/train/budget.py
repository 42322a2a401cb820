"""How long to train: a number of epochs, given or fitted to a number of minutes."""

import math


def fitted_epochs(minutes: float, seconds_per_epoch: float, seconds_per_validation: float) -> float:
    """How many epochs, with a validation at the end of each, fit into the minutes; the last may be a part of one."""
    budget = minutes * 60
    whole = math.floor(budget / (seconds_per_epoch + seconds_per_validation))
    rest = budget - whole * (seconds_per_epoch + seconds_per_validation) - seconds_per_validation
    return max(whole + max(rest, 0.0) / seconds_per_epoch, 1e-3)
