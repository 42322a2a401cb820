"""The report's charts as SVG text: lines, dots, histograms, heat maps. Dashes and shapes tell lines apart in grey."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from g2lstm.look.report_page import colour_of

DASHES = ("", "7 3", "2 3", "9 3 2 3", "1 4", "12 4")
COLOURS = len(DASHES)

_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 10, 40


@dataclass(frozen=True)
class Series:
    """A line, or dots.

    Attributes:
        name: for the legend.
        x: places.
        y: values; those that are not finite are left out.
        colour: a number.
        dash: a number, of its dashes, or shape; that of the colour if not given.
        is_faint: thin and pale, behind the others, and not in the legend.
        labels: of dots, one each.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    dash: int | None = None
    is_faint: bool = False
    labels: Sequence[str] = field(default_factory=tuple)

    @property
    def looks(self) -> str:
        """Attributes of an SVG element."""
        if self.is_faint:
            return f'class="line faint c{self.colour % COLOURS}"'
        dashes = DASHES[(self.colour if self.dash is None else self.dash) % COLOURS]
        return f'class="line c{self.colour % COLOURS}" stroke-dasharray="{dashes or "none"}"'

    def points(self, is_log: bool = False) -> list[tuple[float, float]]:
        """Those that can be drawn."""
        pairs = zip(self.x, self.y, strict=True)
        return [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y) and (y > 0 or not is_log)]


def line_chart(
    series: Sequence[Series],
    *,
    x_title: str,
    y_title: str,
    is_log: bool = False,
    top: float = 0,
    width: int = 560,
    height: int = 260,
) -> str:
    """Lines over one pair of axes with a legend below.

    Args:
        series: the lines.
        x_title: below the axis.
        y_title: beside the axis.
        is_log: whether the y axis is logarithmic.
        top: if given, the y axis is from 0 to at least this, so that charts can be compared.
        width: in pixels.
        height: in pixels.
    """
    places = [x for each in series for x in each.x[:1]]
    seen = [*series, Series("", places * 2, [*[0] * len(places), *[top] * len(places)])] if top else series
    frame = _Frame.around(seen, is_log, width, height)
    ordered = sorted(series, key=lambda each: not each.is_faint)
    parts = [frame.axes(x_title, y_title), *(frame.line(each) for each in ordered)]
    return _figure(parts, width, height, f"{y_title} by {x_title}", legend([s for s in series if not s.is_faint]))


def dot_chart(series: Sequence[Series], *, x_title: str, y_title: str, width: int = 560, height: int = 300) -> str:
    """Labelled dots; every series has its own shape."""
    frame = _Frame.around(series, False, width, height)
    parts = [frame.axes(x_title, y_title)]
    taken: list[tuple[float, float]] = []
    for each in series:
        for (x, y), label in zip(each.points(), each.labels, strict=True):
            px, py = frame.x(x), frame.y(y)
            parts.append(f'<g class="c{each.colour % COLOURS}">{_dot(px, py, each.colour)}</g>')
            is_right = px > width * 0.6
            text_y = _free(taken, px, py + 4)
            anchor, text_x = ("end", px - 8) if is_right else ("start", px + 8)
            parts.append(f'<text x="{text_x:.1f}" y="{text_y:.1f}" text-anchor="{anchor}">{escape(label)}</text>')
    return _figure(parts, width, height, f"{y_title} by {x_title}", "")


def histogram_chart(
    counts: dict[str, Sequence[int]], *, x_title: str, top: float | None = None, width: int = 320, height: int = 170
) -> str:
    """Shares in per cent of the values between 0 and 1, as a stepped line for each name.

    Args:
        counts: in bins of one width from 0 to 1.
        x_title: below the axis.
        top: of the y axis, so that charts can be compared; else the highest share.
        width: in pixels.
        height: in pixels.
    """
    series = []
    for index, (name, each) in enumerate(counts.items()):
        whole = max(sum(each), 1)
        edges = [k / len(each) for k in range(len(each) + 1)]
        x = [edge for edge in edges for _ in (0, 1)][1:-1]
        y = [100 * count / whole for count in each for _ in (0, 1)]
        series.append(Series(name, x, y, index))
    frame = _Frame.around([*series, Series("", [0, 1], [0, top or 0])], False, width, height)
    parts = [frame.axes(x_title, "% of values"), *map(frame.line, series)]
    return _figure(parts, width, height, f"share of values by {x_title}", legend(series))


