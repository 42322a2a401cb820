"""Tables over run directories: ours beside the paper's, mean and deviation over seeds, and which differences hold."""

import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from g2lstm.lab.study import results
from g2lstm.lab.study.notes import training_notes
from g2lstm.lab.study.plan import Column, Plan, TablePlan
from g2lstm.lab.study.significance import Difference, Term, bleu_of, bootstrap, perplexity_of

PAPER = "  paper"  # what a row of its figures is called
LEAST = 20  # sentences, or blocks of them: with fewer, a bootstrap finds too much
_BLOCK = 10  # sentences of running text that are drawn together; fewer in a text too short for `LEAST` such blocks


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
    """Whether the difference between two rows holds in one column.

    Attributes:
        rows: what they are called; the second is taken from the first.
        column: its heading.
        by_seed: the difference of each seed that both rows have.
        difference: the mean of these.
    """

    rows: tuple[str, str]
    column: str
    by_seed: Mapping[int, float]
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
        signatures: of every score, by run and heading.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]
    signatures: Mapping[str, Mapping[str, str]]

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it has been measured."""
        return not any(cell.values for name, cells in self.rows if name != PAPER for cell in cells)


def build(plan: TablePlan, runs: Sequence[Plan], out: Path, left_out: Mapping[str, str] | None = None) -> Table:
    """The table of what has been measured; "-" stands for what has not.

    Args:
        plan: what it shows.
        runs: of the study.
        out: the folder of all runs.
        left_out: names of runs that are not to be shown, and why.
    """
    left_out = left_out or {}
    series = {column.series for column in plan.columns}
    reasons = [
        f"{run.name} is left out: {left_out[run.name]}" for run in runs if run.name in left_out and run.series in series
    ]
    found = {row: [_Row(out, column, row, runs, left_out) for column in plan.columns] for row in plan.rows}
    runs = [run for run in runs if run.name not in left_out]
    rows: list[tuple[str, tuple[Cell, ...]]] = []
    for row, label in plan.rows.items():
        rows.append((label, tuple(one.cell for one in found[row])))
        if any(row in column.paper for column in plan.columns):
            rows.append((PAPER, tuple(_paper_cell(column, row) for column in plan.columns)))
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
        (*plan.notes, *training_notes(plan, runs, out), *_data_notes(plan, found), *reasons),
        _signatures(plan, runs, out),
    )


def _signatures(plan: TablePlan, runs: Sequence[Plan], out: Path) -> dict[str, dict[str, str]]:
    signatures: dict[str, dict[str, str]] = {}
    scores = [column for column in plan.columns if column.what == "score"]
    for run in runs:
        for column in scores:
            if run.series == column.series and (result := results.measured(out / run.name, column.measurement)):
                signatures.setdefault(run.name, {})[column.title] = result["signature"]
    return signatures


def _data_notes(plan: TablePlan, found: Mapping[str, Sequence["_Row"]]) -> list[str]:
    """Seeds and rows that were not trained and scored on the same text, and texts too short to compare rows by."""
    notes = []
    for columns in found.values():
        for run in dict.fromkeys(run for one in columns for run in one.apart):
            titles = ", ".join(one.column.title for one in columns if run in one.apart)
            notes.append(f"{run} has no {titles}: measured on another text or with another cache than what it is for.")
    for row, columns in found.items():
        if mixed := [one.column.title for one in columns if not one.has_data_of(one)]:
            notes.append(
                f"The seeds of {plan.rows[row]} are not averaged in {', '.join(mixed)}: they were trained or scored on "
                "other texts."
            )
    for first, second in plan.pairs:
        pairs = zip(found.get(first, ()), found.get(second, ()), strict=False)
        apart = [one.column.title for one, other in pairs if not one.has_data_of(other)]
        if apart:
            names = f"{plan.rows[first]} and {plan.rows[second]}"
            notes.append(f"{names} are not compared in {', '.join(apart)}: they were trained or scored on other texts.")
    sizes = [one.sentences for columns in found.values() for one in columns if one.is_compared and one.values]
    if plan.pairs and sizes and min(sizes) < LEAST:
        notes.append(f"A test text of {min(sizes)} sentences cannot tell a difference from chance; {LEAST} can.")
    return notes


class _Row:
    """The runs of one row in one column, by seed, as far as they are measured."""

    def __init__(self, out: Path, column: Column, row: str, runs: Sequence[Plan], left_out: Container[str]) -> None:
        self.column, self.row = column, row
        mine = [run for run in runs if run.row == row and run.series == column.series]
        self.planned = len(mine)
        self.measured: dict[int, dict[str, Any]] = {}
        self.base: dict[int, dict[str, Any]] = {}
        self.values: dict[int, float] = {}
        self.apart: list[str] = []  # runs whose base was measured on another text, or with another cache
        for run in (run for run in mine if run.name not in left_out):
            path = out / run.name
            result = results.measured(path, column.measurement)
            base = None if column.against is None else results.measured(path, column.against)
            if result is None or (column.against is not None and base is None):
                continue
            if base is not None and _how(base) != _how(result):
                self.apart.append(run.name)
                continue
            value = _value(column.what, result, path)
            if value is None:
                continue
            self.measured[run.seed], self.values[run.seed] = result, value
            if base is not None:
                self.base[run.seed] = base
                self.values[run.seed] -= results.score_of(base)

    def has_data_of(self, other: "_Row") -> bool:
        """Whether all that was measured of both rests on the same texts, as far as the results tell."""
        found = [_data(result) for row in (self, other) for result in row.measured.values()]
        known = {trained_on_text for *_, trained_on_text in found} - {""}
        return len({data[:-1] for data in found}) <= 1 and len(known) <= 1

    @property
    def is_compared(self) -> bool:
        """Whether other rows are compared with it in this column."""
        return self.column.what == "score" and self.column.measurement.split == "test"

    @property
    def sentences(self) -> int:
        """How many the text has that it was scored on; 0 if it was not."""
        return min((len(results.sentences_of(result)) for result in self.measured.values()), default=0)

    @property
    def cell(self) -> Cell:
        values = tuple(self.values.values())
        if not values:
            return Cell((), "-")
        if not self.has_data_of(self):
            return Cell(values, " / ".join(shown(value, self.column) for value in values))
        text = shown(statistics.fmean(values), self.column)
        if len(values) > 1:
            text += f" ± {shown(statistics.stdev(values), self.column).lstrip('+')}"
        if len(values) < self.planned:
            text += f" ({len(values)} of {self.planned})"
        return Cell(values, text)


def _data(result: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells the texts that it was scored and trained on from others."""
    return results.scored_data(result), result.get("trained_on", ""), result.get("trained_on_text", "")


