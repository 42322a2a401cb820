"""Counts gate values in constant memory: of one gate, of any running model, of a trained model on its own data."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from g2lstm.errors import G2Error
from g2lstm.look.switches import Examples, Switches
from g2lstm.nn.gate import Gates
from g2lstm.nn.record import record_gates
from g2lstm.runs.records import GATE_BINS as BINS
from g2lstm.runs.records import Explained
from g2lstm.tasks.reading import GATES, Place, Reading, in_mode, places
from g2lstm.tasks.trained import Progress, Trained

LOW, HIGH = 0.1, 0.9  # a gate beyond these is called saturated; both are edges of bins
_CLOSEST = 1e-6  # for half-lives, forget gates count as at least this far from 0 and from 1
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
        self.units = units
        self.is_memory = is_memory
        self.counts = torch.zeros(BINS, dtype=torch.int64)
        self.steps = 0
        self._sums = torch.zeros(units, dtype=torch.float64)
        self._open = torch.zeros(units, dtype=torch.float64)  # how often each unit was at 0.5 or above
        self._open_sum = 0.0  # of the values at 0.5 or above
        self._halvings = torch.zeros(units, dtype=torch.float64)  # sums of -log2

    def add(self, values: Tensor) -> None:
        """Count values (..., H). Rows with a NaN, as after the end of a packed sequence, are skipped."""
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
        it counts as 20 halvings, and no half-life is longer than 693,147 steps. A binary gate keeps all or nothing, so
        there m is -log2 of the share of steps at which it is open, and in 1 / m steps half of the memories are gone.
        """
        self._counted()
        if not self.is_memory:
            raise G2Error("only the histogram of a forget gate has half-lives; create it with is_memory=True")
        halvings = self._halvings / self.steps
        if self.distance == 0:
            halvings = -(self._open / self.steps).log2().clamp(*_LOG_ENDS)
        return (1 / halvings).quantile(torch.tensor(quantiles, dtype=torch.float64)).tolist()

    def numbers(self) -> dict[str, Any]:
        """All of this as plain data."""
        found: dict[str, Any] = {
            "mean": self.mean,
            "below_0.1": self.below,
            "above_0.9": self.above,
            "entropy_bits": self.entropy,
            "distance_to_nearer_end": self.distance,
        }
        if self.is_memory:
            found["half_life_steps"] = dict(zip(("p10", "median", "p90"), self.half_lives(), strict=True))
        return {**found, "values": self.values, "counts": self.counts.tolist()}

    def _counted(self) -> int:
        if not self.steps:
            raise G2Error("no gates were counted; run the model on at least one token, and check its gates aren't NaN")
        return self.values


class GateStatistics(dict[Place, dict[str, GateHistogram]]):
    """Histograms of the "input", "forget" and "output" gates for each layer and direction of a model.

    Args:
        model: a model with `G2LSTM` or `torch.nn.LSTM` layers.
        names: the names of the modules to count.
    """

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        modules: dict[str, Any] = dict(model.named_modules())
        self._places = {name: places(name, modules[name]) for name in names}
        super().__init__(
            (place, {gate: GateHistogram(modules[name].hidden_size, is_memory=gate == "forget") for gate in GATES})
            for name, own in self._places.items()
            for place in own
        )

    def drain(
        self,
        record: Mapping[str, list[Gates]],
        is_token: Mapping[str, Tensor] | None = None,
        also: Callable[[Place, str, Tensor, Tensor | None], None] | None = None,
    ) -> None:
        """Count all calls of a record and empty it.

        Args:
            record: the calls of each module.
            is_token: for modules that read padding, (T, B), false at padding. Packed sequences don't need it.
            also: called with the place, the name and the values of each gate, and with the mask of its module.
        """
        for name, calls in record.items():
            mask = (is_token or {}).get(name)
            kept = None if mask is None or mask.all() else mask.flatten().nonzero().squeeze(1)
            for gates in calls:
                for index, place in enumerate(self._places[name]):
                    for gate, histogram in self[place].items():
                        values = getattr(gates, gate)[index]
                        if also is not None:
                            also(place, gate, values, mask)
                        if kept is not None:
                            values = values.flatten(0, 1).index_select(0, kept.to(values.device))
                        histogram.add(values)
            calls.clear()

    def summary(self) -> list[dict[str, Any]]:
        """The numbers as plain data, one entry per layer and direction."""
        return [
            {
                "name": place.name,
                "direction": place.direction,
                "title": place.title,
                "gates": {gate: histogram.numbers() for gate, histogram in histograms.items()},
            }
            for place, histograms in self.items()
        ]


