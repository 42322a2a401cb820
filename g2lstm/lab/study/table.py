"""Tables over a study's runs: our scores beside the paper's, means and deviations, and which differences hold."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from g2lstm.lab.study.jobs import Job, Measured
from g2lstm.lab.study.plan import Column, PlannedTable
from g2lstm.lab.study.significance import Difference, Term, bleu_of, bootstrap, perplexity_of

COMPARISON = ("difference", "in", "by seed", "value", "95 % interval", "p")
HOW = (
    "What the choice of test sentences can do to a difference (paired bootstrap, each difference by itself; other "
    "seeds would add to it)"
)
PAPER = "  paper"  # the name of a row of its figures
LEAST = 20  # sentences, or blocks of them: with fewer, a bootstrap finds differences that are not there
_BLOCK = 10  # sentences of running text to draw together; fewer in a text too short for `LEAST` such blocks


class Cell(NamedTuple):
    """A cell of a table."""

    values: tuple[float, ...]  # one for each seed that was measured; the paper has one
    text: str


class Comparison(NamedTuple):
    """Whether the difference between two rows holds in one column."""

    rows: tuple[str, str]  # the second is subtracted from the first
    column: str
    by_seed: Mapping[int, float]  # for each seed that both rows have
    difference: Difference  # the mean of these

    def in_words(self) -> tuple[str, ...]:
        """The comparison as a row of a table with the headings `COMPARISON`."""
        value, low, high, p_value = self.difference
        several = len(self.by_seed) > 1
        seeds = ", ".join(f"{seed}: {signed(each)}" if several else str(seed) for seed, each in self.by_seed.items())
        interval = f"{signed(low)} to {signed(high)}"
        return " − ".join(self.rows), self.column, seeds, signed(value), interval, chance(p_value)


@dataclass(frozen=True)
class StudyTable:
    """A table of results."""

    title: str
    headings: tuple[str, ...]  # of the columns after the first
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]  # each row's name and cells; the paper's rows are below ours
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]
    signatures: Mapping[str, Mapping[str, str]]  # of every score, by run and heading

    @property
    def is_empty(self) -> bool:
        """Whether nothing in it has been measured."""
        return not any(cell.values for name, cells in self.rows if name != PAPER for cell in cells)

    def to_json(self) -> dict[str, Any]:
        """The table for machines, with every number."""
        return {
            "title": self.title,
            "columns": list(self.headings),
            "rows": [{"row": name.strip(), "cells": [cell._asdict() for cell in cells]} for name, cells in self.rows],
            "comparisons": [
                {"rows": one.rows, "column": one.column, "by_seed": one.by_seed, **one.difference._asdict()}
                for one in self.comparisons
            ],
            "notes": self.notes,
            "signatures": self.signatures,
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
            for run, by_heading in self.signatures.items():
                plain = {heading: text for heading, text in by_heading.items() if "|compressed:" not in text}
                heading, text = list((plain or by_heading).items())[-1]  # it has the settings of the cache, if any has
                lines.append(f"- {run}, {heading}: `{text}`")
        return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


class _Point(NamedTuple):
    """What one run shows in one column."""

    value: float
    result: Measured
    base: Measured | None


_Points = dict[int, _Point]  # of a row and a column, by seed


def build(plan: PlannedTable, jobs: Sequence[Job]) -> StudyTable:
    """The table of what has been measured; "-" stands for what has not."""
    recipes = dict.fromkeys(column.recipe for column in plan.columns)
    mine = [job for job in jobs if job.run.recipe in recipes]
    usable = [job for job in mine if not job.problem]
    notes = [*plan.notes, *(note for recipe in recipes if (note := _epochs(plan, recipe, usable)))]
    notes += dict.fromkeys(
        f"{job.run.recipe} was trained on {result.trained_on}."
        for job in usable
        for result in job.measured.values()
        if result.trained_on
    )
    rows: dict[str, list[Cell]] = {row: [] for row in plan.rows}
    comparisons: dict[tuple[str, str], list[Comparison]] = {
        (row, other): [] for row, each in plan.rows.items() for other in each.against
    }
    for column in plan.columns:
        found, left_out = _points(column, usable)
        notes += left_out
        for row, cells in rows.items():
            planned = sum(job.run.row == row and job.run.recipe == column.recipe for job in mine)
            cells.append(_cell(column, [point.value for point in found.get(row, {}).values()], planned))
        for (first, second), listed in comparisons.items():
            titles = plan.rows[first].title, plan.rows[second].title
            listed += _compare(column, titles, found.get(first, {}), found.get(second, {}))
        sizes = [len(point.result.sums) for points in found.values() for point in points.values()]
        if comparisons and _is_compared(column) and sizes and min(sizes) < LEAST:
            notes.append(f"A test text of {min(sizes)} sentences can't tell a difference from chance; {LEAST} can.")
    shown: list[tuple[str, tuple[Cell, ...]]] = []
    for row, cells in rows.items():
        shown.append((plan.rows[row].title, tuple(cells)))
        if any(row in column.paper for column in plan.columns):
            shown.append((PAPER, tuple(_paper_cell(column, row) for column in plan.columns)))
    notes += [f"{job.run.name} is left out: {job.problem}" for job in mine if job.problem]
    return StudyTable(
        plan.title,
        tuple(column.title for column in plan.columns),
        tuple(shown),
        tuple(comparison for listed in comparisons.values() for comparison in listed),
        tuple(dict.fromkeys(notes)),
        {job.run.name: signed_by for job in usable if (signed_by := _signatures(plan, job))},
    )


def _points(column: Column, jobs: Sequence[Job]) -> tuple[dict[str, _Points], list[str]]:
    """What fills a column, by row and seed; and notes on what is left out because it rests on another text or cache."""
    found: dict[str, _Points] = {}
    notes, first = [], None
    for job in jobs:
        result = job.measured.get(column.measurement)
        base = None if column.against is None else job.measured.get(column.against)
        if job.run.recipe != column.recipe or result is None or (column.against is not None and base is None):
            continue
        value = result.score if column.what == "score" else job.saturation
        if value is None:
            continue
        first = first or result
        is_one_text = (result.data, result.trained_on) == (first.data, first.trained_on)
        trained_on = {result.trained_on_text, first.trained_on_text} - {""}  # earlier versions did not write it
        is_one_cache = base is None or (base.data, base.cache) == (result.data, result.cache)
        if not (is_one_text and len(trained_on) <= 1 and is_one_cache):
            notes.append(f"{job.run.name} is left out of {column.title}: it rests on another text or cache.")
            continue
        point = _Point(value - (0.0 if base is None else base.score), result, base)
        found.setdefault(job.run.row, {})[job.run.seed] = point
    return found, notes


def _cell(column: Column, values: Sequence[float], planned: int) -> Cell:
    if not values:
        return Cell((), "-")
    text = _in_column(statistics.fmean(values), column)
    if len(values) > 1:
        text += f" ± {_in_column(statistics.stdev(values), column).lstrip('+')}"
    if len(values) < planned:
        text += f" ({len(values)} of {planned})"
    return Cell(tuple(values), text)


def _paper_cell(column: Column, row: str) -> Cell:
    value = column.paper.get(row)
    return Cell((), "") if value is None else Cell((value,), _in_column(value, column, column.digits))


def _in_column(value: float, column: Column, digits: int = 2) -> str:
    if column.what == "saturation":
        return f"{value:.0%}"
    return signed(value, digits) if column.against is not None else f"{value:.{digits}f}"


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign; +0.00 if it rounds to zero."""
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def chance(p_value: float) -> str:
    """A p-value; a thousand samples can't tell values below 0.002 apart."""
    return f"{p_value:.3f}" if p_value >= 0.002 else "< 0.002"


