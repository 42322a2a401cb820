"""A heat map of one layer: every unit at every word."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from g2lstm.look.pictures.style import GATE_NAMES, SCALE, new_figure, plain, short, styled
from g2lstm.look.reading import LayerReading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_WORDS = 120  # of a text that are drawn
_LABELS = 30  # of a longer text every other word is written, or fewer


def draw_units(layers: Mapping[str, LayerReading], words: Sequence[Sequence[str]], mode: str) -> "Figure":
    """Three gates side by side, one run above the other; the units are sorted by their mean.

    Args:
        layers: the same layer's reading, by the names of the runs.
        words: the tokens that each of them read.
        mode: evaluation or training, in words.
    """
    with styled():
        labels = min(max(map(len, words)), _LABELS)
        figure = new_figure(max(9.0, 3 * (0.16 * labels + 0.5) + 1.2), 3.9 * len(layers) + 0.4)
        grid = figure.subplots(len(layers), 3, squeeze=False)
        for row, (name, layer), tokens in zip(grid, layers.items(), words, strict=True):
            for axes, gate in zip(row, (layer.input, layer.forget, layer.output), strict=True):
                values = gate[:MAX_WORDS]
                steps, units = values.shape
                by_mean = values[:, values.mean(0).argsort()].T
                image = axes.imshow(by_mean, cmap=SCALE, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
                places = range(0, steps, -(-steps // _LABELS))
                written = [short(tokens[place]) for place in places]
                axes.set_xticks(list(places), written, rotation=90, parse_math=False, fontsize=9)
                axes.set_yticks([0, units - 1], ["1", str(units)])
                axes.spines[:].set_visible(False)
            row[0].set_ylabel(f"{plain(name)}\nunits, by their mean")
        for axes, title in zip(grid[0], GATE_NAMES.values(), strict=True):
            axes.set_title(title)
        figure.colorbar(image, ax=grid[:, -1].tolist(), label="value of the gate", fraction=0.06, pad=0.02, aspect=25)
        figure.suptitle(f"{plain(next(iter(layers.values())).title)}; {mode}", fontsize=10)
    return figure
