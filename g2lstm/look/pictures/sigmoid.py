"""The paper's Figure 2, the saturated parts of the sigmoid; with how much of each run's gates lies in them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from g2lstm.look.pictures.histograms import Layers
from g2lstm.look.pictures.style import DARK, GATE_NAMES, LIGHT, MIDDLE, new_figure, plain, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_REACH = 6.0
_EDGE = float(np.log(9))  # the sigmoid is 0.9 here


def draw_sigmoid(runs: Mapping[str, Layers], mode: str) -> "Figure":
    """The sigmoid, flat where a gate is below 0.1 or above 0.9; under it the shares of each run there and between.

    Args:
        runs: by name, the summaries of statistics.
        mode: evaluation or training, in words.
    """
    with styled():
        height = 0.42 * 2 * len(runs) + 0.9
        figure = new_figure(8.0, 3.2 + height)
        curve, bars = figure.subplots(2, 1, height_ratios=[3.0, height])
        for low, high, is_flat in ((-_REACH, -_EDGE, True), (-_EDGE, _EDGE, False), (_EDGE, _REACH, True)):
            x = np.linspace(low, high, 200)
            curve.plot(x, 1 / (1 + np.exp(-x)), color=DARK, linewidth=4.0 if is_flat else 1.5, clip_on=False)
            if is_flat:
                curve.axvspan(low, high, color=LIGHT, alpha=0.5, linewidth=0)
        curve.text(-4.1, 0.5, "saturated:\na change of $a$\nchanges little", ha="center", va="center")
        curve.text(4.1, 0.5, "saturated:\na change of $a$\nchanges little", ha="center", va="center")
        curve.set(xlim=(-_REACH, _REACH), ylim=(0, 1), xlabel="pre-activation $a$", ylabel="gate $\\sigma(a)$")
        curve.set_yticks([0, 0.1, 0.5, 0.9, 1])

        names: list[str] = []
        for name, layers in runs.items():
            for gate in ("input", "forget"):
                counts = np.sum([layer["gates"][gate]["counts"] for layer in layers], axis=0)
                low, middle, high = (100 * part.sum() / counts.sum() for part in np.split(counts, [10, 90]))
                at = len(names)
                names.append(f"{plain(name)}\n{GATE_NAMES[gate]}")
                parts = ((0.0, low, DARK, "", "white"), (low, middle, MIDDLE, "", "black"),
                         (low + middle, high, LIGHT, "///", "black"))  # fmt: skip
                for left, share, colour, hatch, ink in parts:
                    bars.barh(at, share, left=left, color=colour, hatch=hatch, edgecolor="white", height=0.78)
                    if share > 5:
                        box = {"facecolor": LIGHT, "edgecolor": "none", "pad": 1.0} if hatch else None
                        bars.text(left + share / 2, at, f"{share:.0f} %", ha="center", va="center", color=ink, bbox=box)
        bars.set_yticks(range(len(names)), names)
        bars.invert_yaxis()
        bars.set(xlim=(0, 100), xlabel="% of values: below 0.1 (dark), between (grey), above 0.9 (hatched)")
        figure.suptitle(f"all layers; {mode}", fontsize=10)
    return figure
