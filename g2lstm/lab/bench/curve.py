"""The size-quality curve of a sweep as pictures: one for paper and screen, one that answers to the mouse."""

import html
import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from g2lstm.errors import G2Error

PICTURE, PAGE = "size_quality.png", "size_quality.html"
_MEGABYTE = 1e6
_LOG_FROM = 3.0  # scores that differ by more than this factor are drawn on a logarithmic scale


class Family(NamedTuple):
    """How the points of one kind are drawn: apart by colour, also for the colour-blind, and by shape."""

    name: str
    colour: str
    marker: str  # as matplotlib calls it
    symbol: str  # as plotly does


FAMILIES = (
    Family("not compressed", "#000000", "D", "diamond"),
    Family("rounded", "#0072B2", "o", "circle"),
    Family("low rank", "#D55E00", "^", "triangle-up"),
    Family("integers", "#009E73", "s", "square"),
    Family("several", "#CC79A7", "*", "star"),
)


class Point(NamedTuple):
    """One point of the curve."""

    name: str
    family: Family
    megabytes: float
    score: float
    words: str  # all that is known of it


def check_pictures() -> None:
    """Raises where what draws the pictures is not installed; better before the work than after."""
    if find_spec("plotly") is None:
        raise G2Error("--sweep draws its page with plotly, which is not installed; pip install 'g2lstm[view]'")


def draw(sweep: Mapping[str, Any], folder: Path) -> None:
    """Draws a sweep, as sweep.json has it, into a folder."""
    points = points_of(sweep)
    label = f"perplexity on {sweep['split']}" if sweep["metric"] == "perplexity" else f"BLEU on {sweep['split']}"
    scores = [point.score for point in points]
    is_log = sweep["metric"] == "perplexity" and max(scores) > _LOG_FROM * min(scores)
    _draw_picture(points, sweep["run"], label, is_log, folder / PICTURE)
    _draw_page(points, sweep["run"], label, is_log, folder / PAGE)


def points_of(sweep: Mapping[str, Any]) -> list[Point]:
    """The points of a sweep, the run itself first."""
    before, metric = sweep["before"], sweep["metric"]
    points = [
        Point("not compressed", FAMILIES[0], before["bytes"] / _MEGABYTE, before["score"][metric], "as it was trained")
    ]
    for name, point in sweep["points"].items():
        size, speed = point["file"], point["speed"]
        words = f"{point['spec']}<br>{size['ratio']:.1f} times smaller, {point['bits_per_weight']:.2f} bits a weight"
        if speed is not None:
            words += f"<br>{speed['after']:,.0f} {speed['unit']}, {speed['after'] / speed['before']:.2f} times as many"
        points.append(Point(name, _family(point["spec"]), size["after"] / _MEGABYTE, point["score"]["after"], words))
    return [point for point in points if math.isfinite(point.score)]


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Moves places that are too close apart, as little as can be, so that none is less than `gap` from the next.

    Args:
        places: increasing.
        gap: smaller where there is no room for all.
        low: the least place allowed.
        high: the greatest.
    """
    gap = min(gap, (high - low) / max(len(places) - 1, 1))
    # Without the gaps that must lie below each, places only have to be in order: the nearest such are means of blocks.
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


def _family(spec: str) -> Family:
    if ";" in spec and len({part.partition("=")[2] for part in spec.split("; ")}) > 1:
        return FAMILIES[4]
    return FAMILIES[2] if "svd" in spec else FAMILIES[1] if "round" in spec else FAMILIES[3]


def _draw_picture(points: Sequence[Point], run: str, label: str, is_log: bool, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure = Figure(figsize=(9, 5.2), dpi=160)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.09, 0.12, 0.60, 0.78))
    axes.set_title(run, loc="left", fontsize=12)
    axes.set_xscale("log")
    if is_log:
        axes.set_yscale("log")
    axes.set_xlabel("file of weights, MB")
    axes.set_ylabel(label)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.axhline(points[0].score, color="#000000", linewidth=1, linestyle="--")
    for family in FAMILIES:
        own = [point for point in points if point.family is family]
        if own:
            axes.scatter(
                [point.megabytes for point in own],
                [point.score for point in own],
                s=110 if family.marker == "*" else 52,
                c=family.colour,
                marker=family.marker,
                edgecolors="white",
                linewidths=0.8,
                label=family.name,
                zorder=3,
            )
    axes.margins(x=0.08, y=0.12)
    for axis, is_logarithmic in ((axes.xaxis, True), (axes.yaxis, is_log)):
        if is_logarithmic:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
    figure.canvas.draw()  # what follows needs to know where the points are
    ordered = sorted(points, key=lambda point: point.score)
    heights = [
        axes.transAxes.inverted().transform(axes.transData.transform((p.megabytes, p.score)))[1] for p in ordered
    ]
    for point, height in zip(ordered, spread(heights, 0.062, 0.02, 0.98), strict=True):
        axes.annotate(
            f"{point.name}  {point.score:.2f}",
            xy=(point.megabytes, point.score),
            xytext=(1.06, height),
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            arrowprops={
                "arrowstyle": "-",
                "color": point.family.colour,
                "alpha": 0.6,
                "linewidth": 0.8,
                "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )
    axes.legend(frameon=True, framealpha=0.9, fontsize=8, loc="best")
    figure.savefig(path, metadata={"Software": None})


def _ticks() -> list[float]:
    """Of a logarithmic scale; plotly's own would be 10, 2, 5, 100."""
    return [digit * 10.0**power for power in range(-3, 9) for digit in (1, 2, 5)]


def _draw_page(points: Sequence[Point], run: str, label: str, is_log: bool, path: Path) -> None:
    import plotly.graph_objects as go  # type: ignore[import-untyped]

    figure = go.Figure()
    for point in sorted(points, key=lambda point: (FAMILIES.index(point.family), point.megabytes)):
        figure.add_scatter(
            x=[point.megabytes],
            y=[point.score],
            mode="markers",
            name=point.name,
            legendgroup=point.family.name,
            legendgrouptitle={"text": point.family.name},
            hovertemplate=f"<b>{point.name}</b><br>%{{x:.2f}} MB, %{{y:.2f}}<br>{point.words}<extra></extra>",
            marker={"color": point.family.colour, "symbol": point.family.symbol, "size": 13},
        )
    figure.add_hline(y=points[0].score, line={"color": "#000000", "dash": "dash", "width": 1})
    figure.update_layout(title={"text": html.escape(run)}, template="plotly_white", hovermode="closest")
    figure.update_xaxes(title={"text": "file of weights, MB"}, type="log", tickvals=_ticks())
    figure.update_yaxes(
        title={"text": label}, type="log" if is_log else "linear", tickvals=_ticks() if is_log else None
    )
    figure.write_html(path, include_plotlyjs=True, full_html=True)
