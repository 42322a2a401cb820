"""Histograms of gates: all layers together, layer by layer, and in the saturated parts of the sigmoid.

They are drawn from summaries of statistics by run name; a mode, evaluation or training, is in words.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from g2lstm.look.pictures.style import COLOURS, DASHES, GATE_NAMES, new_figure, styled, unit_interval
from g2lstm.page.palette import HEAT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Layers = Sequence[Mapping[str, Any]]  # what `GateStatistics.summary` gives
_BARS = 50
_MAX_LAYERS = 16  # drawn one by one
_DARK, _LIGHT, _MIDDLE = HEAT[7], HEAT[2], "#c9ccd1"
_REACH = 6.0  # of the sigmoid's x axis
_EDGE = float(np.log(9))  # where the sigmoid is 0.9


def draw_histograms(runs: Mapping[str, Layers], mode: str, which: str = "all layers") -> "Figure":
    """The paper's Figures 1 and 3: how often the input and forget gates take each value, runs side by side.

    The layers of a run are counted together; `which` says in words which they are. Runs share a scale unless some are
    binary and others not, whose bars would be too small to see.
    """
    with styled():
        figure = new_figure(max(4.2 * len(runs), 6.0), 5.6)
        gates = ("input", "forget")
        is_mixed = len({is_binary(layers, gate) for layers in runs.values() for gate in gates}) > 1
        grid = figure.subplots(2, len(runs), sharex=True, sharey="none" if is_mixed else "row", squeeze=False)
        for row, gate in zip(grid, gates, strict=True):
            for axes, (name, layers) in zip(row, runs.items(), strict=True):
                shares = _shares(layers, gate)
                _draw_two(axes, shares, _DARK) if is_binary(layers, gate) else _draw_bars(axes, shares)
                axes.set_title(f"{name}\n{GATE_NAMES[gate]}" if gate == "input" else GATE_NAMES[gate])
            row[0].set_ylabel("% of values")
            for axes in row if is_mixed else row[:1]:
                axes.set_ylim(0, axes.get_ylim()[1] * 1.3)
        for axes in grid[-1]:
            axes.set_xlabel("gate value")
        figure.suptitle(f"{which}; {mode}", fontsize=10)
    return figure


def _draw_bars(axes: "Axes", shares: npt.NDArray[np.float64]) -> None:
    bars = shares.reshape(_BARS, -1).sum(1)
    left = np.linspace(0, 1, _BARS, endpoint=False)
    is_end = (left < 0.095) | (left > 0.895)
    for selected, colour, edge, hatch in ((is_end, _DARK, "white", ""), (~is_end, _LIGHT, "#6b6b6b", "///")):
        axes.bar(
            left[selected], bars[selected], 1 / _BARS, align="edge", color=colour, hatch=hatch, edgecolor=edge,
            linewidth=0.4,
        )  # fmt: skip
    words = f"{shares[:10].sum():.0f} % below 0.1\n{shares[90:].sum():.0f} % above 0.9"
    axes.text(0.5, 0.95, words, transform=axes.transAxes, ha="center", va="top")
    unit_interval(axes)


def is_binary(layers: Layers, gate: str) -> bool:
    """Whether every value that was counted is 0 or 1."""
    return all(layer["gates"][gate]["distance_to_nearer_end"] == 0 for layer in layers)


def _draw_two(axes: "Axes", shares: npt.NDArray[np.float64], colour: str, number: int = 0, of: int = 1) -> None:
    """Two bars, closed at 0 and open at 1, with their shares above them; of several runs, side by side."""
    width = min(0.1, 0.3 / of)
    for left, share, side, what in (
        (number * width, shares[0], "left", " closed"),
        (1 - (of - number) * width, shares[-1], "right", " open"),
    ):
        axes.bar(left, share, width, align="edge", color=colour, edgecolor="white", linewidth=0.4)
        at, ha, more = (left + width * (side == "right"), side, what) if of == 1 else (left + width / 2, "center", "")
        axes.text(at, share, f"{share:.0f} %{more}", ha=ha, va="bottom", fontsize=10, in_layout=False)
    unit_interval(axes)


def draw_layers(runs: Mapping[str, Layers], mode: str) -> "Figure":
    """A panel for each layer and gate, with a line for each run."""
    found = list(dict.fromkeys(layer["title"] for layers in runs.values() for layer in layers))
    titles, mode = found[:_MAX_LAYERS], mode if len(found) <= _MAX_LAYERS else f"the first {_MAX_LAYERS} layers; {mode}"
    edges = np.linspace(0, 1, _BARS + 1)
    with styled():
        figure = new_figure(10.5, 2.3 * len(titles) + 1.2)
        grid = figure.subplots(len(titles), 3, sharex=True, sharey="row", squeeze=False)
        for row, title in zip(grid, titles, strict=True):
            for axes, gate in zip(row, GATE_NAMES, strict=True):
                for index, (name, layers) in enumerate(runs.items()):
                    own = [layer for layer in layers if layer["title"] == title]
                    shares = _shares(own, gate).reshape(_BARS, -1).sum(1) if own else np.full(_BARS, np.nan)
                    looks: dict[str, Any] = {"color": COLOURS[index % 6], "ls": DASHES[index % 6], "linewidth": 1.7}
                    if own and is_binary(own, gate):
                        _draw_two(axes, shares, looks["color"], index, len(runs))
                        shares = np.full(_BARS, np.nan)
                    axes.stairs(shares, edges, baseline=None, label=name, **looks)
                unit_interval(axes)
                axes.set_title(f"{title}, {GATE_NAMES[gate]}")
            row[0].set_ylabel("% of values")
            row[0].set_ylim(0, row[0].get_ylim()[1] * 1.08)
        for axes in grid[-1]:
            axes.set_xlabel("gate value")
        handles, names = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper left", ncols=min(len(names), 3))
        figure.suptitle(mode, fontsize=10, x=0.98, ha="right")
    return figure


def draw_sigmoid(runs: Mapping[str, Layers], mode: str) -> "Figure":
    """The paper's Figure 2: the sigmoid, flat below 0.1 and above 0.9, over the share of each run's gates there.

    If all gates are 0 or 1, it is a step instead.
    """
    with styled():
        height = 0.42 * 2 * len(runs) + 0.9
        figure = new_figure(8.0, 3.2 + height)
        curve, bars = figure.subplots(2, 1, height_ratios=[3.0, height])
        is_step = all(is_binary(layers, gate) for layers in runs.values() for gate in ("input", "forget"))
        (_draw_step if is_step else _draw_curve)(curve)
        curve.set(xlim=(-_REACH, _REACH), ylim=(0, 1), xlabel="pre-activation a")
        names = [f"{name}\n{GATE_NAMES[gate]}" for name in runs for gate in ("input", "forget")]
        shares = [_shares(layers, gate) for layers in runs.values() for gate in ("input", "forget")]
        for at, each in enumerate(shares):
            _draw_thirds(bars, at, [part.sum() for part in np.split(each, [10, 90])])
        bars.set_yticks(range(len(names)), names)
        bars.invert_yaxis()
        told = "0 (dark), 1 (hatched)" if is_step else "below 0.1 (dark), between (grey), above 0.9 (hatched)"
        bars.set(xlim=(0, 100), xlabel=f"% of values: {told}")
        figure.suptitle(f"all layers; {mode}", fontsize=10)
    return figure


def _draw_curve(axes: "Axes") -> None:
    for low, high, is_flat in ((-_REACH, -_EDGE, True), (-_EDGE, _EDGE, False), (_EDGE, _REACH, True)):
        x = np.linspace(low, high, 200)
        axes.plot(x, 1 / (1 + np.exp(-x)), color=_DARK, linewidth=4.0 if is_flat else 1.5, clip_on=False)
        if is_flat:
            axes.axvspan(low, high, color=_LIGHT, alpha=0.5, linewidth=0)
    for middle in (-4.1, 4.1):
        axes.text(middle, 0.5, "saturated:\na change of a\nchanges little", ha="center", va="center")
    axes.set_ylabel("gate σ(a)")
    axes.set_yticks([0, 0.1, 0.5, 0.9, 1])


def _draw_step(axes: "Axes") -> None:
    axes.plot([-_REACH, 0, 0, _REACH], [0, 0, 1, 1], color=_DARK, linewidth=4.0, clip_on=False)
    for middle, what in ((-_REACH / 2, "closed"), (_REACH / 2, "open")):
        axes.text(middle, 0.5, what, ha="center", va="center")
    axes.set_ylabel("gate 1[a ≥ 0]")
    axes.set_yticks([0, 1])


def _draw_thirds(axes: "Axes", at: float, shares: Sequence[float]) -> None:
    left = 0.0
    looks = ((_DARK, "", "white"), (_MIDDLE, "", "black"), (_LIGHT, "///", "black"))
    for share, (colour, hatch, ink) in zip(shares, looks, strict=True):
        axes.barh(at, share, left=left, color=colour, hatch=hatch, edgecolor="white", height=0.78)
        if share > 5:
            box = {"facecolor": _LIGHT, "edgecolor": "none", "pad": 1.0} if hatch else None
            axes.text(left + share / 2, at, f"{share:.0f} %", ha="center", va="center", color=ink, bbox=box)
        left += share


def _shares(layers: Layers, gate: str) -> npt.NDArray[np.float64]:
    """The percentage of values in each of the 100 bins, with the layers counted together."""
    counts = np.sum([layer["gates"][gate]["counts"] for layer in layers], axis=0, dtype=np.float64)
    return np.asarray(100 * counts / max(counts.sum(), 1))
