"""What compression costs: the loss against the size of the file, as a search found it."""

from typing import TYPE_CHECKING

from g2lstm.compression.curve import Found
from g2lstm.look.pictures.style import COLOURS, new_figure, styled

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
