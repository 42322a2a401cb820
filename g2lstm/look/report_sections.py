"""The report's sections about what was measured: settings, scores, learning, compression, histograms of the gates."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from g2lstm.look.examine import GatesFile
from g2lstm.look.pictures.histograms import draw_layers
from g2lstm.look.pictures.style import svg_element
from g2lstm.look.pictures.training import draw_history, draw_learning, draw_saturation, gate_history, has_saturation
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.records import CompressionReport, Record
from g2lstm.tasks.recipes import task_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_REMEDY = "delete it and measure again"

Runs = Mapping[str, RunDirectory]


def picture(figure: "Figure", label: str) -> str:
    """A picture in the page; its label is unique there."""
    return f"<figure>{svg_element(figure, label)}</figure>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[int] = ()) -> str:
    """A table of plain texts.

    Args:
        head: the titles of the columns.
        rows: the cells, a text for each column.
        numbers: which columns are numbers, aligned right.
    """

    def line(cells: Sequence[str], tag: str) -> str:
        kinds = [' class="number"' if k in numbers else "" for k in range(len(cells))]
        return "<tr>" + "".join(f"<{tag}{k}>{escape(c)}</{tag}>" for c, k in zip(cells, kinds, strict=True)) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table><thead>{line(head, "th")}</thead><tbody>{body}</tbody></table></div>'


def settings(runs: Runs) -> str:
    """The settings of the runs side by side, without those that no run has."""
    rows: dict[str, list[str]] = {}
    for index, run in enumerate(runs.values()):
        recipe, model = run.recipe, run.recipe.model
        facts = {
            "task": task_of(recipe).trained.title,
            "data": recipe.data.name or str(recipe.data.path),
            "method": model.method,
            "tau": "" if model.method == "sigmoid" else f"{model.tau:g}" if model.tau is not None else "",
            "noise rate": f"{model.noise_rate:g}" if model.method == "gumbel" else "",
            "sampled gates": model.gates if model.method == "gumbel" else "",
            "embedding": str(model.embedding),
            "hidden": str(model.hidden),
            "layers": str(model.layers),
            "optimiser": recipe.train.optimizer.name,
            "seed": str(recipe.train.seed),
            "trained": _trained(run),
            "compression": run.compression or "",
            "weights on disk": f"{run.model_file.stat().st_size / 1e6:,.1f} MB",
        }
        for name, value in facts.items():
            rows.setdefault(name, [""] * len(runs))[index] = value
    return "<h2>Settings</h2>" + table(["", *runs], [[name, *values] for name, values in rows.items() if any(values)])


def _trained(run: RunDirectory) -> str:
    lines = run.metrics()
    if not lines:
        return ""
    last = lines[-1]
    return f"{last['step']:,} updates, {last['tokens'] / 1e6:,.1f} M tokens, {last['seconds'] / 60:,.0f} minutes"


def scores(runs: Runs) -> str:
    """The scores of the recipes as they are now, each with its signature."""
    rows, others = [], 0
    for name, run in runs.items():
        results = run.results()
        own = [score for score in results if score.recipe in (None, run.recipe_hash)]
        others += len(results) - len(own)
        for score in own:
            metric = task_of(run.recipe).trained.metric
            value = f"{metric.title} {getattr(score, metric.name):.2f}"
            options = {
                "cache": score.cache,
                "dynamic": score.dynamic,
                "beam": score.beam,
                "trained_on": score.trained_on,
            }
            how = [f"{key} {option}" for key, option in options.items() if option is not None]
            cells = [name, value, score.split, f"{score.eval_gate} gates", ", ".join(how)]
            signatures = [text for text in (score.signature, score.bleu_signature) if text is not None]
            rows.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
            rows.append(f'<td></td><td colspan="4"><code>{"<br>".join(map(escape, signatures))}</code></td>')
    if not rows:
        return '<h2>Scores</h2><p class="quiet">None yet; add some with <code>g2lstm eval RUN</code>.</p>'
    body = "".join(f'<tr class="{("scored", "signature")[k % 2]}">{row}</tr>' for k, row in enumerate(rows))
    left = f'<p class="quiet">Scores of other recipes, left out: {others}.</p>' if others else ""
    return f'<h2>Scores</h2><div class="scroll"><table>{body}</table></div>{left}'


def learning(runs: Runs) -> str:
    """Scores over training time, how many gates became saturated, and how their values changed."""
    metrics = {name: lines for name, run in runs.items() if (lines := run.metrics())}
    curves, saturations = "", ""
    for task in dict.fromkeys(runs[name].recipe.task for name in metrics):  # only these can be compared
        own = {name: lines for name, lines in metrics.items() if runs[name].recipe.task == task}
        for metric in ("perplexity", "bleu"):
            figure = draw_learning(own, metric)
            curves += picture(figure, f"{metric} over training time: {', '.join(own)}") if figure else ""
        saturated = {name: lines for name, lines in own.items() if has_saturation(lines)}
        if saturated:
            saturations += picture(draw_saturation(saturated), f"saturated gates over time: {', '.join(saturated)}")
    html = "<h2>Learning</h2>" if metrics else ""
    if curves:
        html += f'<p class="quiet">The pale lines are training batches.</p><div class="row">{curves}</div>'
    if saturations:
        html += f"<h3>Saturated gates</h3>{saturations}"
    return html + _over_time(metrics)


def _over_time(metrics: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    histories = {name: gate_history(lines) for name, lines in metrics.items()}
    found = {name: history for name, history in histories.items() if history is not None}
    html = "<h3>Histograms of the gates over training time</h3>" if metrics else ""
    if found:
        html += picture(draw_history(found), f"histograms over training time: {', '.join(found)}")
    if missing := [name for name in histories if name not in found]:
        html += f'<p class="quiet">Not counted while training: {escape(", ".join(missing))}.</p>'
    return html


def compression(runs: Runs) -> str:
    """What compressing gained and cost: of compressed runs, and of runs that a study measured."""
    parts = []
    for name, run in runs.items():
        if (report := run.compression_report()) is not None:
            parts.append(_compressed(name, report))
    parts.append(_after_compression(runs))
    body = "".join(parts)
    return f"<h2>Compression</h2>{body}" if body else ""


def _compressed(name: str, report: CompressionReport) -> str:
    sizes = {f"{group}, bytes": size for group, size in report.groups.items()}
    sizes |= {"rest, bytes": report.rest, "whole file, bytes": report.file}
    rows = [
        [what, f"{size.before:,}", f"{size.after:,}", f"{size.before / max(size.after, 1):.2f} ×"]
        for what, size in sizes.items()
    ]
    if (score := report.score) is not None:
        rows.append([f"{score.metric} on {score.split}", f"{score.before:.2f}", f"{score.after:.2f}", ""])
    if (speed := report.speed) is not None:
        faster = f"{speed.after / speed.before:.2f} ×"
        rows.append([f"{speed.unit}, {speed.how}", f"{speed.before:,.1f}", f"{speed.after:,.1f}", faster])
    title = f"<h3>{escape(name)}</h3><p class='quiet'><code>{escape(report.spec)}</code></p>"
    return title + table(["", "before", "after", "smaller or faster"], rows, numbers=(1, 2, 3))


def _after_compression(runs: Runs) -> str:
    """The scores that a study measured before and after compression, runs side by side."""
    found: dict[str, dict[str, dict[str, float]]] = {}  # by what was scored, the spec ("" for none), and the run
    for name, run in runs.items():
        for path in sorted((run.path / "measured").glob("*.json")):
            measured = _StudyFile.read(path, _REMEDY)
            if measured.split is not None:
                found.setdefault(measured.title, {}).setdefault(measured.compressed or "", {})[name] = measured.value
    parts = []
    for title, by_spec in found.items():
        before = by_spec.get("", {})
        names = [name for name in runs if any(name in each for each in by_spec.values())]
        rows = []
        for spec in sorted(by_spec, key=_by_strength):
            row = [spec or "as trained"]
            for name in names:
                score = by_spec[spec].get(name)
                change = f" ({score - before[name]:+.2f})" if score is not None and spec and name in before else ""
                row.append("" if score is None else f"{score:.2f}{change}")
            rows.append(row)
        if len(rows) > 1:
            parts.append(
                f"<h3>Score after compression</h3><p class='quiet'>{escape(title)}; the change is in brackets.</p>"
            )
            parts.append(table(["", *names], rows, numbers=range(1, len(names) + 1)))
    return "".join(parts)


class _StudyFile(Record):
    """A file that a study wrote: a score, or something else if it has no `split`."""

    split: str | None = None
    eval_gate: str | None = None
    cache: str | None = None
    compressed: str | None = None
    perplexity: float | None = None
    bleu: float | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> "_StudyFile":
        if self.split is not None and (self.eval_gate is None or (self.perplexity is None and self.bleu is None)):
            raise ValueError("a score has an eval_gate, and a perplexity or a BLEU")
        return self

    @property
    def title(self) -> str:
        """What was scored, and how."""
        metric = "perplexity" if self.bleu is None else "BLEU"
        return f"{metric} on {self.split}, {self.eval_gate} gates{', with the cache' if self.cache else ''}"

    @property
    def value(self) -> float:
        """The score."""
        value = self.perplexity if self.bleu is None else self.bleu
        assert value is not None
        return value


def _by_strength(spec: str) -> list[str | float]:
    """A key that sorts specs by their operations, then by the numbers in these, highest first."""
    pieces = re.split(r"(\d+(?:\.\d+)?)", spec)
    return [-float(piece) if k % 2 else piece for k, piece in enumerate(pieces)]


def histograms(counts: Mapping[str, GatesFile]) -> str:
    """Histograms of all gates, layer by layer; runs with the same layers are drawn together.

    Args:
        counts: by run name.
    """
    title = "<h2>Histograms of the gates</h2>"
    if not counts:
        return f'{title}<p class="quiet">None yet; count gates with <code>g2lstm gates RUN</code>.</p>'
    groups: dict[tuple[str, ...], dict[str, GatesFile]] = {}
    for name, each in counts.items():
        groups.setdefault(tuple(layer.title for layer in each.layers), {})[name] = each
    return title + "".join(map(_histograms, groups.values()))


def _histograms(runs: Mapping[str, GatesFile]) -> str:
    where = []
    for name, each in runs.items():
        tokens = ", ".join(f"{count:,} {side} tokens" for side, count in each.data.tokens.items())
        where.append(f"{name}: {each.mode}; {each.data.split or 'one text'}, {tokens}")
    modes = " / ".join(dict.fromkeys(each.mode for each in runs.values()))
    layers = {name: each.model_dump(by_alias=True)["layers"] for name, each in runs.items()}
    rows = [
        [layer.title, gate, name, f"{each.mean:.3f}", f"{each.below:.1%}", f"{each.above:.1%}"]
        for same in zip(*(each.layers for each in runs.values()), strict=True)
        for gate in same[0].gates
        for name, layer in zip(runs, same, strict=True)
        for each in [layer.gates[gate]]
    ]
    facts = table(["layer", "gate", "run", "mean", "below 0.1", "above 0.9"], rows, numbers=(3, 4, 5))
    said = "".join(f'<p class="quiet">{escape(each)}</p>' for each in where)
    drawn = picture(draw_layers(layers, modes), f"histograms of the gates: {', '.join(runs)}")
    return f"{said}{drawn}<details><summary>Numbers</summary>{facts}</details>"
