"""Histograms of gates: of all layers together with the runs side by side, and layer by layer with the runs in one."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from g2lstm.look.pictures.style import (
    COLOURS,
    DARK,
    DASHES,
    GATE_NAMES,
    LIGHT,
    mark_unit_interval,
    new_figure,
    plain,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Layers = Sequence[Mapping[str, Any]]  # what `GateStatistics.summary` gives
_BARS = 50


def draw_histograms(runs: Mapping[str, Layers], mode: str, which: str = "all layers") -> "Figure":
    """The paper's Figures 1 and 3: how often the input and forget gates have which value, run beside run.

    Args:
        runs: by name, the summaries of statistics; the layers of each are counted together.
        mode: evaluation or training, in words.
        which: layers these are, in words; the paper's are the decoder's first.
    """
    with styled():
        figure = new_figure(max(4.2 * len(runs), 6.0), 5.6)
        grid = figure.subplots(2, len(runs), sharex=True, sharey="row", squeeze=False)
        for row, gate in zip(grid, ("input", "forget"), strict=True):
            for axes, (name, layers) in zip(row, runs.items(), strict=True):
                shares = _shares(layers, gate)
                bars = shares.reshape(_BARS, -1).sum(1)
                edges = np.linspace(0, 1, _BARS + 1)
                is_end = (edges[:-1] < 0.095) | (edges[:-1] > 0.895)
                for selected, colour, hatch in ((is_end, DARK, ""), (~is_end, LIGHT, "///")):
                    axes.bar(
                        edges[:-1][selected], bars[selected], 1 / _BARS, align="edge", color=colour, hatch=hatch,
                        edgecolor="white" if not hatch else "#6b6b6b", linewidth=0.4,
                    )  # fmt: skip
                axes.text(
                    0.5, 0.95, f"{shares[:10].sum():.0f} % below 0.1\n{shares[90:].sum():.0f} % above 0.9",
                    transform=axes.transAxes, ha="center", va="top",
                )  # fmt: skip
                axes.set_title(f"{plain(name)}\n{GATE_NAMES[gate]}" if gate == "input" else GATE_NAMES[gate])
                mark_unit_interval(axes)
            row[0].set_ylabel("% of values")
            row[0].set_ylim(0, row[0].get_ylim()[1] * 1.15)
        for axes in grid[-1]:
            axes.set_xlabel("value of the gate")
        figure.suptitle(f"{which}; {mode}", fontsize=10)
    return figure


def draw_layers(runs: Mapping[str, Layers], mode: str) -> "Figure":
    """A panel for each layer and gate, a line for each run.

    Args:
        runs: by name, the summaries of statistics.
        mode: evaluation or training, in words.
    """
    titles = list(dict.fromkeys(layer["title"] for layers in runs.values() for layer in layers))
    with styled():
        figure = new_figure(10.5, 2.3 * len(titles) + 1.2)
        grid = figure.subplots(len(titles), 3, sharex=True, sharey="row", squeeze=False)
        for row, title in zip(grid, titles, strict=True):
            for axes, gate in zip(row, GATE_NAMES, strict=True):
                for index, (name, layers) in enumerate(runs.items()):
                    for layer in layers:
                        if layer["title"] == title:
                            shares = _shares([layer], gate).reshape(_BARS, -1).sum(1)
                            colour, dash = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
                            edges = np.linspace(0, 1, _BARS + 1)
                            axes.stairs(
                                shares, edges, baseline=None, label=plain(name), color=colour, ls=dash, linewidth=1.7
                            )
                mark_unit_interval(axes)
                axes.set_title(f"{title}, {GATE_NAMES[gate]}")
            row[0].set_ylabel("% of values")
            row[0].set_ylim(bottom=0)
        for axes in grid[-1]:
            axes.set_xlabel("value of the gate")
        handles, names = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper left", ncols=min(len(names), 3), frameon=False)
        figure.suptitle(mode, fontsize=10, x=0.98, ha="right")
    return figure


def _shares(layers: Layers, gate: str) -> npt.NDArray[np.float64]:
    """(100,): per cent of the values in each bin, layers together."""
    counts = np.sum([layer["gates"][gate]["counts"] for layer in layers], axis=0)
    return np.asarray(100 * counts / counts.sum())
