"""`summarise`: one score of each run, and a sentence on what they show."""

from collections.abc import Mapping
from typing import NamedTuple

from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.recipes import task_of
from g2lstm.tasks.trained import Metric

_UNKNOWN = "-"


class _Row(NamedTuple):
    score: float
    split: str
    bits: float | None = None  # per character
    unknown: float | None = None


def same_tokens(run: RunDirectory) -> tuple[str, ...]:
    """Equal for runs of one task with the same tokenizers, whose perplexities can be compared."""
    return (run.recipe.task, *(tokenizer.fingerprint for tokenizer in run.tokenizers()))


def summarise(runs: Mapping[str, RunDirectory]) -> tuple[list[str], list[list[str]], str] | None:
    """The head and the rows of a table of scores, and what they show; None without scores."""
    metrics = {name: task_of(run.recipe).trained.metric for name, run in runs.items()}
    rows = {name: row for name, run in runs.items() if (row := _score(run, metrics[name])) is not None}
    if not rows:
        return None
    head = ["", "score", "bits per character", "unknown", "updates", "MB"]
    lines = []
    for name, run in runs.items():
        row, last = rows.get(name), run.metrics()[-1:]
        score = _UNKNOWN if row is None else f"{metrics[name].title} {row.score:.2f} on {row.split}"
        bits = _UNKNOWN if row is None or row.bits is None else f"{row.bits:.3f}"
        unknown = _UNKNOWN if row is None or row.unknown is None else f"{row.unknown:.1%}"
        updates = f"{last[0]['step']:,}" if last else _UNKNOWN
        lines.append([name, score, bits, unknown, updates, f"{run.model_file.stat().st_size / 1e6:.2f}"])
    keep = [k for k in range(len(head)) if any(line[k] != _UNKNOWN for line in lines)]
    sentence = _sentence(rows, runs, metrics)
    return [head[k] for k in keep], [[line[k] for k in keep] for line in lines], sentence


def _score(run: RunDirectory, metric: Metric) -> _Row | None:
    """The plainest score of a run: on the test text if there is one, without a cache."""
    report = run.compression_report()
    if report is not None and report.score is not None:
        return _Row(report.score.after, report.score.split)
    own = [one for one in run.results() if one.recipe in (None, run.recipe_hash) and one.cache is one.dynamic is None]
    own = [one for one in own if one.compressed is None and one.eval_gate == run.recipe.model.eval_gate]
    for one in sorted(own, key=lambda one: one.split != "test"):
        return _Row(getattr(one, metric.name), one.split, one.bits_per_character, one.unknown_share)
    return None


def _sentence(rows: Mapping[str, _Row], runs: Mapping[str, RunDirectory], metrics: Mapping[str, Metric]) -> str:
    kinds = {(same_tokens(runs[name]), row.split) for name, row in rows.items()}
    if len(kinds) > 1:
        return "These runs differ in their tokenizers or texts: compare bits per character on the same text, if at all."
    first = next(iter(rows))
    metric, split = metrics[first], rows[first].split
    ranked = sorted(rows, key=lambda name: rows[name].score, reverse=metric.higher_is_better)
    best, worst = ranked[0], ranked[-1]
    if best == worst:
        return f"{best} has a {metric.title} of {rows[best].score:.2f} on the {split} text."
    updates = {line[-1]["step"] for name in rows if (line := runs[name].metrics())}
    same = f" All were trained for {updates.pop():,} updates." if len(updates) == 1 else ""
    return (
        f"{best} has the best {metric.title} on the {split} text, {rows[best].score:.2f}; {worst} the worst, "
        f"{rows[worst].score:.2f}.{same}"
    )
