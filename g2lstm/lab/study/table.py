"""Tables over a study's runs: our scores beside the paper's, means and deviations, and which differences hold."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from g2lstm.errors import G2Error
from g2lstm.lab.study.jobs import Job, Measured
from g2lstm.lab.study.plan import Column, PlannedTable

Array = np.ndarray[Any, np.dtype[np.float64]]
Score = Callable[[Array], Array]  # sums (samples, k) to scores (samples,)


LEAST = 20  # sentences or blocks: with fewer, a bootstrap finds differences that do not exist
_BLOCK = 10  # sentences of running text to draw together; fewer in a text too short for `LEAST` such blocks


class Term(NamedTuple):
    """A score in a sum of scores."""

    weight: float  # usually 1 or -1
    seeds: Sequence[Array]  # (sentences, k) each: what sentences add to the sums; scores are averaged over seeds


class Difference(NamedTuple):
    """A difference of scores, and how much the choice of sentences can change it."""

    value: float
    low: float  # 95 % of samples lie between these
    high: float
    p_value: float  # two-sided: twice the share of samples on the rarer side of zero; above 0.05 if 0 is between


def bootstrap(terms: Sequence[Term], score: Score, *, samples: int = 1000, block: int = 1, seed: int = 1) -> Difference:
    """The weighted sum of scores, and how it varies over samples of the sentences; all terms get the same samples.

    It shows how much depends on this test set; only more seeds can show how much depends on the seed of training.
    `block` neighbouring sentences are drawn together, because sentences of one article are not independent.
    """
    lengths = {len(one) for term in terms for one in term.seeds}
    if len(lengths) != 1:
        raise G2Error(f"scores can only be compared on the same sentences, got {sorted(lengths)} sentences")
    starts = np.arange(0, lengths.pop(), block)
    blocked = [Term(weight, [np.add.reduceat(one, starts, axis=0) for one in seeds]) for weight, seeds in terms]

    def combined(counts: Array) -> Array:
        """The sums (samples,) from counts (samples, blocks) of how often each block is in each sample."""
        total = np.zeros(len(counts))
        for weight, seeds in blocked:
            total += weight * np.mean([score(counts @ one) for one in seeds], axis=0)
        return total

    generator, count = np.random.default_rng(seed), len(starts)
    drawn = generator.multinomial(count, np.full(count, 1 / count), size=samples)
    values = np.sort(combined(drawn.astype(np.float64)))
    outside = max(int(0.025 * (samples + 1)), 1)  # on each side, counted as for the p-value
    rarer = min(int((values <= 0).sum()), int((values >= 0).sum()))
    p_value = min(2 * (rarer + 1) / (samples + 1), 1.0)
    whole = combined(np.ones((1, count)))[0]
    return Difference(float(whole), float(values[outside - 1]), float(values[-outside]), p_value)


def compared(terms: Sequence[Term], *, is_language: bool) -> Difference:
    """The bootstrap of perplexities of running text, or of BLEU."""
    block = max(1, min(len(terms[0].seeds[0]) // LEAST, _BLOCK)) if is_language else 1
    return bootstrap(terms, perplexity_of if is_language else bleu_of, block=block)


def chance(p_value: float) -> str:
    """A p-value; a thousand samples can't tell values below 0.002 apart."""
    return f"{p_value:.3f}" if p_value >= 0.002 else "< 0.002"


def perplexity_of(sums: Array) -> Array:
    """Perplexities from the sums of -log p and of tokens."""
    perplexities: Array = np.exp(sums[:, 0] / sums[:, 1])
    return perplexities


def bleu_of(sums: Array) -> Array:
    """BLEU by sacreBLEU, from matches of 1 to 4 words, n-grams of 1 to 4 words, length, and the reference's length."""
    from sacrebleu.metrics.bleu import BLEU

    return np.array(
        [
            BLEU.compute_bleu(row[:4].tolist(), row[4:8].tolist(), int(row[8]), int(row[9]), smooth_method="exp").score
            for row in np.rint(sums).astype(np.int64)
        ]
    )


