"""A rough estimate of how long a run will take and how much memory it will need."""

from dataclasses import dataclass

import torch

from g2lstm.recipes.sections import NtAsgd
from g2lstm.tasks.recipes import Recipe, task_of

HOW = (
    "Times are for all epochs on the whole data set, at 6 operations for each weight and token and 75 GFLOP/s per "
    "thread (ptb-small on two cores of a Xeon with AVX-512), or train.minutes if that is shorter. They count runs that "
    "have begun as if they had not; a GPU is far faster. Memory is for weights, gradients, the optimizer, checkpoints "
    "and the layers' outputs, plus 400 MB for the libraries."
)
_OPERATIONS = 6  # a multiplication and an addition, forward once and backward twice
_PER_THREAD = 75e9  # operations per second
_LIBRARIES = 400e6  # bytes
# Weights, gradients, what the optimizer keeps and needs for an update, and a checkpoint being written; from the peak
# resident memory of `embedded` with 256 to 1,536 hidden units, and of `ptb-small`.
_COPIES, _COPIES_OF_ASGD = 10, 4
_OUTPUTS = 10  # numbers that a layer keeps for each unit and step until its backward pass


@dataclass(frozen=True)
class _Size:
    train: int  # tokens, both sides of a pair together
    test: int
    vocabulary: int  # words; a recipe gives the number of sub-words
    length: int = 0  # tokens per sentence


_SIZES = {
    "embedded": _Size(44_000, 4_400, 2_500),
    "ptb": _Size(929_589, 82_430, 10_000),
    "wikitext-2": _Size(2_088_628, 245_569, 33_278),
    "embedded-mt": _Size(400_000, 20_000, 500, 10),
    "multi30k-de-en": _Size(800_000, 27_000, 6_000, 14),
    "iwslt14-de-en": _Size(7_000_000, 310_000, 25_000, 23),
    "wmt14-en-de": _Size(260_000_000, 160_000, 30_000, 29),
}


@dataclass(frozen=True)
class Estimate:
    """The cost of a run."""

    train_seconds: float
    measure_seconds: float  # of each measurement
    bytes: float


def estimate(recipe: Recipe) -> Estimate | None:
    """The cost of a run with this recipe; None for data of unknown size."""
    size = _SIZES.get(recipe.data.name or "")
    if size is None:
        return None
    work = task_of(recipe).work(recipe, recipe.data.vocabulary or size.vocabulary, size.length)
    speed = _PER_THREAD * torch.get_num_threads() / (_OPERATIONS * work.used)  # tokens per second
    train = recipe.train
    by_epochs = None if train.epochs is None else train.epochs * size.train / speed
    by_minutes = None if train.minutes is None else 60.0 * train.minutes
    seconds = min(value for value in (by_epochs, by_minutes) if value is not None)
    copies = _COPIES_OF_ASGD if isinstance(train.optimizer, NtAsgd) else _COPIES
    numbers = copies * work.weights + _OUTPUTS * work.units * work.batch_tokens
    return Estimate(seconds, size.test / speed, _LIBRARIES + 4 * numbers)