def _is_compared(column: Column) -> bool:
    return column.what == "score" and column.measurement.split == "test"


def _compare(column: Column, titles: tuple[str, str], one: _Points, other: _Points) -> list[Comparison]:
    """The comparison of two rows, if both have a seed and the text is long enough."""
    seeds = sorted(one.keys() & other.keys())
    if not seeds or not _is_compared(column):
        return []
    sides = [(sign, [points[seed] for seed in seeds]) for sign, points in ((1.0, one), (-1.0, other))]
    terms = [Term(sign, [point.result.sums for point in points]) for sign, points in sides]
    if column.against is not None:
        terms += [Term(-sign, [point.base.sums for point in points if point.base]) for sign, points in sides]
    result = one[seeds[0]].result
    sentences, is_language = len(result.sums), result.perplexity is not None
    if sentences < LEAST:
        return []
    block = min(sentences // LEAST, _BLOCK) if is_language else 1
    found = bootstrap(terms, perplexity_of if is_language else bleu_of, block=block)
    return [Comparison(titles, column.title, {seed: one[seed].value - other[seed].value for seed in seeds}, found)]


def _epochs(plan: PlannedTable, recipe: str, jobs: Sequence[Job]) -> str:
    """A note on how long each row was trained, seed by seed."""
    epochs: dict[str, list[str]] = {}
    for job in jobs:
        if job.run.recipe == recipe and job.training is not None:
            epochs.setdefault(plan.rows[job.run.row].title, []).append(f"{job.training.epochs:.1f}")
    every = {number for numbers in epochs.values() for number in numbers}
    if len(every) == 1:
        return f"Epochs of {recipe}: {every.pop()} in every run."
    parts = [f"{', '.join(numbers)} in {row}" for row, numbers in epochs.items()]
    return f"Epochs of {recipe}: {'; '.join(parts)}." if parts else ""


def _signatures(plan: PlannedTable, job: Job) -> dict[str, str]:
    scores = [column for column in plan.columns if column.what == "score" and column.recipe == job.run.recipe]
    return {
        column.title: job.measured[column.measurement].signature
        for column in scores
        if column.measurement in job.measured
    }
