"""How our pictures look, in the palette of our pages, and how a figure becomes a file."""

import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from g2lstm.files import write_atomically
from g2lstm.page.palette import HEAT, THEME

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import QuadMesh
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

INK, QUIET, RULE, *COLOURS = (light for light, _ in THEME.values())
# Lines also differ in dashes, for those who don't see colours.
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
GATE_NAMES = {"input": "input gate", "forget": "forget gate", "output": "output gate"}
# No gaps between the cells of a heat map, and no clipping of each.
_SEAMLESS: dict[str, Any] = {"edgecolor": "face", "linewidth": 0.8, "clip_on": False}
_PNG_DPI = 150
_FONT = "DejaVu Sans"  # ships with matplotlib
_OTHER_SCRIPTS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans", "IPAexGothic", "IPAGothic", "VL Gothic", "TakaoGothic",
    "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Hiragino Sans", "PingFang SC", "Yu Gothic", "Microsoft YaHei",
    "Apple SD Gothic Neo", "Malgun Gothic", "NanumGothic", "Noto Sans Thai", "Loma", "Noto Sans Devanagari",
    "Arial Unicode MS",
)  # fmt: skip
_NO_GLYPH = "Glyph .* missing from font"  # what matplotlib warns of
_BOXES = (
    "some characters are drawn as boxes, since matplotlib knows no font that has them; install one, such as Noto Sans "
    "CJK for Chinese, Japanese and Korean, and delete the list of fonts in %s"
)

_LOGGER = logging.getLogger(__name__)

_SETTINGS: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.labelsize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "text.color": INK,
    "text.parse_math": False,  # names of runs may contain a $
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "g2lstm",  # the same picture gives the same file
}


@contextmanager
def styled(**settings: str) -> Iterator[None]:
    """Matplotlib with the settings of our pictures; the user's own come back at the end."""
    import matplotlib
    from matplotlib.font_manager import fontManager

    known = set(fontManager.get_font_names())
    more: dict[str, Any] = {key.replace("_", "."): value for key, value in settings.items()}
    more["font.family"] = [_FONT, *(font for font in _OTHER_SCRIPTS if font in known)]
    with matplotlib.rc_context(_SETTINGS | more), warnings.catch_warnings():
        # A character that the fonts lack is drawn as a box.
        warnings.filterwarnings("ignore", message=_NO_GLYPH)
        yield


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches whose parts don't overlap."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", path: Path) -> list[Path]:
    """Write a figure as path.png and path.svg, each completely or not at all; returns the files written."""
    files = []
    metadata: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None}}
    with styled(), warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("once", message=_NO_GLYPH)
        for ending, facts in metadata.items():
            file = path.with_name(f"{path.name}.{ending}")
            with write_atomically(file) as opened:
                figure.savefig(opened, format=ending, dpi=_PNG_DPI, metadata=facts)
            figure.set_layout_engine("none")  # everything has its place now; don't lay it out again
            files.append(file)
    if any(re.match(_NO_GLYPH, str(one.message)) for one in caught):
        import matplotlib

        _LOGGER.warning(_BOXES, matplotlib.get_cachedir())
    return files


def svg_element(figure: "Figure", label: str) -> str:
    """The figure as an <svg> element for a page that defines the variables of `css_variables`.

    Text stays text, and colours follow the page's light or dark theme.

    Args:
        figure: the picture.
        label: what it shows, for screen readers; unique in the page.
    """
    drawn = io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with styled(svg_fonttype="none", svg_hashsalt=label):  # the salt keeps ids of several pictures apart
        figure.savefig(drawn, format="svg", transparent=True, metadata=nothing)
    text = drawn.getvalue().decode()
    text = re.sub(r"<style.*?</style>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL)  # not the page's
    text = re.sub(r"<[^>]*>", _short_tag, re.sub(r">\s*\n\s*<", "><", text))
    for name, (light, _) in THEME.items():
        text = text.replace(light, f"var(--{name})")
    font = f"font-family=\"'{_FONT}', Verdana, sans-serif\""  # the second is as wide
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" {font} ', 1)


def _short_tag(found: re.Match[str]) -> str:
    """A tag of matplotlib's SVG without the ids that every picture has; coordinates keep one decimal."""
    tag = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", found[0]).replace(f"; font-family: '{_FONT}'", "")
    return re.sub(r' (?:[dxy]|transform)="[^"]*"', lambda places: re.sub(r"(\.\d)\d+", r"\1", places[0]), tag)


def heat_colours() -> "Colormap":
    """Matplotlib's version of `HEAT`."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("gates", HEAT, N=65)


def draw_cells(axes: "Axes", x: "ArrayLike", y: "ArrayLike", values: "ArrayLike", scale: Any = None) -> "QuadMesh":
    """Draw a heat map between the edges `x` and `y`; the colours go from 0 to 1 unless another scale is given."""
    limits = {"norm": scale} if scale is not None else {"vmin": 0, "vmax": 1}
    return axes.pcolormesh(x, y, values, cmap=heat_colours(), **limits, **_SEAMLESS)


def colour_bar(figure: "Figure", drawn: "ScalarMappable", panels: "list[Axes]", **options: Any) -> None:
    """Add the colour scale of a heat map beside its panels."""
    bar = figure.colorbar(drawn, ax=panels, **options)
    bar.outline.set_visible(False)
    if bar.solids is not None:
        bar.solids.set_rasterized(False)  # as an image it would be an address in a page
        bar.solids.set(**_SEAMLESS)


def short(word: str) -> str:
    """A word cut to fit beside an axis."""
    return word if len(word) <= 16 else f"{word[:15]}…"


def unit_interval(axes: "Axes") -> None:
    """Prepare the x axis for gate values."""
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