COMPARISON = ("difference", "in", "by seed", "value", "95 % interval", "p")
HOW = (
    "How much the choice of test sentences can change a difference (paired bootstrap, each difference by itself; "
    "other seeds would add to it)"
)
PAPER = "  paper"  # the name of a row of its figures


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

    def grid(self) -> list[list[str]]:
        """The texts of its cells with those around them, row by row."""
        return [["", *self.headings], *([name, *(cell.text for cell in cells)] for name, cells in self.rows)]

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
                cached = {heading: text for heading, text in plain.items() if "|cache:" in text}
                heading, text = next(iter((cached or plain or by_heading).items()))
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
    sources = dict.fromkeys(column.source for column in plan.columns)
    mine = [job for job in jobs if job.run.source in sources]
    usable = [job for job in mine if not job.problem]
    notes = [*plan.notes, *_training_notes(plan, usable)]
    cells: dict[str, list[Cell]] = {row: [] for row in plan.rows}
    pairs = {
        (each.title, plan.rows[other].title): (row, other) for row, each in plan.rows.items() for other in each.against
    }
    comparisons = []
    for column in plan.columns:
        found, left_out = _points(column, usable)
        notes += left_out
        for row in plan.rows:
            planned = sum(job.run.row == row and job.run.source == column.source for job in mine)
            cells[row].append(_cell(column, [point.value for point in found[row].values()], planned))
        sizes = [len(point.result.sums) for points in found.values() for point in points.values()]
        if not pairs or not sizes or column.what != "score" or column.measurement.split != "test":
            continue
        if min(sizes) < LEAST:
            notes.append(f"A test text of {min(sizes)} sentences is too short to rule out chance; it takes {LEAST}.")
            continue
        for titles, (first, second) in pairs.items():
            if found[first].keys() & found[second].keys():
                comparisons.append(_compare(column, titles, found[first], found[second]))
    rows: list[tuple[str, tuple[Cell, ...]]] = []
    for row, each in plan.rows.items():
        rows.append((each.title, tuple(cells[row])))
        if any(row in column.paper for column in plan.columns):
            figures = [[one.paper[row]] if row in one.paper else [] for one in plan.columns]
            shown = zip(plan.columns, figures, strict=True)
            rows.append((PAPER, tuple(_cell(one, value, digits=one.digits, empty="") for one, value in shown)))
    notes += [f"{job.run.name} is left out: {job.problem}" for job in mine if job.problem]
    signatures = {job.run.name: _signatures(plan, job) for job in usable}
    return StudyTable(
        plan.title,
        tuple(column.title for column in plan.columns),
        tuple(rows),
        tuple(sorted(comparisons, key=lambda one: list(pairs).index(one.rows))),
        tuple(dict.fromkeys(notes)),
        {run: found for run, found in signatures.items() if found},
    )


def _points(column: Column, jobs: Sequence[Job]) -> tuple[dict[str, _Points], list[str]]:
    """The entries of a column by row and seed, and notes on those left out because their text or cache differs."""
    found: dict[str, _Points] = defaultdict(dict)
    notes, first = [], None
    for job in jobs:
        result = job.measured.get(column.measurement)
        base = None if column.against is None else job.measured.get(column.against)
        if job.run.source != column.source or result is None or (column.against is not None and base is None):
            continue
        value = result.score if column.what == "score" else job.saturation
        if value is None:
            continue
        first = first or result
        is_one_text = (result.data, result.trained_on) == (first.data, first.trained_on)
        trained_on = {result.trained_on_text, first.trained_on_text} - {""}  # earlier versions wrote neither
        tokenizers = {result.tokenizers, first.tokenizers} - {None}
        is_one_cache = base is None or (base.data, base.cache) == (result.data, result.cache)
        if not (is_one_text and len(trained_on) <= 1 and len(tokenizers) <= 1 and is_one_cache):
            notes.append(f"{job.run.name} is left out of {column.title}: its text, tokenizer or cache differs.")
            continue
        point = _Point(value - (0.0 if base is None else base.score), result, base)
        found[job.run.row][job.run.seed] = point
    return found, notes


def _cell(column: Column, values: Sequence[float], planned: int = 1, digits: int = 2, empty: str = "-") -> Cell:
    if not values:
        return Cell((), empty)
    text = _in_column(statistics.fmean(values), column, digits)
    if len(values) > 1:
        text += f" ± {_in_column(statistics.stdev(values), column, digits).lstrip('+')}"
    if len(values) < planned:
        text += f" ({len(values)} of {planned})"
    return Cell(tuple(values), text)


def _in_column(value: float, column: Column, digits: int) -> str:
    if column.what == "saturation":
        return f"{value:.0%}"
    return signed(value, digits) if column.against is not None else f"{value:.{digits}f}"


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign; +0.00 if it rounds to zero."""
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def _compare(column: Column, titles: tuple[str, str], one: _Points, other: _Points) -> Comparison:
    """The comparison of two rows, over the seeds that both have."""
    seeds = sorted(one.keys() & other.keys())
    sides = [(sign, [points[seed] for seed in seeds]) for sign, points in ((1.0, one), (-1.0, other))]
    terms = [Term(sign, [point.result.sums for point in points]) for sign, points in sides]
    if column.against is not None:
        terms += [Term(-sign, [point.base.sums for point in points if point.base]) for sign, points in sides]
    found = compared(terms, is_language=one[seeds[0]].result.perplexity is not None)
    return Comparison(titles, column.title, {seed: one[seed].value - other[seed].value for seed in seeds}, found)


def _training_notes(plan: PlannedTable, jobs: Sequence[Job]) -> list[str]:
    """How long each row was trained, seed by seed, and on how much of the data if not on all of it."""
    epochs: dict[str, dict[str, list[str]]] = {}
    shares = []
    for job in jobs:
        if job.training is not None:
            by_row = epochs.setdefault(job.run.source, {})
            by_row.setdefault(plan.rows[job.run.row].title, []).append(f"{job.training.epochs:.1f}")
        results = job.measured.values()
        shares += [f"{job.run.source} was trained on {one.trained_on}." for one in results if one.trained_on]
    parts = {source: [f"{', '.join(many)} in {row}" for row, many in rows.items()] for source, rows in epochs.items()}
    return [*(f"Epochs of {source}: {'; '.join(each)}." for source, each in parts.items()), *shares]


def _signatures(plan: PlannedTable, job: Job) -> dict[str, str]:
    scores = [column for column in plan.columns if column.what == "score" and column.source == job.run.source]
    known = [column for column in scores if column.measurement in job.measured]
    return {column.title: job.measured[column.measurement].signature for column in known}
