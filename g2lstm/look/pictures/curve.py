"""What compression costs: the loss that a search found, or the scores of models, against the size of the file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from g2lstm.compression.curve import Found
from g2lstm.look.pictures.style import COLOURS, DASHES, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_curve(found: Found) -> "Figure":
    """The curve of a search: what was expected as a line, what was measured as dots, the choice marked."""
    kilobytes = [point.size / 1000 for point in found.curve]
    measured = [(point.size / 1000, 100 * point.measured) for point in found.curve if point.measured is not None]
    with styled():
        figure = new_figure(6.4, 3.6)
        axes = figure.subplots()
        axes.plot(kilobytes, [100 * point.expected for point in found.curve], color=COLOURS[0], label="expected")
        axes.plot(*zip(*measured, strict=True), "o", color=COLOURS[1], label="measured")
        chosen = found.point.measured if found.point.measured is not None else found.point.expected
        where = [found.point.size / 1000], [100 * chosen]
        axes.plot(*where, "s", label="chosen", color=COLOURS[2], markersize=13, markerfacecolor="none")
        axes.set_xscale("log")
        axes.set(xlabel="kB", ylabel="loss, %")
        axes.grid(axis="y")
        figure.legend(loc="outside lower center", ncols=3)
    return figure


class Shrunk(NamedTuple):
    """A model before and after compression."""

    label: str
    megabytes: tuple[float, float]
    scores: tuple[float, float]


def draw_shrunk(models: Sequence[Shrunk], metric: str) -> "Figure":
    """A line for each model, from an open dot before compression to a filled one after it."""
    with styled():
        figure = new_figure(6.4, 3.6)
        axes = figure.subplots()
        for index, model in enumerate(models):
            colour, dashes = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
            axes.plot(model.megabytes, model.scores, color=colour, linestyle=dashes, label=model.label)
            for size, score, fill in zip(model.megabytes, model.scores, ("none", colour), strict=True):
                axes.plot([size], [score], "o", color=colour, markerfacecolor=fill, markersize=8)
        axes.set(xlabel="MB", ylabel=metric)
        axes.set_xlim(left=0)
        low, high = axes.get_ylim()
        middle = (low + high) / 2
        wide = max(high - low, 0.2 * abs(middle))  # so that a tenth of a percent does not look like a cliff
        axes.set_ylim(middle - wide / 2, middle + wide / 2)
        axes.grid(axis="y")
        figure.legend(loc="outside lower center", ncols=3)
    return figure
