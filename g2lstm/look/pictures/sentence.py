"""Heat maps of one text: the mean gates at each word, and every unit at each word.

They are drawn from readings of the same text by run name; a side is "text", "source" or "target".
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from g2lstm.look.pictures.style import (
    COLOURS,
    GATE_NAMES,
    RULE,
    colour_bar,
    draw_cells,
    heat_colours,
    new_figure,
    short,
    styled,
)
from g2lstm.look.switches import Timelines
from g2lstm.runs.records import Explained
from g2lstm.tasks.reading import Floats, LayerReading, Reading

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

MAX_WORDS = 120  # drawn of a text
_WORDS_IN_LINE = 17
_WORD, _ROW = 0.56, 0.34  # inches for a word and for a row of cells
_DARK = 44 / 65  # above this, white is easier to read than black; the colour scale has 65 steps
_UNITS, _LINE = 40, 0.13  # in a picture of binary gates, and inches for each
_LABELS = 30  # in a picture of units, only some words of a longer text are written


def draw_words(readings: Mapping[str, Reading], side: str, gates: Sequence[str] = ("input", "forget")) -> "Figure":
    """The paper's Figure 4: gates averaged over units at each word, one run above the other; long texts wrap.

    Words outside the vocabulary are in italics.
    """
    longest = max(len(reading.tokens[side]) for reading in readings.values())
    parts = -(-min(longest, MAX_WORDS) // _WORDS_IN_LINE)
    width = -(-min(longest, MAX_WORDS) // parts)
    lines = [
        (name, slice(start, min(start + width, MAX_WORDS)))
        for start in range(0, parts * width, width)
        for name, reading in readings.items()
        if len(reading.tokens[side]) > start
    ]
    rows = [len(gates) * sum(layer.side == side for layer in readings[name].layers) for name, _ in lines]
    with styled():
        figure = new_figure(max(width * _WORD + 2.8, 6.5), _ROW * sum(rows) + 1.35 * len(lines) + 0.5)
        panels: list[Axes] = figure.subplots(len(lines), 1, squeeze=False, height_ratios=rows)[:, 0].tolist()
        for axes, (name, part) in zip(panels, lines, strict=True):
            cells = _draw_line(axes, readings[name], side, gates, part)
            axes.set_xlim(-0.5, width - 0.5)
            axes.set_title(name, loc="left", fontweight="bold")
        colour_bar(figure, cells, panels, label="mean over units", fraction=0.03, pad=0.01, aspect=25)
        modes = " / ".join(dict.fromkeys(reading.mode for reading in readings.values()))
        cut = f"; the first {MAX_WORDS} tokens" if longest > MAX_WORDS else ""
        figure.suptitle(f"gates at each token of the {side}{cut}; {modes}", fontsize=10)
    return figure


def _draw_line(axes: "Axes", reading: Reading, side: str, gates: Sequence[str], part: slice) -> "QuadMesh":
    """Draw some of the words: a column for each, a row for each gate of each layer."""
    rows = [(layer, gate) for layer in reading.layers if layer.side == side for gate in gates]
    values = np.stack([getattr(layer, gate)[part].mean(1) for layer, gate in rows])
    cells = draw_cells(axes, np.arange(values.shape[1] + 1) - 0.5, np.arange(len(rows) + 1) - 0.5, values)
    for (row, column), value in np.ndenumerate(values):
        ink = "#000000" if value < _DARK else "#ffffff"
        number = f"{value:.2f}".removeprefix("0")
        axes.text(column, row, number, ha="center", va="center", color=ink, fontsize=9.5, in_layout=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [f"{layer.title}, {gate[0]}" for layer, gate in rows])
    _write_words(axes, reading, side, part)
    return cells


def _write_words(axes: "Axes", reading: Reading, side: str, part: slice) -> None:
    """Write some of the words above the columns."""
    words = [short(word) for word in reading.tokens[side][part]]
    axes.set_xticks(range(len(words)), words, rotation=50, rotation_mode="anchor", ha="left")
    axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
    for place, label in enumerate(axes.get_xticklabels(), part.start):
        label.set_fontstyle("italic" if place in reading.unknown[side] else "normal")
    axes.spines[:].set_visible(False)


def draw_attention(readings: Mapping[str, Reading]) -> "Figure":
    """Where translation models looked in the same source: a row for each word they produced, runs side by side."""
    shown = {
        name: (one, one.attention[:MAX_WORDS, :MAX_WORDS])
        for name, one in readings.items()
        if one.attention is not None
    }
    rows, columns = (max(look.shape[axis] for _, look in shown.values()) for axis in (0, 1))
    with styled():
        figure = new_figure(len(shown) * (0.3 * columns + 1.6) + 0.8, 0.26 * rows + 1.6)
        panels: list[Axes] = figure.subplots(1, len(shown), squeeze=False)[0].tolist()
        for axes, (name, (reading, look)) in zip(panels, shown.items(), strict=True):
            cells = draw_cells(axes, np.arange(look.shape[1] + 1) - 0.5, np.arange(look.shape[0] + 1) - 0.5, look)
            axes.set_ylim(rows - 0.5, -0.5)
            axes.set_yticks(range(len(look)), list(map(short, reading.produced[: len(look)])))
            _write_words(axes, reading, "source", slice(0, look.shape[1]))
            axes.set_title(name, loc="left", fontweight="bold")
        colour_bar(figure, cells, panels, label="attention", fraction=0.03, pad=0.01, aspect=25)
    return figure


def draw_units(layers: Mapping[str, LayerReading], words: Sequence[Sequence[str]], mode: str) -> "Figure":
    """Every unit of one layer at each word: three gates side by side, one run above the other, units sorted by mean.

    Of a gate that is 0 or 1, the units that switch most, each in a row with the words at which it is open filled.

    Args:
        layers: readings of the same layer by run name.
        words: the tokens that each of them read.
        mode: evaluation or training, in words.
    """
    with styled():
        labels = min(max(map(len, words)), _LABELS)
        heights = [_height(layer) for layer in layers.values()]
        figure = new_figure(max(9.0, 3 * (0.16 * labels + 0.5) + 1.2), sum(heights) + 0.4)
        grid = figure.subplots(len(layers), 3, squeeze=False, height_ratios=heights)
        image = None
        for row, (name, layer), tokens in zip(grid, layers.items(), words, strict=True):
            for axes, gate in zip(row, GATE_NAMES, strict=True):
                values = getattr(layer, gate)[:MAX_WORDS]
                if (found := Timelines.of(values, _UNITS)) is not None:
                    draw_rows(axes, found.is_open, [str(unit) for unit in found.units])
                    kept = f"{len(found.units)} of {values.shape[1]} units"
                    told = f"{kept}; {found.closed} stay closed, {found.open} stay open"
                    axes.set_title(f"{GATE_NAMES[gate]}\n{told}", fontsize=10)
                else:
                    image = _draw_all_units(axes, values)
                    axes.set_title(GATE_NAMES[gate])
                places = range(0, len(values), -(-len(values) // _LABELS))
                written = [short(tokens[place]) for place in places]
                axes.set_xticks(list(places), written, rotation=90, fontsize=9)
                axes.spines[:].set_visible(False)
            row[0].set_ylabel(f"{name}\nunits, sorted")
        if image is not None:
            colour_bar(figure, image, grid[:, -1].tolist(), label="gate value", fraction=0.06, pad=0.02, aspect=25)
        figure.suptitle(f"{next(iter(layers.values())).title}; {mode}", fontsize=10)
    return figure


def _height(layer: LayerReading) -> float:
    """Inches for a run."""
    found = [Timelines.of(getattr(layer, gate)[:MAX_WORDS], _UNITS) for gate in GATE_NAMES]
    rows = [len(each.units) for each in found if each is not None]
    return 1.5 + _LINE * max(*rows, 10) if rows else 3.9


def _draw_all_units(axes: "Axes", values: Floats) -> "AxesImage":
    by_mean = values[:, values.mean(0).argsort()].T
    axes.set_yticks([0, len(by_mean) - 1], ["1", str(len(by_mean))])
    return axes.imshow(by_mean, cmap=heat_colours(), vmin=0, vmax=1, aspect="auto", interpolation="nearest")


def draw_rows(axes: "Axes", is_open: npt.NDArray[np.bool_], labels: Sequence[str]) -> None:
    """A row of cells for each unit, (units, T), filled where it is open."""
    from matplotlib.collections import PolyCollection

    for mask, colour in ((~is_open, RULE), (is_open, COLOURS[0])):
        rows, columns = np.nonzero(mask)
        corners = np.array([(-0.45, -0.38), (0.45, -0.38), (0.45, 0.38), (-0.45, 0.38)])
        axes.add_collection(PolyCollection(np.stack([columns, rows], 1)[:, None] + corners, facecolor=colour))
    axes.set_xlim(-0.5, is_open.shape[1] - 0.5)
    axes.set_ylim(len(is_open) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.tick_params(length=0)


def draw_timelines(readings: Mapping[str, Reading], side: str, units: Mapping[str, Sequence[Explained]]) -> "Figure":
    """Some units of each run at each word: a cell is filled where the gate is open, 0.5 or more."""
    longest = min(max(len(reading.tokens[side]) for reading in readings.values()), MAX_WORDS)
    counts = [len(units[name]) for name in readings]
    with styled():
        figure = new_figure(max(0.4 * longest + 4.0, 8.0), 0.24 * sum(counts) + 1.3 * len(counts) + 0.4)
        panels = figure.subplots(len(readings), 1, squeeze=False, height_ratios=[count + 3 for count in counts])[:, 0]
        for axes, (name, reading) in zip(panels, readings.items(), strict=True):
            layers = {(layer.name, layer.direction): layer for layer in reading.layers}
            own = [getattr(layers[one.name, one.direction], one.gate)[:MAX_WORDS, one.unit] for one in units[name]]
            labels = [f"{one.title}, {one.gate[0]} {one.unit}: {one.feature}" for one in units[name]]
            draw_rows(axes, np.stack(own) >= 0.5, labels)
            axes.set_yticks(range(len(labels)), labels, fontsize=10)
            words = [short(word) for word in reading.tokens[side][:MAX_WORDS]]
            axes.set_xticks(range(len(words)), words, rotation=50, rotation_mode="anchor", ha="left")
            axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
            axes.spines[:].set_visible(False)
            axes.set_title(name, loc="left", fontweight="bold")
        modes = " / ".join(dict.fromkeys(reading.mode for reading in readings.values()))
        figure.suptitle(f"units that can be explained, filled where the gate is open; {modes}", fontsize=10)
    return figure
