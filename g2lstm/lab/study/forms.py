"""What a table of a study looks like to machines, in documents, and in the rows of a terminal."""

from collections.abc import Sequence
from typing import Any

from g2lstm.lab.study.table import Comparison, Table, signed

COMPARISON = ("difference", "in", "by seed", "value", "95 % interval", "p")
HOW = (
    "What the choice of test sentences can do to a difference (paired bootstrap, each difference by itself; what other "
    "seeds do comes on top)"
)


def to_json(table: Table) -> dict[str, Any]:
    """For machines: every number."""
    return {
        "title": table.title,
        "columns": list(table.headings),
        "rows": [{"row": name.strip(), "cells": [vars(cell) for cell in cells]} for name, cells in table.rows],
        "comparisons": [
            {"rows": list(one.rows), "column": one.column, "by_seed": dict(one.by_seed), **one.difference._asdict()}
            for one in table.comparisons
        ],
        "notes": list(table.notes),
        "signatures": {run: dict(by_column) for run, by_column in table.signatures.items()},
    }


def to_markdown(table: Table) -> str:
    """For documents."""
    lines = [f"### {table.title}", "", _line(["", *table.headings]), _line(["---"] * (1 + len(table.headings)))]
    lines += [_line([name.strip(), *(cell.text for cell in cells)]) for name, cells in table.rows]
    if table.comparisons:
        lines += ["", f"{HOW}:", "", _line(COMPARISON), _line(["---"] * len(COMPARISON))]
        lines += [_line(in_words(one)) for one in table.comparisons]
    lines += [line for note in table.notes for line in ("", note)]
    if table.signatures:
        lines += ["", "Signatures, one a run; other columns differ in what their headings say:", ""]
        lines += [f"- {run}, {heading}: `{signature}`" for run, heading, signature in _telling(table)]
    return "\n".join(lines)


def _telling(table: Table) -> list[tuple[str, str, str]]:
    """Of each run the last score that no compression was done for: it has the settings of a cache, if any has."""
    found = []
    for run, signatures in table.signatures.items():
        plain = {heading: signature for heading, signature in signatures.items() if "|compressed:" not in signature}
        heading, signature = list((plain or signatures).items())[-1]
        found.append((run, heading, signature))
    return found


def in_words(comparison: Comparison) -> tuple[str, ...]:
    """A comparison as a row of a table whose headings are `COMPARISON`."""
    value, low, high, p_value = comparison.difference
    interval = f"{signed(low)} to {signed(high)}"
    several = len(comparison.by_seed) > 1
    seeds = ", ".join(f"{seed}: {signed(each)}" if several else str(seed) for seed, each in comparison.by_seed.items())
    return (" − ".join(comparison.rows), comparison.column, seeds, signed(value), interval, chance(p_value))


def chance(p_value: float) -> str:
    """A p-value in words; what is below the least that a thousand samples can tell is not told."""
    return f"{p_value:.3f}" if p_value >= 0.002 else "< 0.002"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