@contextmanager
def watch(model: nn.Module) -> Iterator[GateStatistics]:
    """Count the gates of every `G2LSTM` and `torch.nn.LSTM` inside `model` while the block runs, without keeping them.

    The model stays in its mode: call `model.eval()` first, unless you want to see the noise of training. Pack
    sequences of different lengths, or their padding is counted too.

    Examples:
        >>> with g2lstm.look.watch(model.eval()) as statistics:
        ...     for x in data:
        ...         model(x)
        >>> for layer in statistics.summary():
        ...     print(layer["name"], layer["gates"]["forget"]["mean"])
    """
    with record_gates(model) as record, ExitStack() as stack:
        statistics = GateStatistics(model, record)
        stack.callback(statistics.drain, record)  # calls of `forward` itself run no hook
        for name, module in model.named_modules():
            if name in record:
                hook = module.register_forward_hook(lambda *_: statistics.drain(record))
                stack.callback(hook.remove)
        yield statistics


@dataclass(frozen=True)
class Recording:
    """Gates that were counted."""

    statistics: GateStatistics
    mode: str  # evaluation or training, in words
    data: dict[str, Any]  # which text, and how much of it
    explained: list[Explained] = field(default_factory=list)  # the units that switch with something, best first


def record_split(
    trained: Trained,
    split: str = "valid",
    *,
    samples: int = 10_000,
    eval_gate: str | None = None,
    training: bool = False,
    seed: int = 0,
    data_dir: Path | None = None,
    explain: bool = False,
    progress: Progress | None = None,
) -> Recording:
    """Count the gates of a trained model on a split of its own data, in constant memory.

    A language model reads windows of text as in validation: columns side by side, with the state carried over, from
    the start of each column. A translation model reads random pairs, no longer than those of training, and its decoder
    reads the given target.

    Args:
        trained: the model and its tokenizers.
        split: "train", "valid" or "test".
        samples: the maximum number of windows or pairs to read.
        eval_gate: "soft", "tempered" or "hard"; None for the model's own.
        training: count as in training, with noise.
        seed: seeds noise, dropout and the choice of pairs.
        data_dir: where the named data sets are.
        explain: also find the units whose switching can be explained.
        progress: called with the samples done and the total.
    """
    if samples < 1:
        raise G2Error(f"samples must be at least 1, got {samples}")
    model = trained.model
    with in_mode(model, eval_gate=eval_gate, training=training, seed=seed) as mode, record_gates(model) as record:
        statistics, passes = GateStatistics(model, record), trained.passes(split, data_dir)
        switches = Switches(trained, is_continued=passes.unit == "windows") if explain else None
        for done, total, is_token, tokens in passes.read(samples, seed):
            if switches is not None:
                switches.read(tokens)
            statistics.drain(record, is_token, None if switches is None else switches.add)
            if progress is not None:
                progress(done, total)
        explained = switches.best() if switches is not None else []
        if explained:
            examples, again = Examples(trained, explained), GateStatistics(model, record)
            for _, _, is_token, tokens in passes.read(samples, seed):
                examples.read(tokens)
                again.drain(record, is_token, examples.add)
                if examples.is_enough:
                    break
            explained = examples.explained()
    counted = {place.side: histograms["input"].steps for place, histograms in statistics.items()}
    data = {"split": split, passes.unit: done, "tokens": counted, "sha256": passes.sha256}
    return Recording(statistics, mode, data, explained)


def record_reading(trained: Trained, reading: Reading) -> Recording:
    """Count the gates of a reading."""
    statistics = GateStatistics(trained.model, dict.fromkeys(layer.name for layer in reading.layers))
    for layer in reading.layers:
        for gate, histogram in statistics[Place(layer.name, layer.direction, layer.title)].items():
            histogram.add(torch.from_numpy(getattr(layer, gate)))
    return Recording(statistics, reading.mode, {"tokens": {side: len(each) for side, each in reading.tokens.items()}})
