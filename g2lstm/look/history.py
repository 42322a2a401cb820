"""Histograms of the gates at each validation of a training run, from the lines of its metrics.jsonl."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

SHOWN = ("input", "forget")


@dataclass(frozen=True)
class GateHistory:
    """How often the gates of all layers had which value, from the first validation to the last.

    Attributes:
        tokens: (V,), read in training before each validation.
        shares: for each gate (V, bins): per cent of its values in each bin of one width from 0 to 1.
    """

    tokens: npt.NDArray[np.float64]
    shares: dict[str, npt.NDArray[np.float64]]

    @property
    def token_edges(self) -> npt.NDArray[np.float64]:
        """(V + 1,): where the stretch around each validation begins and ends."""
        middles = (self.tokens[1:] + self.tokens[:-1]) / 2
        first = self.tokens[0] - (middles[0] - self.tokens[0])
        last = self.tokens[-1] + (self.tokens[-1] - middles[-1])
        return np.concatenate(([max(first, 0.0)], middles, [last]))

    @property
    def top(self) -> float:
        """The share that ends a scale of colours: all but one in fifty are below it.

        At the beginning nearly all gates are at 0.5; were that the end of the scale, nothing else could be told apart.
        """
        shares = np.concatenate([each[each > 0] for each in self.shares.values()])
        return float(np.percentile(shares, 98, method="higher"))


def gate_history(metrics: Sequence[Mapping[str, Any]]) -> GateHistory | None:
    """What training has counted; None if it was at fewer than two validations, as in runs of earlier versions."""
    lines_of_gates = [line for line in metrics if line["kind"] == "gates" and math.isfinite(line["tokens"])]
    by_tokens = {line["tokens"]: line for line in lines_of_gates}  # of a resumed run the later one
    lines = [by_tokens[tokens] for tokens in sorted(by_tokens)]
    bins = len(list(takewhile(lambda k: f"input/{k}" in lines[0], count()))) if lines else 0
    if len(lines) < 2 or bins == 0:
        return None
    shares = {}
    for gate in SHOWN:
        counts = np.array([[line.get(f"{gate}/{k}", 0) for k in range(bins)] for line in lines], dtype=np.float64)
        counts = np.nan_to_num(counts).clip(0, 1e15)  # what training wrote is between these
        shares[gate] = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    if not any(each.any() for each in shares.values()):
        return None
    return GateHistory(np.array([line["tokens"] for line in lines], dtype=np.float64), shares)
