"""Counts of gate values: `GateHistogram` for one gate, `GateStatistics` for a whole model; in constant memory."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from g2lstm.errors import G2Error
from g2lstm.nn.gate import Gates
from g2lstm.tasks.reading import GATES, Place, places

BINS = 100
LOW, HIGH = 0.1, 0.9  # a gate beyond these is called saturated; both are edges of bins
_CLOSEST = 1e-6  # when memory is measured, forget gates count as at least this far from 0 and from 1
_LOG_ENDS = math.log2(_CLOSEST), math.log2(1 - _CLOSEST)
_BLOCK = 1 << 17  # values counted together: few enough to stay in a core's cache


class GateHistogram:
    """Counts the values of one gate in bins of 0.01 and keeps sums per unit, in constant memory.

    Args:
        units: the hidden size H.
        is_memory: whether this is a forget gate; needed for `half_lives`.

    Attributes:
        counts: (100,) int64. Bin k holds the values v with k / 100 <= v < (k + 1) / 100; the last one also holds 1.
        steps: how many times the H units were seen.
    """

    def __init__(self, units: int, is_memory: bool = False) -> None:
        self.is_memory = is_memory
        self.counts = torch.zeros(BINS, dtype=torch.int64)
        self.steps = 0
        self._sums = torch.zeros(units, dtype=torch.float64)
        self._open = torch.zeros(units, dtype=torch.float64)  # how often each unit was at 0.5 or above
        self._open_sum = 0.0  # of the values at 0.5 or above
        self._halvings = torch.zeros(units, dtype=torch.float64)  # sums of -log2

    def add(self, values: Tensor) -> None:
        """Count values (..., H). A row with a NaN, as after the end of a packed sequence, is skipped."""
        if values.size(-1) != self.units:
            raise G2Error(f"expected the gates of {self.units} units, got {values.size(-1)}")
        rows = values.detach().reshape(-1, self.units).float().cpu()
        for block in rows.split(max(1, _BLOCK // self.units)):
            is_finite = block.sum(1).isfinite()
            self._add_finite(block if is_finite.all() else block[is_finite])

    def _add_finite(self, rows: Tensor) -> None:
        if not len(rows):
            return
        low, high = rows.aminmax()
        if low < 0 or high > 1:
            raise G2Error(f"a gate lies between 0 and 1, got values from {low:g} to {high:g}")
        # In float32 these products are below 10 and 90 exactly where the values are below 0.1 and 0.9.
        bins = (rows * BINS).to(torch.uint8).clamp_(max=BINS - 1)
        is_open = (rows >= 0.5).float()
        self.counts += torch.bincount(bins.flatten(), minlength=BINS)
        self.steps += len(rows)
        self._sums += rows.sum(0)
        self._open += is_open.sum(0)
        self._open_sum += torch.dot(is_open.flatten(), rows.flatten()).item()
        if self.is_memory:
            self._halvings -= rows.log2().clamp_(*_LOG_ENDS).sum(0)

    @property
    def units(self) -> int:
        """The hidden size."""
        return len(self._sums)

    @property
    def values(self) -> int:
        """How many values were counted."""
        return self.steps * self.units

    @property
    def mean(self) -> float:
        """The mean of all values."""
        return self._sums.sum().item() / self._counted()

    @property
    def below(self) -> float:
        """The share of values below 0.1."""
        return int(self.counts[: round(LOW * BINS)].sum()) / self._counted()

    @property
    def above(self) -> float:
        """The share of values of 0.9 or more."""
        return int(self.counts[round(HIGH * BINS) :].sum()) / self._counted()

    @property
    def entropy(self) -> float:
        """The entropy of a unit's choice to open (0.5 or more) or close, in bits from 0 to 1, averaged over units."""
        self._counted()
        share = self._open / self.steps
        return (torch.special.entr(share) + torch.special.entr(1 - share)).mean().item() / math.log(2)

    @property
    def distance(self) -> float:
        """The mean distance to 0 or 1, whichever is nearer: 0 for binary gates, 0.5 at most."""
        to_zero = self._sums.sum().item() - self._open_sum
        to_one = self._open.sum().item() - self._open_sum
        return (to_zero + to_one) / self._counted()

    def half_lives(self, quantiles: Sequence[float] = (0.1, 0.5, 0.9)) -> list[float]:
        """For a forget gate: the number of steps after which a unit has lost half its memory, as quantiles over units.

        At each step a unit keeps 2^-m of its cell, where m is the mean of -log2 f, so half is left after 1 / m steps.
        Gates count as at least 1e-6 away from 0 and from 1, so that a single closed gate doesn't outweigh all others:
        it counts as 20 halvings, and no half-life is longer than 693,147 steps.
        """
        self._counted()
        if not self.is_memory:
            raise G2Error("only the histogram of a forget gate has half-lives; create it with is_memory=True")
        return (self.steps / self._halvings).quantile(torch.tensor(quantiles, dtype=torch.float64)).tolist()

    def _counted(self) -> int:
        if not self.steps:
            raise G2Error("no gates were counted; run the model on at least one token, and check its gates aren't NaN")
        return self.values


