"""The size-quality curve of a sweep: as a picture for paper and screen, and as a page that answers to the mouse."""

import html
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from g2lstm.errors import G2Error
from g2lstm.look.pictures.sizes import FAMILIES, Curve, curve_of, draw_sizes
from g2lstm.look.pictures.style import save

PICTURE, PAGE = "size_quality.png", "size_quality.html"


def check_pictures() -> None:
    """Raises if the page can't be drawn; better before the work than after."""
    if find_spec("plotly") is None:
        raise G2Error("--sweep draws its page with plotly, which is not installed; run: pip install 'g2lstm[view]'")


def draw(sweep: Mapping[str, Any], folder: Path) -> None:
    """Draws a sweep, given the contents of sweep.json, into a folder."""
    curve = curve_of(sweep)
    save(draw_sizes(curve, sweep["run"]), folder / Path(PICTURE).stem)
    _draw_page(curve, sweep["run"], folder / PAGE)


def _ticks() -> list[float]:
    """Ticks for a logarithmic scale; plotly's own would be 10, 2, 5, 100."""
    return [digit * 10.0**power for power in range(-3, 9) for digit in (1, 2, 5)]


def _draw_page(curve: Curve, run: str, path: Path) -> None:
    import plotly.graph_objects as go  # type: ignore[import-untyped]

    figure = go.Figure()
    for point in sorted(curve.points, key=lambda point: (FAMILIES.index(point.family), point.megabytes)):
        figure.add_scatter(
            x=[point.megabytes],
            y=[point.score],
            mode="markers",
            name=point.name,
            legendgroup=point.family.name,
            legendgrouptitle={"text": point.family.name},
            hovertemplate=f"<b>{point.name}</b><br>%{{x:.2f}} MB, %{{y:.2f}}<br>{point.details}<extra></extra>",
            marker={"color": point.family.colour, "symbol": point.family.symbol, "size": 13},
        )
    figure.add_hline(y=curve.points[0].score, line={"color": FAMILIES[0].colour, "dash": "dash", "width": 1})
    figure.update_layout(title={"text": html.escape(run)}, template="plotly_white", hovermode="closest")
    figure.update_xaxes(title={"text": "weights on disk, MB"}, type="log", tickvals=_ticks())
    scale: dict[str, Any] = {"type": "log", "tickvals": _ticks()} if curve.is_log else {"type": "linear"}
    figure.update_yaxes(title={"text": curve.metric}, **scale)
    figure.write_html(path, include_plotlyjs=True, full_html=True)
