"""The size-quality curve of a sweep: what each way of compressing saves in bytes and costs in score."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from g2lstm.look.pictures.style import COLOURS, INK, log_scale, new_figure, styled
from g2lstm.runs.records import SweepFile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MEGABYTE = 1e6
_LOG_FROM = 3.0  # scores that differ by more than this factor are drawn on a logarithmic scale


class Family(NamedTuple):
    """How the points of one kind are drawn: told apart by colour, also by the colour-blind, and by shape."""

    name: str
    colour: str
    marker: str  # matplotlib's name
    symbol: str  # plotly's name


FAMILIES = (
    Family("not compressed", INK, "D", "diamond"),
    Family("rounded", COLOURS[0], "o", "circle"),
    Family("low rank", COLOURS[1], "^", "triangle-up"),
    Family("integers", COLOURS[2], "s", "square"),
    Family("several", COLOURS[3], "*", "star"),
)


class Point(NamedTuple):
    """One point of the curve."""

    name: str
    family: Family
    megabytes: float
    score: float
    details: str  # everything known about it, as lines of HTML


class Curve(NamedTuple):
    """The points of a sweep, the run itself first, and how their scores are drawn."""

    points: list[Point]
    metric: str  # for the axis
    is_log: bool


def curve_of(sweep: SweepFile) -> Curve:
    """The curve of a sweep."""
    whole = 0 if sweep.before is None else sweep.before.bytes
    points = [Point("not compressed", FAMILIES[0], whole / _MEGABYTE, sweep.score_before, "as it was trained")]
    for name, point in sweep.points.items():
        size, speed, score = point.file, point.speed, sweep.score_of(name)
        ratio = size.before / max(size.after, 1)
        details = f"{point.spec}<br>{ratio:.1f} × smaller, {point.bits_per_weight:.2f} bits per weight"
        if speed is not None:
            details += f"<br>{speed.after:,.0f} {speed.unit}, {speed.after / speed.before:.2f} × as many"
        points.append(Point(name, _family(point.spec), size.after / _MEGABYTE, score, details))
    points = [point for point in points if math.isfinite(point.score) and 0 < point.megabytes < math.inf]
    scores = [point.score for point in points if point.score > 0]
    metric = "BLEU" if sweep.metric == "bleu" else sweep.metric
    is_log = metric == "perplexity" and 0 < len(scores) == len(points) and max(scores) > _LOG_FROM * min(scores)
    return Curve(points, f"{metric} on {sweep.split}", is_log)


def _family(spec: str) -> Family:
    if ";" in spec and len({part.partition("=")[2] for part in spec.split("; ")}) > 1:
        return FAMILIES[4]
    return FAMILIES[2] if "svd" in spec else FAMILIES[1] if "round" in spec else FAMILIES[3]


def draw_sizes(curve: Curve, title: str) -> "Figure":
    """The score of each point over the size of its file, with names beside the axes."""
    points = curve.points
    with styled():
        figure = new_figure(9, 5.2)
        figure.set_layout_engine("none")
        axes = figure.add_axes((0.09, 0.12, 0.60, 0.78))
        axes.set_title(title, loc="left", fontsize=12)
        axes.set(xlabel="weights on disk, MB", ylabel=curve.metric)
        axes.grid(True)
        axes.axhline(points[0].score, color=INK, linewidth=1, linestyle="--")
        for family in FAMILIES:
            own = [(point.megabytes, point.score) for point in points if point.family is family]
            if own:
                x, y = zip(*own, strict=True)
                looks: dict[str, Any] = {"c": family.colour, "marker": family.marker, "edgecolors": "white"}
                axes.scatter(x, y, 110 if family.marker == "*" else 52, label=family.name, zorder=3, **looks)
        axes.margins(x=0.08, y=0.12)
        sizes, scores = [point.megabytes for point in points], [point.score for point in points]
        log_scale(axes, "x", min(sizes), max(sizes))
        if curve.is_log:
            log_scale(axes, "y", min(scores), max(scores))
        figure.draw_without_rendering()  # what follows needs to know where the points are
        ordered = sorted(points, key=lambda point: point.score)
        to_height = axes.transData + axes.transAxes.inverted()
        heights = [to_height.transform((point.megabytes, point.score))[1] for point in ordered]
        for point, height in zip(ordered, spread(heights, 0.062, 0.02, 0.98), strict=True):
            line = {"arrowstyle": "-", "color": point.family.colour, "alpha": 0.6, "linewidth": 0.8, "shrinkB": 4}
            axes.annotate(
                f"{point.name}  {point.score:.2f}", (point.megabytes, point.score), (1.06, height),
                textcoords="axes fraction", va="center", fontsize=9, arrowprops={**line, "relpos": (0, 0.5)},
            )  # fmt: skip
        axes.legend(fontsize=8, loc="best")
    return figure


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move places that are too close apart as little as possible, so that neighbours are at least `gap` apart.

    Args:
        places: increasing.
        gap: smaller where there isn't enough room for all.
        low: the lowest place allowed.
        high: the highest place allowed.
    """
    gap = min(gap, (high - low) / max(len(places) - 1, 1))
    # With the gaps below each place taken away, places only have to be in order: the nearest such are means of blocks.
    blocks: list[list[float]] = []
    for number, place in enumerate(places):
        blocks.append([place - number * gap])
        while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    found = [_mean(block) for block in blocks for _ in block]
    top = high - (len(places) - 1) * gap
    return [min(max(place, low), top) + number * gap for number, place in enumerate(found)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
