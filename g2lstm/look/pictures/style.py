"""How the pictures look: sizes, colours that differ in brightness too, dashes and hatches beside the colours."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from g2lstm.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCALE = "viridis"  # brightness grows all along it
COLOURS = ("#00204d", "#d9a400", "#5d8fd1", "#a63603", "#4d4d4d", "#009e73")
MARKERS = ("o", "s", "^", "D", "v", "x")
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
DARK, LIGHT, MIDDLE = "#00306f", "#e8d174", "#c9ccd1"
GATE_NAMES = {"input": "input gate $i$", "forget": "forget gate $f$", "output": "output gate $o$"}
_PNG_DOTS = 150  # an inch

_SETTINGS: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.labelsize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "g2lstm",  # the same picture is the same file
}


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's settings for these pictures; the user's own are as before at the end."""
    import matplotlib

    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # A character that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches, which keeps its parts from overlapping."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", path: Path) -> list[Path]:
    """Writes a figure as path.png and path.svg, each complete or not at all."""
    files = []
    facts: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None}}
    with styled():
        for ending, metadata in facts.items():
            file = path.with_name(f"{path.name}.{ending}")
            with write_atomically(file) as opened:
                figure.savefig(opened, format=ending, dpi=_PNG_DOTS, metadata=metadata)
            figure.set_layout_engine("none")  # all has its place now, which need not be found again
            files.append(file)
    return files


def plain(text: str) -> str:
    """A name as it is: not taken for a formula where it has a $."""
    return text.replace("$", r"\$")


def short(word: str) -> str:
    """A word that is not too long to stand beside an axis."""
    return word if len(word) <= 16 else f"{word[:15]}…"


def mark_unit_interval(axes: "Axes") -> None:
    """The x axis of a gate's values."""
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