class GateStatistics(Mapping[Place, dict[str, GateHistogram]]):
    """Histograms of the "input", "forget" and "output" gates for each layer and direction of a model.

    Args:
        model: a model with `G2LSTM` or `torch.nn.LSTM` layers.
        names: the names of the modules to count.
    """

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        modules = dict(model.named_modules())
        self._places = {name: places(name, modules[name]) for name in names}
        self._histograms: dict[Place, dict[str, GateHistogram]] = {}
        for name, each in self._places.items():
            units = modules[name].hidden_size
            assert isinstance(units, int)
            self._histograms |= {
                place: {gate: GateHistogram(units, is_memory=gate == "forget") for gate in GATES} for place in each
            }
        self._modes: set[bool] = set()

    def __getitem__(self, place: Place) -> dict[str, GateHistogram]:
        return self._histograms[place]

    def __iter__(self) -> Iterator[Place]:
        return iter(self._histograms)

    def __len__(self) -> int:
        return len(self._histograms)

    @property
    def mode(self) -> str:
        """The mode the gates were in: "evaluation", "training" or, if it changed, "evaluation and training"."""
        return " and ".join(word for word, is_it in (("evaluation", False), ("training", True)) if is_it in self._modes)

    def add(self, name: str, gates: Gates, is_token: Tensor | None = None) -> None:
        """Count the gates of one call of one module.

        Args:
            name: the module's name.
            gates: what the call returned.
            is_token: (T, B), false at padding, which is left out; not needed for packed sequences.
        """
        self._modes.add(gates.training)
        kept = None if is_token is None or is_token.all() else is_token.flatten().nonzero().squeeze(1)
        for index, place in enumerate(self._places[name]):
            for gate, histogram in self._histograms[place].items():
                values = getattr(gates, gate)[index]
                histogram.add(values if kept is None else values.flatten(0, 1).index_select(0, kept.to(values.device)))

    def drain(self, record: Mapping[str, list[Gates]], is_token: Mapping[str, Tensor] | None = None) -> None:
        """Count all calls of a record and empty it.

        Args:
            record: the calls of each module.
            is_token: see `add`; for modules that read padding.
        """
        for name, calls in record.items():
            for gates in calls:
                self.add(name, gates, (is_token or {}).get(name))
            calls.clear()

    def counts(self, gate: str) -> Tensor:
        """The counts of a gate in all layers together, (100,) int64; see `GateHistogram.counts`."""
        return torch.stack([histograms[gate].counts for histograms in self.values()]).sum(0)

    def summary(self) -> list[dict[str, Any]]:
        """The numbers as plain data, one entry per layer and direction."""
        return [
            {
                "name": place.name,
                "direction": place.direction,
                "title": place.title,
                "gates": {gate: _numbers(gate, histogram) for gate, histogram in histograms.items()},
            }
            for place, histograms in self.items()
        ]


def _numbers(gate: str, histogram: GateHistogram) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        "mean": histogram.mean,
        "below_0.1": histogram.below,
        "above_0.9": histogram.above,
        "entropy_bits": histogram.entropy,
        "distance_to_nearer_end": histogram.distance,
    }
    if gate == "forget":
        low, median, high = histogram.half_lives()
        numbers["half_life_steps"] = {"p10": low, "median": median, "p90": high}
    return {**numbers, "values": histogram.values, "counts": histogram.counts.tolist()}
