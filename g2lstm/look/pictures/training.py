"""What happened while training: learning curves, and how the gates' values changed; from lines of metrics.jsonl."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from g2lstm.look.pictures.style import COLOURS, DASHES, GATE_NAMES, colour_bar, draw_cells, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Metrics = Sequence[Mapping[str, Any]]  # the lines of metrics.jsonl
_POINTS = 400  # drawn per curve
_COLUMNS = 60  # drawn per heat map
_GATES = ("input", "forget")
_TOKENS = "million training tokens"


def draw_learning(runs: Mapping[str, Metrics], metric: str) -> "Figure | None":
    """Perplexity or BLEU at each validation, with pale lines for the training batches; None without two validations."""
    is_log = metric == "perplexity"
    with styled():
        figure = new_figure(6.4, 3.6)
        axes = figure.subplots()
        for index, (name, lines) in enumerate(runs.items()):
            start = 0.02 * lines[-1]["tokens"] if lines and is_log else 0  # its steep fall would hide all the rest
            for kind in ("train", "valid"):
                chosen = [(line["tokens"], line[metric]) for line in lines if line["kind"] == kind and metric in line]
                drawn = [(x / 1e6, y) for x, y in chosen if start <= x < math.inf and _can_be_drawn(y, is_log)]
                looks: dict[str, Any] = {"label": name, "ls": DASHES[index % 6]}
                looks = looks if kind == "valid" else {"alpha": 0.35, "linewidth": 1, "zorder": 1}
                if len(drawn) > 1:
                    points = np.array(drawn[:: len(drawn) // _POINTS + 1])
                    axes.plot(*points.T, color=COLOURS[index % 6], **looks)
        if not axes.get_legend_handles_labels()[0]:
            return None
        if is_log:
            _log_scale(axes)
        axes.set(xlabel=_TOKENS, ylabel=f"{'BLEU' if metric == 'bleu' else metric}, validation")
        axes.grid(axis="y")
        figure.legend(loc="outside lower center", ncols=min(len(runs), 3))
    return figure


def _can_be_drawn(value: float, is_log: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not is_log)


def _log_scale(axes: "Axes") -> None:
    """Make the y axis logarithmic, with round numbers even where the values span less than a power of ten."""
    from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    low, high = axes.dataLim.intervaly
    ticks = FixedLocator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high))
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high > 5 * low else ticks)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


@dataclass(frozen=True)
class GateHistory:
    """How often the gates of all layers took each value, from the first validation to the last."""

    tokens: npt.NDArray[np.float64]  # (V,), read in training before each validation
    shares: dict[str, npt.NDArray[np.float64]]  # per gate, (V, bins): the % of its values in equal bins from 0 to 1

    @property
    def token_edges(self) -> npt.NDArray[np.float64]:
        """Where the stretch around each validation begins and ends, (V + 1,)."""
        middles = (self.tokens[1:] + self.tokens[:-1]) / 2
        first, last = 2 * self.tokens[0] - middles[0], 2 * self.tokens[-1] - middles[-1]
        return np.concatenate(([max(first, 0.0)], middles, [last]))

    @property
    def top(self) -> float:
        """The share at the end of the colour scale; only one in fifty is above it.

        At the start nearly all gates are at 0.5; a scale that reached that far would show nothing else.
        """
        shares = np.concatenate([each[each > 0] for each in self.shares.values()])
        return float(np.percentile(shares, 98, method="higher"))


def gate_history(metrics: Metrics) -> GateHistory | None:
    """The gates that training counted; None if it counted at fewer than two validations, as older versions did."""
    by_tokens = {
        line["tokens"]: line for line in metrics if line["kind"] == "gates" and math.isfinite(line["tokens"])
    }  # after a resume, the later of two lines
    lines = [by_tokens[tokens] for tokens in sorted(by_tokens)]
    bins = sum(name.startswith("input/") for name in lines[0]) if lines else 0
    if len(lines) < 2 or bins == 0:
        return None
    shares = {}
    for gate in _GATES:
        counts = np.array([[line.get(f"{gate}/{k}", 0) for k in range(bins)] for line in lines], dtype=np.float64)
        counts = counts.clip(0, 1e15)  # training writes nothing outside this range
        shares[gate] = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    if not any(each.any() for each in shares.values()):
        return None
    return GateHistory(np.array([line["tokens"] for line in lines], dtype=np.float64), shares)


def draw_history(runs: Mapping[str, GateHistory]) -> "Figure":
    """A heat map over training time: input above forget gate, runs side by side, all with the same colour scale."""
    from matplotlib.colors import PowerNorm

    top = max(history.top for history in runs.values())
    is_cut = any(each.max() > top for history in runs.values() for each in history.shares.values())
    scale = PowerNorm(0.5, 0, top)  # on a linear scale one would see only the two ends
    with styled():
        figure = new_figure(max(4.2 * len(runs), 6.0) + 0.8, 5.6)
        grid = figure.subplots(len(_GATES), len(runs), sharex="col", sharey=True, squeeze=False)
        for row, gate in zip(grid, _GATES, strict=True):
            for axes, (name, history) in zip(row, runs.items(), strict=True):
                every = len(history.tokens) // _COLUMNS + 1
                shares = history.shares[gate][::every]
                x = np.append(history.token_edges[:-1:every], history.token_edges[-1]) / 1e6
                cells = draw_cells(axes, x, np.linspace(0, 1, shares.shape[1] + 1), shares.T, scale)
                axes.set_title(f"{name}\n{GATE_NAMES[gate]}" if gate == _GATES[0] else GATE_NAMES[gate])
                axes.set_yticks([0, 0.1, 0.5, 0.9, 1])
            row[0].set_ylabel("gate value")
        for axes in grid[-1]:
            axes.set_xlabel(_TOKENS)
        label, extend = f"% of values, in bins of {1 / shares.shape[1]:g}", "max" if is_cut else "neither"
        colour_bar(figure, cells, grid.ravel().tolist(), label=label, extend=extend, pad=0.01, aspect=30)
        figure.suptitle("all layers, at each validation; evaluation mode", fontsize=10)
    return figure
