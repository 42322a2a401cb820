"""`GateStatistics`: the gates of a whole model, counted while it runs, and the numbers that come of it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from g2lstm.errors import G2Error
from g2lstm.look.histogram import GateHistogram
from g2lstm.nn.gate import Gates
from g2lstm.tasks.reading import GATES, Place, places


class GateStatistics(Mapping[Place, dict[str, GateHistogram]]):
    """For each layer and direction of a model the histograms of its "input", "forget" and "output" gates.

    Args:
        model: with `G2LSTM` or `torch.nn.LSTM` layers.
        names: of the modules whose gates will come.
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
        """In which mode the gates were: "evaluation", "training" or, if it changed, "evaluation and training"."""
        return " and ".join(word for word, is_it in (("evaluation", False), ("training", True)) if is_it in self._modes)

    def add(self, name: str, gates: Gates, is_token: Tensor | None = None) -> None:
        """Counts the gates of one call of one module.

        Args:
            name: of the module.
            gates: of the call.
            is_token: (T, B), truth values; where sequences were padded and not packed, so that padding is left out.
        """
        self._modes.add(gates.training)
        kept = None if is_token is None or is_token.all() else is_token.flatten().nonzero().squeeze(1)
        for index, place in enumerate(self._places[name]):
            for gate, histogram in self._histograms[place].items():
                values = getattr(gates, gate)[index]
                histogram.add(values if kept is None else values.flatten(0, 1).index_select(0, kept.to(values.device)))

    def drain(self, record: Mapping[str, list[Gates]], is_token: Mapping[str, Tensor] | None = None) -> None:
        """Counts all calls of a record, and empties it.

        Args:
            record: the calls of each module.
            is_token: for the modules whose sequences were padded, see `add`.
        """
        for name, calls in record.items():
            for gates in calls:
                self.add(name, gates, (is_token or {}).get(name))
            calls.clear()

    def merge(self, other: "GateStatistics") -> None:
        """Counts what another one counted, of the same layers."""
        if list(self) != list(other):
            raise G2Error("statistics of different models cannot be merged")
        self._modes |= other._modes
        for place, histograms in self._histograms.items():
            for gate, histogram in histograms.items():
                histogram.merge(other[place][gate])

    def counts(self, gate: str) -> Tensor:
        """(100,) int64: the values of a gate in all layers together; see `GateHistogram.counts`."""
        return torch.stack([histograms[gate].counts for histograms in self.values()]).sum(0)

    def summary(self) -> list[dict[str, Any]]:
        """The numbers as plain data, an entry for each layer and direction."""
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
