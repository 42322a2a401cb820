"""The report's page: its frame, tables, and words on colours. All text that comes from elsewhere is escaped."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files

import numpy as np

from g2lstm.look.contrast import ink_on
from g2lstm.look.reading import GATES, Floats, Reading

_STOPS = ("ffffd9", "edf8b1", "c7e9b4", "7fcdbb", "41b6c4", "1d91c0", "225ea8", "253494", "081d58")
_RGB = np.array([[int(stop[k : k + 2], 16) for k in (0, 2, 4)] for stop in _STOPS], dtype=np.float64)
_LINE = 100  # characters of a heat map's line, which fits a printed page


def page(title: str, sections: Sequence[str]) -> str:
    """A whole page that needs nothing else: no script, no file, no network."""
    style = files("g2lstm.look").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="generator" content="g2lstm">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table of plain texts.

    Args:
        head: titles of the columns.
        rows: as many texts each.
        numbers: columns that stand to the right.
    """

    def line(cells: Sequence[str], tag: str) -> str:
        kinds = [' class="number"' if k in numbers else "" for k in range(len(cells))]
        return "<tr>" + "".join(f"<{tag}{k}>{escape(c)}</{tag}>" for c, k in zip(cells, kinds, strict=True)) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table><thead>{line(head, "th")}</thead><tbody>{body}</tbody></table></div>'


def heat_map(reading: Reading) -> str:
    """For each layer the words of a sentence over the means of their gates, in as many lines as they need."""
    parts = []
    for layer in reading.layers:
        tokens, unknown = reading.tokens[layer.side], set(reading.unknown[layer.side])
        means = {gate: getattr(layer, gate).mean(axis=1) for gate in GATES}
        parts.append(f'<h4 class="quiet">{escape(layer.title)}, {layer.input.shape[1]} units</h4>')
        for start, end in _lines(tokens):
            head = "".join(
                f"<th{' class=unknown' if k in unknown else ''}>{escape(tokens[k])}</th>" for k in range(start, end)
            )
            rows = "".join(
                f'<tr><th class="gate" scope="row">{gate[0]}</th>{_cells(values[start:end])}</tr>'
                for gate, values in means.items()
            )
            parts.append(
                f'<div class="scroll"><table class="heat"><tr><th class="gate"></th>{head}</tr>{rows}</table></div>'
            )
    return "".join(parts)


def colour_of(value: float) -> tuple[str, str]:
    """The colour of a value from 0 to 1, pale to dark, and the ink that can be read upon it."""
    at = min(max(value, 0.0), 1.0) * (len(_RGB) - 1)
    k = min(int(at), len(_RGB) - 2)
    rgb = _RGB[k] + (_RGB[k + 1] - _RGB[k]) * (at - k)
    red, green, blue = (round(float(channel)) for channel in rgb)
    return f"#{red:02x}{green:02x}{blue:02x}", ink_on((rgb / 255).tolist())


def _cells(values: Floats) -> str:
    cells = []
    for value in values.tolist():
        colour, ink = colour_of(value)
        cells.append(f'<td style="background:{colour};color:{ink}" title="{value:.4f}">{value:.2f}</td>')
    return "".join(cells)


def _lines(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Where lines begin and end that are about as wide as a page."""
    lines, start, width = [], 0, 0
    for place, token in enumerate(tokens):
        needed = max(len(token), 4) + 1
        if width + needed > _LINE and place > start:
            lines.append((start, place))
            start, width = place, 0
        width += needed
    return [*lines, (start, len(tokens))]
