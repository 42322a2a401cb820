"""The paper's Figure 4: a heat map of the mean gates at each word, one run above the other."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from g2lstm.look.contrast import ink_on
from g2lstm.look.pictures.style import SCALE, new_figure, plain, short, styled
from g2lstm.look.reading import Reading

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORDS_IN_LINE = 17
MAX_WORDS = 120  # of a text that are drawn
_WORD, _ROW = 0.56, 0.34  # inches that a word and a row of cells take


class _Line(NamedTuple):
    """Some words of one run: a panel of the picture."""

    run: str
    words: list[str]
    rows: list[str]
    values: npt.NDArray[np.float32]  # (rows, words)


def draw_words(readings: Mapping[str, Reading], side: str) -> "Figure":
    """The mean over units of input and forget gate at each word; long texts in several lines.

    Args:
        readings: of one text, by the names of the runs.
        side: whose words: "text", "source" or "target".
    """
    longest = max(len(reading.tokens[side]) for reading in readings.values())
    parts = -(-min(longest, MAX_WORDS) // WORDS_IN_LINE)
    width = -(-min(longest, MAX_WORDS) // parts)
    lines = [
        line
        for start in range(0, parts * width, width)
        for name, reading in readings.items()
        if len((line := _line(name, reading, side, start, min(start + width, MAX_WORDS))).words)
    ]
    with styled():
        heights = [len(line.rows) * _ROW for line in lines]
        figure = new_figure(max(width * _WORD + 2.8, 6.5), sum(heights) + 1.35 * len(lines) + 0.5)
        panels: Sequence[Axes] = figure.subplots(len(lines), 1, squeeze=False, height_ratios=heights)[:, 0].tolist()
        for axes, line in zip(panels, lines, strict=True):
            image = axes.imshow(line.values, cmap=SCALE, vmin=0, vmax=1, aspect="auto")
            colours = image.to_rgba(line.values)
            for (row, column), value in np.ndenumerate(line.values):
                ink = ink_on(colours[row, column, :3].tolist())
                number = f"{value:.2f}".removeprefix("0")
                axes.text(column, row, number, ha="center", va="center", color=ink, fontsize=9.5)
            axes.set_xlim(-0.5, width - 0.5)
            axes.set_yticks(range(len(line.rows)), line.rows)
            words = [short(word) for word in line.words]
            axes.set_xticks(range(len(words)), words, rotation=50, rotation_mode="anchor", ha="left", parse_math=False)
            axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
            axes.spines[:].set_visible(False)
            axes.set_title(plain(line.run), loc="left", fontweight="bold")
        figure.colorbar(image, ax=panels, label="mean over units", fraction=0.03, pad=0.01, aspect=25)
        modes = " / ".join(dict.fromkeys(reading.mode for reading in readings.values()))
        cut = f"; the first {MAX_WORDS} tokens" if longest > MAX_WORDS else ""
        figure.suptitle(f"gates at each token of the {side}{cut}; {modes}", fontsize=10)
    return figure


def _line(name: str, reading: Reading, side: str, start: int, end: int) -> _Line:
    layers = [layer for layer in reading.layers if layer.side == side]
    values = [gate[start:end].mean(1) for layer in layers for gate in (layer.input, layer.forget)]
    rows = [f"{plain(layer.title)}, {gate}" for layer in layers for gate in ("$i$", "$f$")]
    return _Line(name, reading.tokens[side][start:end], rows, np.stack(values))