def heat_chart(
    shares: Sequence[Sequence[float]],
    edges: Sequence[float],
    *,
    x_title: str,
    y_title: str,
    top: float,
    width: int = 480,
    height: int = 230,
) -> str:
    """Histograms side by side, each a column of cells from 0 at the bottom to 1; darker is more.

    Args:
        shares: for each column the per cent of the values in bins of one width.
        edges: where columns begin, and where the last one ends.
        x_title: below the axis.
        y_title: beside the axis.
        top: the share that is darkest, so that charts can be compared; more is as dark.
        width: in pixels.
        height: in pixels.
    """
    frame = _Frame((edges[0], edges[-1]), (0.0, 1.0), False, width, height)
    is_cut = any(share > top for column in shares for share in column)
    parts = [frame.axes(x_title, y_title)]
    for column, left, right in zip(shares, edges, edges[1:], strict=False):
        x, wide = frame.x(left), frame.x(right) - frame.x(left) + 0.3  # no gap between two
        tall = (frame.y(0) - frame.y(1)) / len(column)
        for k, share in enumerate(column):
            colour, _ = colour_of(math.sqrt(share / top))  # else the two ends are all one sees
            cell = f'x="{x:.1f}" y="{frame.y(0) - (k + 1) * tall:.1f}" width="{wide:.1f}" height="{tall + 0.3:.1f}"'
            parts.append(f'<rect fill="{colour}" {cell}/>')
    swatches = "".join(
        f'<li><svg width="22" height="12" aria-hidden="true"><rect fill="{colour_of(level)[0]}" width="22" '
        f'height="12"/></svg> {top * level**2:.2g} %{" and more" if level == 1 and is_cut else ""}</li>'
        for level in (0, 0.25, 0.5, 0.75, 1)
    )
    return _figure(
        parts, width, height, f"{y_title} by {x_title}, as a heat map", f'<ul class="legend">{swatches}</ul>'
    )


def legend(series: Sequence[Series]) -> str:
    """The names of lines, each beside a piece of its line."""
    items = "".join(
        f'<li><svg width="30" height="10" aria-hidden="true"><line {each.looks} x1="0" x2="30" y1="5" y2="5"/></svg> '
        f"{escape(each.name)}</li>"
        for each in series
    )
    return f'<ul class="legend">{items}</ul>'


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About so many round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high` for a logarithmic axis."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        ticks = [f * 10.0**power for power in powers for f in factors if low <= f * 10.0**power <= high]
        if len(ticks) >= 4:
            return ticks
    return ticks if len(ticks) > 1 else nice_ticks(low, high)


@dataclass(frozen=True)
class _Frame:
    """From values to places in the picture."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    is_log: bool
    width: int
    height: int

    @classmethod
    def around(cls, series: Sequence[Series], is_log: bool, width: int, height: int) -> "_Frame":
        points = [point for each in series for point in each.points(is_log)] or [(0.0, 1.0)]
        xs, ys = zip(*points, strict=True)
        low, high = min(ys), max(ys)
        if not is_log:
            margin = 0.05 * (high - low) or abs(high) or 1.0
            low, high = (0.0 if 0 <= low < 0.3 * high else low - margin), high + margin
        elif low == high:
            low, high = low / 2, high * 2
        left, right = min(xs), max(xs)
        return cls((left, right if right > left else left + 1), (low, high), is_log, width, height)

    def x(self, value: float) -> float:
        low, high = self.x_range
        return _LEFT + (value - low) / (high - low) * (self.width - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        share = math.log(value / low) / math.log(high / low) if self.is_log else (value - low) / (high - low)
        return self.height - _BOTTOM - share * (self.height - _TOP - _BOTTOM)

    def line(self, series: Series) -> str:
        points = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in series.points(self.is_log))
        return f'<polyline {series.looks} points="{points}"/>'

    def axes(self, x_title: str, y_title: str) -> str:
        bottom = self.height - _BOTTOM
        parts = []
        for tick in (log_ticks if self.is_log else nice_ticks)(*self.y_range):
            y = self.y(tick)
            parts.append(f'<line class="grid" x1="{_LEFT}" x2="{self.width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
        for tick in nice_ticks(*self.x_range):
            x = self.x(tick)
            parts.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{_number(tick)}</text>')
        middle = (_TOP + bottom) / 2
        parts.append(f'<line class="axis" x1="{_LEFT}" x2="{self.width - _RIGHT}" y1="{bottom}" y2="{bottom}"/>')
        centre = (_LEFT + self.width) / 2
        parts.append(f'<text x="{centre:.0f}" y="{self.height - 6}" text-anchor="middle">{escape(x_title)}</text>')
        turned = f'transform="rotate(-90 12 {middle:.0f})"'
        parts.append(f'<text x="12" y="{middle:.0f}" text-anchor="middle" {turned}>{escape(y_title)}</text>')
        return "".join(parts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _free(taken: list[tuple[float, float]], x: float, y: float) -> float:
    """A height near y at which no other label stands, which it takes."""
    offsets = (0, 13, -13, 26, -26, 39, -39)
    place = next((y + d for d in offsets if all(abs(y + d - b) >= 12 or abs(x - a) > 150 for a, b in taken)), y)
    taken.append((x, place))
    return place


def _dot(x: float, y: float, shape: int) -> str:
    if shape % 3 == 0:
        return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
    if shape % 3 == 1:
        return f'<rect class="dot" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>'
    return f'<path class="dot" d="M{x:.1f} {y - 5:.1f}l5 9h-10z"/>'


def _figure(parts: Sequence[str], width: int, height: int, title: str, below: str) -> str:
    picture = "".join(parts)
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}">{picture}</svg>{below}</figure>'
    )
