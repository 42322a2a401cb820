"""Recorded gates for people: a table of histograms, as text for a terminal and as HTML for a notebook."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

import torch

from g2lstm.nn.gate import Gates
from g2lstm.nn.names import called

_BINS = 20
_BARS = " ▁▂▃▄▅▆▇█"
HEADINGS = ("layer", "gate", "mean", "below 0.1", "above 0.9", "0 … 1")


class GateRow(NamedTuple):
    """One gate of one layer and direction, over all recorded calls."""

    layer: str
    gate: str
    mean: float
    near_zero: float  # share
    near_one: float
    histogram: tuple[float, ...]  # shares of equal bins from 0 to 1
    is_binary: bool  # whether all values are 0 or 1

    def cells(self) -> tuple[str, ...]:
        """All but the histogram, as text."""
        return (self.layer, self.gate, f"{self.mean:.2f}", f"{self.near_zero:.0%}", f"{self.near_one:.0%}")


def gate_rows(record: Mapping[str, Sequence[Gates]]) -> Iterator[GateRow]:
    """A row for each gate that lies between 0 and 1."""
    for name, calls in record.items():
        for gate in [gate for gate in (calls[0].named if calls else ()) if gate != "candidate"]:
            each = list(zip(*(call.named[gate] for call in calls), strict=True))  # by layer and direction
            for index, tensors in enumerate(each):
                values = torch.cat([tensor.flatten() for tensor in tensors]).float()
                values = values[~values.isnan()]
                if len(values):
                    label = called(name) + (f"[{index}]" if len(each) > 1 else "")
                    counts = torch.histc(values, _BINS, 0.0, 1.0) / len(values)
                    zero, one = ((near / len(values)).item() for near in ((values < 0.1).sum(), (values > 0.9).sum()))
                    is_binary = bool(((values == 0) | (values == 1)).all())
                    yield GateRow(label, gate, values.mean().item(), zero, one, tuple(counts.tolist()), is_binary)


def as_text(record: Mapping[str, Sequence[Gates]]) -> str:
    """The table for a terminal."""
    rows = [HEADINGS, *((*row.cells(), _bars(row)) for row in gate_rows(record))]
    if len(rows) == 1:
        return "no gates recorded yet"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def as_html(record: Mapping[str, Sequence[Gates]]) -> str:
    """The table for a notebook."""
    rows = [f"<tr>{''.join(f'<th>{escape(text)}</th>' for text in HEADINGS)}</tr>"]
    for row in gate_rows(record):
        cells = "".join(f"<td>{escape(text)}</td>" for text in row.cells())
        rows.append(f"<tr>{cells}<td>{_picture(row)}</td></tr>")
    return f"<table>{''.join(rows)}</table>" if len(rows) > 1 else "<p>no gates recorded yet</p>"


def _bars(row: GateRow) -> str:
    if row.is_binary:
        open_bins = round(row.mean * _BINS)
        return f"closed {'░' * (_BINS - open_bins)}{'█' * open_bins} open"
    top = max(row.histogram) or 1.0
    return "".join(_BARS[round(share / top * (len(_BARS) - 1))] for share in row.histogram)


def _picture(row: GateRow) -> str:
    """Bars for the bins; for a binary gate two, as wide as they are frequent: closed pale, open dark."""
    width = 8 * _BINS
    if row.is_binary:
        closed = f'<rect y="8" width="{width * (1 - row.mean):.1f}" height="16" opacity="0.2"/>'
        bars = f'{closed}<rect x="{width * (1 - row.mean):.1f}" y="8" width="{width * row.mean:.1f}" height="16"/>'
    else:
        top = max(row.histogram) or 1.0
        bars = "".join(
            f'<rect x="{8 * k}" y="{32 * (1 - share / top):.1f}" width="7" height="{32 * share / top:.1f}"/>'
            for k, share in enumerate(row.histogram)
        )
    return f'<svg width="{width}" height="32" fill="currentColor">{bars}</svg>'
