"""What happened while training: learning curves, and how the gates' values changed; from lines of metrics.jsonl."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from g2lstm.look.pictures.style import (
    COLOURS,
    DASHES,
    GATE_NAMES,
    MARKERS,
    SEAMLESS,
    colour_bar,
    heat_colours,
    log_scale,
    new_figure,
    styled,
)  # fmt: skip
from g2lstm.tasks.reading import title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Metrics = Sequence[Mapping[str, Any]]  # the lines of metrics.jsonl
_POINTS = 400  # drawn per curve
_COLUMNS = 60  # drawn per heat map
_GATES = ("input", "forget")
_TOKENS = "million training tokens"


def draw_learning(runs: Mapping[str, Metrics], metric: str) -> "Figure | None":
    """Perplexity or BLEU at each validation, with pale lines for the training batches; None without two validations.

    Args:
        runs: lines of metrics by run name.
        metric: "perplexity" or "bleu".
    """
    is_log = metric == "perplexity"
    curves = []  # which run, whether of validation, and the points
    for index, lines in enumerate(runs.values()):
        start = 0.02 * lines[-1]["tokens"] if lines and is_log else 0  # its steep fall would hide all the rest
        for kind in ("train", "valid"):
            chosen = [(line["tokens"] / 1e6, line[metric]) for line in lines if line["kind"] == kind and metric in line]
            drawn = [(x, y) for x, y in _finite(chosen) if x >= start / 1e6 and (y > 0 or not is_log)]
            if len(drawn) > 1:
                curves.append((index, kind == "valid", np.array(drawn[:: len(drawn) // _POINTS + 1])))
    if not any(is_validation for _, is_validation, _ in curves):
        return None
    names = list(runs)
    with styled():
        figure = new_figure(6.4, 3.6)
        axes = figure.subplots()
        for index, is_validation, points in curves:
            looks: dict[str, Any] = {"color": COLOURS[index % 6]}
            looks |= {"ls": DASHES[index % 6]} if is_validation else {"alpha": 0.35, "linewidth": 1, "zorder": 1}
            axes.plot(*points.T, label=names[index] if is_validation else None, **looks)
        if is_log:
            values = np.concatenate([points[:, 1] for _, _, points in curves])
            log_scale(axes, "y", values.min(), values.max())
        axes.set(xlabel=_TOKENS, ylabel=f"{'BLEU' if metric == 'bleu' else metric}, validation")
        axes.grid(axis="y")
        figure.legend(loc="outside lower center", ncols=min(len(runs), 3))
    return figure


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def has_saturation(metrics: Metrics) -> bool:
    """Whether any line says how many gates were saturated."""
    return any(name.startswith("saturation/") for line in metrics for name in line)


def draw_saturation(runs: Mapping[str, Metrics]) -> "Figure":
    """The share of gates below 0.1 or above 0.9 at each validation; colours are layers, dashes are runs.

    Args:
        runs: lines of metrics by run name.
    """
    keys = dict.fromkeys(name for lines in runs.values() for line in lines for name in line)
    layers = list(dict.fromkeys(key.split("/")[1] for key in keys if key.startswith("saturation/")))
    with styled():
        figure = new_figure(10.0, 4.8 + 0.25 * (len(layers) if len(runs) > 1 else len(layers) // 4))
        panels = figure.subplots(1, 2, sharey=True)
        for axes, gate in zip(panels, _GATES, strict=True):
            for index, (name, lines) in enumerate(runs.items()):
                _draw_layers(axes, index, f"{name}: " if len(runs) > 1 else "", lines, layers, gate)
            axes.set(title=GATE_NAMES[gate], xlabel=_TOKENS)
            axes.grid(axis="y")
        panels[0].set_ylim(bottom=0)
        panels[0].set_ylabel("% of values below 0.1 or above 0.9")
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(runs) if 1 < len(runs) <= 3 else 4)
        figure.suptitle("at each validation; evaluation mode", fontsize=10)
    return figure


def _draw_layers(axes: "Axes", run: int, name: str, lines: Metrics, layers: Sequence[str], gate: str) -> None:
    for place, layer in enumerate(layers):
        key = f"saturation/{layer}/{gate}"
        points = _finite([(line["tokens"] / 1e6, 100 * line[key]) for line in lines if key in line])
        if not points:
            continue
        looks: dict[str, Any] = {"color": COLOURS[place % 6], "marker": MARKERS[place % 6], "ls": DASHES[run % 6]}
        label = f"{name}{title_of(layer)}"
        axes.plot(*np.array(points).T, label=label, markersize=4.5, linewidth=1.5, **looks)


@dataclass(frozen=True)
class GateHistory:
    """How often the gates of all layers took each value, from the first validation to the last.

    Attributes:
        tokens: (V,), read in training before each validation.
        shares: for each gate (V, bins): the percentage of its values in equal bins from 0 to 1.
    """

    tokens: npt.NDArray[np.float64]
    shares: dict[str, npt.NDArray[np.float64]]

    @property
    def token_edges(self) -> npt.NDArray[np.float64]:
        """Where the stretch around each validation begins and ends, (V + 1,)."""
        middles = (self.tokens[1:] + self.tokens[:-1]) / 2
        first = self.tokens[0] - (middles[0] - self.tokens[0])
        last = self.tokens[-1] + (self.tokens[-1] - middles[-1])
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
    bins = len(list(takewhile(lambda k: f"input/{k}" in lines[0], count()))) if lines else 0
    if len(lines) < 2 or bins == 0:
        return None
    shares = {}
    for gate in _GATES:
        counts = np.array([[line.get(f"{gate}/{k}", 0) for k in range(bins)] for line in lines], dtype=np.float64)
        counts = np.nan_to_num(counts).clip(0, 1e15)  # training writes nothing outside this range
        shares[gate] = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    if not any(each.any() for each in shares.values()):
        return None
    return GateHistory(np.array([line["tokens"] for line in lines], dtype=np.float64), shares)


def draw_history(runs: Mapping[str, GateHistory]) -> "Figure":
    """A heat map over training time: input above forget gate, runs side by side, all with the same colour scale.

    Args:
        runs: histories by run name.
    """
    from matplotlib.colors import PowerNorm

    top = max(history.top for history in runs.values())
    is_cut = any(each.max() > top for history in runs.values() for each in history.shares.values())
    scale = PowerNorm(0.5, 0, top)  # on a linear scale the two ends are all one sees
    with styled():
        figure = new_figure(max(4.2 * len(runs), 6.0) + 0.8, 5.6)
        grid = figure.subplots(len(_GATES), len(runs), sharex="col", sharey=True, squeeze=False)
        for row, gate in zip(grid, _GATES, strict=True):
            for axes, (name, history) in zip(row, runs.items(), strict=True):
                every = len(history.tokens) // _COLUMNS + 1
                shares = history.shares[gate][::every]
                x = np.append(history.token_edges[:-1:every], history.token_edges[-1]) / 1e6
                y = np.linspace(0, 1, shares.shape[1] + 1)
                image = axes.pcolormesh(x, y, shares.T, cmap=heat_colours(), norm=scale, **SEAMLESS)
                axes.set_title(f"{name}\n{GATE_NAMES[gate]}" if gate == _GATES[0] else GATE_NAMES[gate])
                axes.set_yticks([0, 0.1, 0.5, 0.9, 1])
            row[0].set_ylabel("gate value")
        for axes in grid[-1]:
            axes.set_xlabel(_TOKENS)
        label, extend = f"% of values, in bins of {1 / shares.shape[1]:g}", "max" if is_cut else "neither"
        colour_bar(figure, image, grid.ravel().tolist(), label=label, extend=extend, pad=0.01, aspect=30)
        figure.suptitle("all layers, at each validation; evaluation mode", fontsize=10)
    return figure
