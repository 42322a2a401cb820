"""The histogram over training time: how often the gates had which value at each validation, as a heat map."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from g2lstm.look.history import SHOWN, GateHistory
from g2lstm.look.pictures.style import GATE_NAMES, SCALE, new_figure, plain, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_history(runs: Mapping[str, GateHistory]) -> "Figure":
    """Input and forget gate below each other, the runs side by side; one scale of colours for all.

    Args:
        runs: by name.
    """
    from matplotlib.colors import PowerNorm

    top = max(history.top for history in runs.values())
    is_cut = any(each.max() > top for history in runs.values() for each in history.shares.values())
    scale = PowerNorm(0.5, 0, top)  # else the two ends are all one sees
    with styled():
        figure = new_figure(max(4.2 * len(runs), 6.0) + 0.8, 5.6)
        grid = figure.subplots(len(SHOWN), len(runs), sharex="col", sharey=True, squeeze=False)
        for row, gate in zip(grid, SHOWN, strict=True):
            for axes, (name, history) in zip(row, runs.items(), strict=True):
                shares = history.shares[gate]
                edges = np.linspace(0, 1, shares.shape[1] + 1)
                image = axes.pcolormesh(history.token_edges / 1e6, edges, shares.T, cmap=SCALE, norm=scale)
                axes.set_title(f"{plain(name)}\n{GATE_NAMES[gate]}" if gate == SHOWN[0] else GATE_NAMES[gate])
                axes.set_yticks([0, 0.1, 0.5, 0.9, 1])
            row[0].set_ylabel("value of the gate")
        for axes in grid[-1]:
            axes.set_xlabel("million training tokens")
        width = f"{1 / shares.shape[1]:g}"
        label, extend = f"% of values, in bins of {width}", "max" if is_cut else "neither"
        figure.colorbar(image, ax=grid.ravel().tolist(), label=label, extend=extend, pad=0.01, aspect=30)
        figure.suptitle("all layers, at each validation; evaluation mode", fontsize=10)
    return figure
