"""`GateHistogram`: what is kept of the values of one gate, however many they are."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.look.counting import BINS, count

LOW, HIGH = 0.1, 0.9  # a gate outside is called saturated; both are edges of bins


class GateHistogram:
    """Counts of the values of one gate in bins of a hundredth, and sums for each unit. Memory does not grow.

    Args:
        units: H.
        is_memory: whether this is a forget gate, for `half_lives`.

    Attributes:
        counts: (100,) int64. Bin k has the values from k / 100 on and below (k + 1) / 100, the last one also 1.
        steps: how many times the H units were seen.
    """

    def __init__(self, units: int, is_memory: bool = False) -> None:
        self.is_memory = is_memory
        self.counts = torch.zeros(BINS, dtype=torch.int64)
        self.steps = 0
        self._sums = torch.zeros(units, dtype=torch.float64)
        self._ones = torch.zeros(units, dtype=torch.float64)  # how often each was at 0.5 or above
        self._upper = 0.0  # the sum of these values
        self._halvings = torch.zeros(units, dtype=torch.float64)  # sums of -log2

    def add(self, values: Tensor) -> None:
        """Counts values (..., H). A row that has a NaN, as after a sequence's end, is left out."""
        if values.size(-1) != self.units:
            raise G2Error(f"these are the gates of {values.size(-1)} units, and those before were of {self.units}")
        found = count(values.detach().reshape(-1, self.units), self.is_memory)
        self.counts += found.counts
        self.steps += found.steps
        self._sums += found.sums
        self._ones += found.ones
        self._upper += found.upper
        self._halvings += found.halvings

    def merge(self, other: "GateHistogram") -> None:
        """Counts what another one counted, of the same units."""
        if other.units != self.units:
            raise G2Error(f"histograms of {self.units} and of {other.units} units cannot be merged")
        self.counts += other.counts
        self.steps += other.steps
        self._sums += other._sums
        self._ones += other._ones
        self._upper += other._upper
        self._halvings += other._halvings

    @property
    def units(self) -> int:
        """H."""
        return len(self._sums)

    @property
    def values(self) -> int:
        """How many values were counted."""
        return self.steps * self.units

    @property
    def mean(self) -> float:
        """Of all values."""
        return self._sums.sum().item() / self._counted()

    @property
    def unit_means(self) -> Tensor:
        """(H,): of the values of each unit."""
        self._counted()
        return self._sums / self.steps

    @property
    def below(self) -> float:
        """The share of values below 0.1."""
        return int(self.counts[: round(LOW * BINS)].sum()) / self._counted()

    @property
    def above(self) -> float:
        """The share of values of 0.9 and more."""
        return int(self.counts[round(HIGH * BINS) :].sum()) / self._counted()

    @property
    def entropy(self) -> float:
        """In bits, what a unit's decision to open (0.5 and more) or to close tells: the mean over units, 0 to 1."""
        self._counted()
        share = self._ones / self.steps
        return (torch.special.entr(share) + torch.special.entr(1 - share)).mean().item() / math.log(2)

    @property
    def distance(self) -> float:
        """The mean distance to 0 or 1, whichever is nearer: 0 for binary gates, 0.5 at most."""
        upper = self._ones.sum().item() - self._upper
        return (self._sums.sum().item() - self._upper + upper) / self._counted()

    def half_lives(self, quantiles: Sequence[float] = (0.1, 0.5, 0.9)) -> list[float]:
        """Of a forget gate: after how many steps a unit has kept half of what it held; quantiles over the units.

        A unit keeps 2^-m of its cell at a step, m being the mean of -log2 f; half of it is left after 1 / m steps.
        Gates are taken to be 1e-6 from 0 and from 1 at least, so that one closed gate does not stand for all others: it
        counts as 20 halvings, and no half-life is longer than 693,147 steps.
        """
        self._counted()
        if not self.is_memory:
            raise G2Error("only the histogram of a forget gate tells half-lives; make it with is_memory=True")
        return (self.steps / self._halvings).quantile(torch.tensor(quantiles, dtype=torch.float64)).tolist()

    def _counted(self) -> int:
        if not self.steps:
            raise G2Error("no gate was seen; run the model on at least one token, and see that its gates are not NaN")
        return self.values
