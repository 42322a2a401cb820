"""Tables over run directories: our scores beside the paper's, means and deviations, and which differences hold."""

import statistics
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from g2lstm.lab.study import results
from g2lstm.lab.study.plan import Column, PlannedRun, PlannedTable
from g2lstm.lab.study.significance import Difference, Term, bleu_of, bootstrap, perplexity_of

COMPARISON = ("difference", "in", "by seed", "value", "95 % interval", "p")
HOW = (
    "What the choice of test sentences can do to a difference (paired bootstrap, each difference by itself; other "
    "seeds would add to it)"
)
PAPER = "  paper"  # the name of a row of its figures
LEAST = 20  # sentences, or blocks of them: with fewer, a bootstrap finds differences that are not there
_BLOCK = 10  # sentences of running text to draw together; fewer in a text too short for `LEAST` such blocks


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        values: one for each seed that was measured; the paper has one.
        text: for people.
    """

    values: tuple[float, ...]
    text: str


@dataclass(frozen=True)
class Comparison:
    """Whether the difference between two rows holds in one column.

    Attributes:
        rows: their names; the second is subtracted from the first.
        column: its heading.
        by_seed: the difference for each seed that both rows have.
        difference: the mean of these.
    """

    rows: tuple[str, str]
    column: str
    by_seed: Mapping[int, float]
    difference: Difference

    def in_words(self) -> tuple[str, ...]:
        """The comparison as a row of a table with the headings `COMPARISON`."""
        value, low, high, p_value = self.difference
        interval = f"{signed(low)} to {signed(high)}"
        several = len(self.by_seed) > 1
        seeds = ", ".join(f"{seed}: {signed(each)}" if several else str(seed) for seed, each in self.by_seed.items())
        return (" − ".join(self.rows), self.column, seeds, signed(value), interval, chance(p_value))


@dataclass(frozen=True)
class StudyTable:
    """A table of results.

    Attributes:
        title: above it.
        headings: of the columns after the first.
        rows: each row's name and cells; the paper's rows are below ours.
        comparisons: between rows.
        notes: below it.
        signatures: of every score, by run and heading.
        uncompressed: the headings of scores without compression.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]
    signatures: Mapping[str, Mapping[str, str]]
    uncompressed: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether nothing in it has been measured."""
        return not any(cell.values for name, cells in self.rows if name != PAPER for cell in cells)

    def to_json(self) -> dict[str, Any]:
        """The table for machines, with every number."""
        return {
            "title": self.title,
            "columns": list(self.headings),
            "rows": [{"row": name.strip(), "cells": [vars(cell) for cell in cells]} for name, cells in self.rows],
            "comparisons": [
                {"rows": list(one.rows), "column": one.column, "by_seed": dict(one.by_seed), **one.difference._asdict()}
                for one in self.comparisons
            ],
            "notes": list(self.notes),
            "signatures": {run: dict(by_column) for run, by_column in self.signatures.items()},
        }

    def to_markdown(self) -> str:
        """The table for documents."""
        lines = [f"### {self.title}", "", _line(["", *self.headings]), _line(["---"] * (1 + len(self.headings)))]
        lines += [_line([name.strip(), *(cell.text for cell in cells)]) for name, cells in self.rows]
        if self.comparisons:
            lines += ["", f"{HOW}:", "", _line(COMPARISON), _line(["---"] * len(COMPARISON))]
            lines += [_line(one.in_words()) for one in self.comparisons]
        lines += [line for note in self.notes for line in ("", note)]
        if self.signatures:
            lines += ["", "Signatures, one per run; other columns differ in what their headings say:", ""]
            for run, signatures in self.signatures.items():
                plain = [heading for heading in signatures if heading in self.uncompressed]
                heading = (plain or list(signatures))[-1]  # it has the settings of the cache, if any score has
                lines.append(f"- {run}, {heading}: `{signatures[heading]}`")
        return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def build(
    plan: PlannedTable, runs: Sequence[PlannedRun], out: Path, left_out: Mapping[str, str] | None = None
) -> StudyTable:
    """The table of what has been measured; "-" stands for what has not.

    Args:
        plan: what to show.
        runs: of the study.
        out: the folder for all runs.
        left_out: from runs that are not to be shown to the reasons.
    """
    left_out = left_out or {}
    recipes = {column.recipe for column in plan.columns}
    mine = [run for run in runs if run.recipe in recipes]
    reasons = [f"{run.name} is left out: {left_out[run.name]}" for run in mine if run.name in left_out]
    found = {row: [_Entry(out, column, row, runs, left_out) for column in plan.columns] for row in plan.rows}
    runs = [run for run in runs if run.name not in left_out]
    rows: list[tuple[str, tuple[Cell, ...]]] = []
    for row, label in plan.rows.items():
        rows.append((label, tuple(one.cell for one in found[row])))
        if any(row in column.paper for column in plan.columns):
            rows.append((PAPER, tuple(_paper_cell(column, row) for column in plan.columns)))
    return StudyTable(
        plan.title,
        tuple(column.title for column in plan.columns),
        tuple(rows),
        tuple(
            comparison
            for first, second in plan.pairs
            for one, other in zip(found.get(first, ()), found.get(second, ()), strict=False)
            if (comparison := _compare(one, other, plan)) is not None
        ),
        (*plan.notes, *_training_notes(plan, runs, out), *_data_notes(plan, found), *reasons),
        _signatures(plan, runs, out),
        frozenset(column.title for column in plan.columns if column.measurement.compression is None),
    )


def _signatures(plan: PlannedTable, runs: Sequence[PlannedRun], out: Path) -> dict[str, dict[str, str]]:
    signatures: dict[str, dict[str, str]] = {}
    scores = [column for column in plan.columns if column.what == "score"]
    for run in runs:
        for column in scores:
            if run.recipe == column.recipe and (result := results.measured(out / run.name, column.measurement)):
                signatures.setdefault(run.name, {})[column.title] = result.signature
    return signatures


def _data_notes(plan: PlannedTable, found: Mapping[str, Sequence["_Entry"]]) -> list[str]:
    """Notes on seeds and rows that were not trained and scored on the same text, and on texts too short to compare."""
    notes = []
    for columns in found.values():
        for run in dict.fromkeys(run for one in columns for run in one.apart):
            titles = ", ".join(one.column.title for one in columns if run in one.apart)
            notes.append(f"{run} has no {titles}: its scores are on different texts or with different caches.")
    for row, columns in found.items():
        if mixed := [one.column.title for one in columns if not one.has_data_of(one)]:
            notes.append(f"The seeds of {plan.rows[row]} are not averaged in {', '.join(mixed)}: their texts differ.")
    for first, second in plan.pairs:
        pairs = zip(found.get(first, ()), found.get(second, ()), strict=False)
        apart = [one.column.title for one, other in pairs if not one.has_data_of(other)]
        if apart:
            names = f"{plan.rows[first]} and {plan.rows[second]}"
            notes.append(f"{names} are not compared in {', '.join(apart)}: their texts differ.")
    sizes = [one.sentences for columns in found.values() for one in columns if one.is_compared and one.values]
    if plan.pairs and sizes and min(sizes) < LEAST:
        notes.append(f"A test text of {min(sizes)} sentences can't tell a difference from chance; {LEAST} can.")
    return notes


def _training_notes(plan: PlannedTable, runs: Sequence[PlannedRun], out: Path) -> list[str]:
    """Notes on how long each row was trained, seed by seed, and on how much of the data if not all of it."""
    notes = []
    for recipe in dict.fromkeys(column.recipe for column in plan.columns):
        epochs: dict[str, list[str]] = {}
        shares: dict[str, list[str]] = {}
        for run in (run for run in runs if run.recipe == recipe and run.row in plan.rows):
            row, path = plan.rows[run.row], out / run.name
            training = results.training_of(path)
            epochs.setdefault(row, []).append("none" if training is None else f"{training.epochs:.1f}")
            found = results.measured(path, run.measurements[0]) if run.measurements else None
            if found is not None and found.trained_on:
                shares.setdefault(found.trained_on, []).append(row)
        by_epochs: dict[str, list[str]] = {}
        for row, many in epochs.items():
            by_epochs.setdefault(many[0] if len(set(many)) == 1 else ", ".join(many), []).append(row)
        if set(by_epochs) - {"none"}:
            parts = [f"{number} in {_rows_in_words(rows, epochs)}" for number, rows in by_epochs.items()]
            notes.append(f"Epochs of {recipe}: {'; '.join(parts)}.")
        for share, rows in shares.items():
            notes.append(f"{recipe} was trained on {share} in {_rows_in_words(rows, epochs)}.")
    return notes


def _rows_in_words(rows: Sequence[str], among: Collection[str]) -> str:
    """Such as "LSTM / G²", or "every row"."""
    return "every row" if len(set(rows)) == len(among) else " / ".join(dict.fromkeys(rows))


class _Entry:
    """The runs of one row that were measured for one column, by seed."""

    def __init__(
        self, out: Path, column: Column, row: str, runs: Sequence[PlannedRun], left_out: Container[str]
    ) -> None:
        self.column, self.row = column, row
        mine = [run for run in runs if run.row == row and run.recipe == column.recipe]
        self.planned = len(mine)
        self.measured: dict[int, results.Measured] = {}
        self.base: dict[int, results.Measured] = {}
        self.values: dict[int, float] = {}
        self.apart: list[str] = []  # runs whose base was measured on another text or with another cache
        for run in (run for run in mine if run.name not in left_out):
            path = out / run.name
            result = results.measured(path, column.measurement)
            base = None if column.against is None else results.measured(path, column.against)
            if result is None or (column.against is not None and base is None):
                continue
            if base is not None and (base.data, base.cache) != (result.data, result.cache):
                self.apart.append(run.name)
                continue
            value = result.score if column.what == "score" else results.saturation_of(path)
            if value is None:
                continue
            self.measured[run.seed], self.values[run.seed] = result, value
            if base is not None:
                self.base[run.seed] = base
                self.values[run.seed] -= base.score

    def has_data_of(self, other: "_Entry") -> bool:
        """Whether everything that was measured of both rests on the same texts, as far as the results say."""
        found = [result for row in (self, other) for result in row.measured.values()]
        known = {result.trained_on_text for result in found} - {""}
        return len({(result.data, result.trained_on) for result in found}) <= 1 and len(known) <= 1

    @property
    def is_compared(self) -> bool:
        """Whether other rows are compared with it in this column."""
        return self.column.what == "score" and self.column.measurement.split == "test"

    @property
    def sentences(self) -> int:
        """The number of sentences in the text that was scored; 0 if none was."""
        return min((len(result.by_sentence) for result in self.measured.values()), default=0)

    @property
    def cell(self) -> Cell:
        values = tuple(self.values.values())
        if not values:
            return Cell((), "-")
        if not self.has_data_of(self):
            return Cell(values, " / ".join(in_column(value, self.column) for value in values))
        text = in_column(statistics.fmean(values), self.column)
        if len(values) > 1:
            text += f" ± {in_column(statistics.stdev(values), self.column).lstrip('+')}"
        if len(values) < self.planned:
            text += f" ({len(values)} of {self.planned})"
        return Cell(values, text)


def _paper_cell(column: Column, row: str) -> Cell:
    value = column.paper.get(row)
    return Cell((), "") if value is None else Cell((value,), in_column(value, column, column.digits))


def in_column(value: float, column: Column, digits: int = 2) -> str:
    """A number as its column shows it."""
    if column.what == "saturation":
        return f"{value:.0%}"
    return signed(value, digits) if column.against is not None else f"{value:.{digits}f}"


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign; +0.00 if it rounds to zero."""
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def chance(p_value: float) -> str:
    """A p-value; a thousand samples can't tell values below 0.002 apart."""
    return f"{p_value:.3f}" if p_value >= 0.002 else "< 0.002"


def _compare(one: _Entry, other: _Entry, plan: PlannedTable) -> Comparison | None:
    column = one.column
    seeds = sorted(one.values.keys() & other.values.keys())
    if not one.is_compared or not seeds or not one.has_data_of(other) or one.sentences < LEAST:
        return None
    sides = [(1.0, one.measured), (-1.0, other.measured)]
    if column.against is not None:
        sides += [(-1.0, one.base), (1.0, other.base)]
    terms = [Term(weight, [side[seed].sums for seed in seeds]) for weight, side in sides]
    is_language = one.measured[seeds[0]].perplexity is not None
    block = min(one.sentences // LEAST, _BLOCK) if is_language else 1
    found = bootstrap(terms, perplexity_of if is_language else bleu_of, block=block)
    by_seed = {seed: one.values[seed] - other.values[seed] for seed in seeds}
    return Comparison((plan.rows[one.row], plan.rows[other.row]), column.title, by_seed, found)
