"""What compression costs: the loss that a search found, or the scores of models, against the size of the file."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from g2lstm.compression.curve import Found
from g2lstm.look.pictures.style import COLOURS, DASHES, INK, new_figure, styled

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


_MARKS = "osD^vP"


class Curve(NamedTuple):
    """One way to train, at several numbers of bits; a value for each seed."""

    label: str
    points: Sequence[tuple[float, Sequence[float]]]  # bits and perplexities
    full: Sequence[float]  # perplexities of full weights


class Dot(NamedTuple):
    """A result of others."""

    label: str
    bits: float
    perplexity: float


def draw_bits(curves: Sequence[Curve], others: Sequence[Dot]) -> "Figure":
    """A line for each curve, with its standard deviation over seeds; full weights are pale dotted lines."""
    with styled():
        figure = new_figure(6.8, 4.6)
        axes = figure.subplots()
        for index, curve in enumerate(curves):
            bits, each = zip(*sorted(curve.points), strict=True)
            means = [statistics.fmean(values) for values in each]
            bars = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in each]
            colour = COLOURS[index % len(COLOURS)]
            look = {"color": colour, "linestyle": DASHES[index % len(DASHES)], "capsize": 3, "markersize": 4}
            axes.errorbar(bits, means, bars, fmt="o", label=curve.label, **look)  # type: ignore[arg-type]
            if curve.full:
                axes.axhline(statistics.fmean(curve.full), color=colour, linewidth=0.8, linestyle=":", alpha=0.6)
        for index, dot in enumerate(others):
            axes.plot([dot.bits], [dot.perplexity], _MARKS[index % len(_MARKS)], color=INK, label=dot.label)
        axes.set(xlabel="bits per weight", ylabel="test perplexity")
        axes.invert_xaxis()
        axes.grid(axis="y")
        figure.legend(loc="outside lower center", ncols=2)
    return figure
