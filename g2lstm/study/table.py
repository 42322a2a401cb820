"""Tables over run directories: ours beside the paper's, mean and deviation over seeds, and which differences hold."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from g2lstm.study import results
from g2lstm.study.plan import Column, Plan, TablePlan
from g2lstm.study.significance import Difference, Term, bleu_of, bootstrap, perplexity_of

COMPARISON = ("difference", "in", "value", "95 % interval", "p")
HOW = "What the choice of test sentences can do to a difference (paired bootstrap, each difference by itself)"
BLOCK = 10  # sentences of running text that are drawn together; those of translations are drawn one by one


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table.

    Attributes:
        values: one for each seed, as far as they are measured; the paper has one.
        text: as people read it.
    """

    values: tuple[float, ...]
    text: str


@dataclass(frozen=True)
class Comparison:
    """Whether the difference between two rows holds in one column."""

    rows: tuple[str, str]
    column: str
    difference: Difference


@dataclass(frozen=True)
class Table:
    """A table that can be printed.

    Attributes:
        title: above it.
        headings: of the columns after the first.
        rows: what each is called, and its cells; those of the paper stand below ours.
        comparisons: between rows.
        notes: below it.
        signatures: of the scores in the first column, by run.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]
    signatures: Mapping[str, str]


def build(plan: TablePlan, runs: Sequence[Plan], out: Path) -> Table:
    """The table of what has been measured; "-" stands for what has not.

    Args:
        plan: what it shows.
        runs: of the study.
        out: the folder of all runs.
    """
    found = {row: [_Row(out, column, row, runs) for column in plan.columns] for row in plan.rows}
    rows: list[tuple[str, tuple[Cell, ...]]] = []
    for row, label in plan.rows.items():
        rows.append((label, tuple(one.cell for one in found[row])))
        if any(row in column.paper for column in plan.columns):
            rows.append((f"  {plan.source}", tuple(_paper_cell(column, row) for column in plan.columns)))
    return Table(
        plan.title,
        tuple(column.title for column in plan.columns),
        tuple(rows),
        tuple(
            comparison
            for first, second in plan.pairs
            for one, other in zip(found.get(first, ()), found.get(second, ()), strict=False)
            if (comparison := _compare(one, other, plan)) is not None
        ),
        (*plan.notes, *_training_notes(plan, runs, out)),
        {
            run.name: result["signature"]
            for run in runs
            for column in plan.columns[:1]
            if run.series == column.series and (result := results.measured(out / run.name, column.measurement))
        },
    )


def _training_notes(plan: TablePlan, runs: Sequence[Plan], out: Path) -> list[str]:
    """How long each row was trained, and on how much of the data if that was not all of it."""
    notes = []
    for series in dict.fromkeys(column.series for column in plan.columns):
        mine = [run for run in runs if run.series == series and run.row in plan.rows]
        epochs: dict[str, list[float]] = {}
        partial: set[str] = set()
        for run in mine:
            if (training := results.training_of(out / run.name)) is not None:
                epochs.setdefault(plan.rows[run.row], []).append(training.epochs)
            for measurement in run.measurements[:1]:
                partial |= {(results.measured(out / run.name, measurement) or {}).get("trained_on", "")} - {""}
        by_epochs: dict[str, list[str]] = {}
        for row, many in epochs.items():
            by_epochs.setdefault("/".join(f"{one:.1f}" for one in many), []).append(row)
        if len(by_epochs) == 1:
            notes.append(f"Epochs of {mine[0].recipe}: {next(iter(by_epochs))} in every row.")
        elif by_epochs:
            each = "; ".join(f"{number} in {', '.join(rows)}" for number, rows in by_epochs.items())
            notes.append(f"Epochs of {mine[0].recipe}: {each}.")
        notes += [f"{mine[0].recipe} was trained on {share}." for share in sorted(partial)]
    return notes


class _Row:
    """The runs of one row in one column, by seed, as far as they are measured."""

    def __init__(self, out: Path, column: Column, row: str, runs: Sequence[Plan]) -> None:
        self.column, self.row = column, row
        mine = [run for run in runs if run.row == row and run.series == column.series]
        self.planned = len(mine)
        self.measured: dict[int, dict[str, Any]] = {}
        self.base: dict[int, dict[str, Any]] = {}
        self.values: dict[int, float] = {}
        for run in mine:
            path = out / run.name
            result = results.measured(path, column.measurement)
            base = None if column.against is None else results.measured(path, column.against)
            if result is None or (column.against is not None and base is None):
                continue
            value = _value(column.what, result, path)
            if value is None:
                continue
            self.measured[run.seed], self.values[run.seed] = result, value
            if base is not None:
                self.base[run.seed] = base
                self.values[run.seed] -= results.score_of(base)

    @property
    def cell(self) -> Cell:
        values = tuple(self.values.values())
        if not values:
            return Cell((), "-")
        text = shown(statistics.fmean(values), self.column)
        if len(values) > 1:
            text += f" ± {shown(statistics.stdev(values), self.column).lstrip('+')}"
        if len(values) < self.planned:
            text += f" ({len(values)} of {self.planned})"
        return Cell(values, text)


def _value(what: str, result: Mapping[str, Any], path: Path) -> float | None:
    return results.score_of(result) if what == "score" else results.saturation_of(path)


def _paper_cell(column: Column, row: str) -> Cell:
    value = column.paper.get(row)
    return Cell((), "") if value is None else Cell((value,), shown(value, column))


def shown(value: float, column: Column) -> str:
    """A number as its column has it."""
    if column.what == "saturation":
        return f"{value:.0%}"
    return signed(value) if column.against is not None else f"{value:.2f}"


def signed(value: float) -> str:
    """With two digits, and +0.00 for what is rounded to zero."""
    return f"{round(value, 2) + 0.0:+.2f}"


def _compare(one: _Row, other: _Row, plan: TablePlan) -> Comparison | None:
    column = one.column
    seeds = sorted(one.values.keys() & other.values.keys())
    if column.what != "score" or column.measurement.split != "test" or not seeds:
        return None
    sides = [(1.0, one.measured), (-1.0, other.measured)]
    if column.against is not None:
        sides += [(-1.0, one.base), (1.0, other.base)]
    terms = [Term(weight, [results.sentences_of(side[seed]) for seed in seeds]) for weight, side in sides]
    is_language = "perplexity" in one.measured[seeds[0]]
    score, block = (perplexity_of, BLOCK) if is_language else (bleu_of, 1)
    return Comparison((plan.rows[one.row], plan.rows[other.row]), column.title, bootstrap(terms, score, block=block))


def to_json(table: Table) -> dict[str, Any]:
    """For machines: every number."""
    return {
        "title": table.title,
        "columns": list(table.headings),
        "rows": [{"row": name.strip(), "cells": [vars(cell) for cell in cells]} for name, cells in table.rows],
        "comparisons": [
            {"rows": list(one.rows), "column": one.column, **one.difference._asdict()} for one in table.comparisons
        ],
        "notes": list(table.notes),
        "signatures": dict(table.signatures),
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
        lines += ["", f"Signatures of the column “{table.headings[0]}”:", ""]
        lines += [f"- {name}: `{signature}`" for name, signature in table.signatures.items()]
    return "\n".join(lines)


def in_words(comparison: Comparison) -> tuple[str, ...]:
    """A comparison as a row of a table whose headings are `COMPARISON`."""
    value, low, high, p_value = comparison.difference
    chance = f"{p_value:.3f}" if p_value >= 0.002 else "< 0.002"
    interval = f"{signed(low)} to {signed(high)}"
    return (" − ".join(comparison.rows), comparison.column, signed(value), interval, chance)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