def _how(result: Mapping[str, Any]) -> tuple[str, ...]:
    """What a score and the one that it is taken from have to have in common."""
    return _data(result)[0], str(result.get("cache", ""))


def _value(what: str, result: Mapping[str, Any], path: Path) -> float | None:
    return results.score_of(result) if what == "score" else results.saturation_of(path)


def _paper_cell(column: Column, row: str) -> Cell:
    value = column.paper.get(row)
    return Cell((), "") if value is None else Cell((value,), shown(value, column, column.paper_digits))


def shown(value: float, column: Column, digits: int = 2) -> str:
    """A number as its column has it."""
    if column.what == "saturation":
        return f"{value:.0%}"
    return signed(value, digits) if column.against is not None else f"{value:.{digits}f}"


def signed(value: float, digits: int = 2) -> str:
    """With its sign, and +0.00 for what is rounded to zero."""
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def _compare(one: _Row, other: _Row, plan: TablePlan) -> Comparison | None:
    column = one.column
    seeds = sorted(one.values.keys() & other.values.keys())
    if not one.is_compared or not seeds or not one.has_data_of(other) or one.sentences < LEAST:
        return None
    sides = [(1.0, one.measured), (-1.0, other.measured)]
    if column.against is not None:
        sides += [(-1.0, one.base), (1.0, other.base)]
    terms = [Term(weight, [results.sentences_of(side[seed]) for seed in seeds]) for weight, side in sides]
    is_language = "perplexity" in one.measured[seeds[0]]
    block = min(one.sentences // LEAST, _BLOCK) if is_language else 1
    found = bootstrap(terms, perplexity_of if is_language else bleu_of, block=block)
    by_seed = {seed: one.values[seed] - other.values[seed] for seed in seeds}
    return Comparison((plan.rows[one.row], plan.rows[other.row]), column.title, by_seed, found)
