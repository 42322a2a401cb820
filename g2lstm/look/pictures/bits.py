"""Perplexity against bits per weight, by method, with the results of others as dots."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from g2lstm.look.pictures.style import COLOURS, DASHES, INK, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
