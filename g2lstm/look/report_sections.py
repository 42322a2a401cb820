"""The report's sections about what was measured: settings, scores, learning, compression, histograms of the gates."""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from g2lstm.errors import G2Error
from g2lstm.files import parse_json, read_bounded
from g2lstm.look.history import SHOWN, gate_history
from g2lstm.look.places import title_of
from g2lstm.look.report_charts import Series, dot_chart, heat_chart, histogram_chart, line_chart
from g2lstm.look.report_page import table
from g2lstm.runs.directory import RunDirectory

_LONGEST = 2**28  # bytes of a file of measurements
_POINTS = 400  # of a training curve, at most
_COLUMNS = 40  # of a heat map over training time, at most

Runs = Mapping[str, RunDirectory]


def settings(runs: Runs) -> str:
    """The runs' settings beside each other; those that no run has are left out."""
    rows: dict[str, list[str]] = {}
    for index, run in enumerate(runs.values()):
        recipe, model = run.recipe, run.recipe.model
        facts = {
            "task": {"lm": "language model", "mt": "translation"}[recipe.task],
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
    shown = [[name, *values] for name, values in rows.items() if any(values)]
    return "<h2>Settings</h2>" + table(["", *runs], shown)


def _trained(run: RunDirectory) -> str:
    lines = run.metrics()
    if not lines:
        return ""
    last = lines[-1]
    return f"{last['step']:,} steps, {last['tokens'] / 1e6:,.1f} M tokens, {last['seconds'] / 60:,.0f} minutes"


def scores(runs: Runs) -> str:
    """The scores of the recipes as they are now, each with the signature that says what it rests on."""
    rows, others = [], 0
    for name, run in runs.items():
        results = run.results()
        own = [score for score in results if f"recipe:{run.recipe_hash}|" in f"{score.get('signature')}|"]
        others += len(results) - len(own)
        for score in own:
            value = f"BLEU {score['bleu']:.2f}" if "bleu" in score else f"perplexity {score['perplexity']:.2f}"
            how = [f"{key} {score[key]}" for key in ("cache", "dynamic", "beam", "trained_on") if key in score]
            cells = [name, value, score["split"], f"{score['eval_gate']} gates", ", ".join(how)]
            signatures = [str(score[key]) for key in ("signature", "bleu_signature") if key in score]
            rows.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
            rows.append(f'<td></td><td colspan="4"><code>{"<br>".join(map(escape, signatures))}</code></td>')
    if not rows:
        return '<h2>Scores</h2><p class="quiet">None yet: <code>g2lstm eval RUN</code> adds them.</p>'
    body = "".join(f'<tr class="{("scored", "signature")[k % 2]}">{row}</tr>' for k, row in enumerate(rows))
    left = f'<p class="quiet">Scores of other recipes, which are left out: {others}.</p>' if others else ""
    return f'<h2>Scores</h2><div class="scroll"><table>{body}</table></div>{left}'


def curves(runs: Runs) -> str:
    """Perplexity and BLEU over training, and how binary the gates became."""
    parts = []
    for task, what in (("lm", "perplexity"), ("mt", "perplexity"), ("mt", "bleu")):
        series = []
        for index, (name, run) in enumerate(runs.items()):
            lines = run.metrics() if run.recipe.task == task else []
            begin = 0.02 * lines[-1]["tokens"] if lines and what == "perplexity" else 0  # else its fall is all one sees
            for kind in ("train", "valid"):
                chosen = [line for line in lines if line["kind"] == kind and what in line and line["tokens"] >= begin]
                chosen = chosen[:: len(chosen) // _POINTS + 1]
                x, y = [line["tokens"] / 1e6 for line in chosen], [float(line[what]) for line in chosen]
                if len(chosen) > 1:
                    series.append(Series(name, x, y, index, is_faint=kind == "train"))
        if any(not each.is_faint for each in series):
            title = "BLEU, validation" if what == "bleu" else "perplexity, validation"
            parts.append(line_chart(series, x_title="million tokens", y_title=title, is_log=what == "perplexity"))
    saturations = _saturations(runs)
    if not (parts or saturations):
        return ""
    html = '<h2>Learning</h2><p class="quiet">The pale lines are training batches.</p>'
    html += f'<div class="row">{"".join(parts)}</div>'
    if saturations:
        html += f"<h3>Gates beyond 0.1 and 0.9 while training</h3><div class='row'>{saturations}</div>"
    return html + _over_training(runs)


def _over_training(runs: Runs) -> str:
    """Histograms of the gates at each validation; those of all runs have one scale of colours."""
    trained = {name: gate_history(metrics) for name, run in runs.items() if (metrics := run.metrics())}
    found = {name: history for name, history in trained.items() if history is not None}
    title, parts = "<h3>Histograms of the gates over training time</h3>", []
    if found:
        title += '<p class="quiet">All layers, at each validation; % of values in bins of one width.</p>'
    for gate in SHOWN:
        for name, history in found.items():
            every = len(history.tokens) // _COLUMNS + 1
            shares = history.shares[gate][::every].tolist()
            edges = [*history.token_edges[:-1:every], history.token_edges[-1]]
            top = max(each.top for each in found.values())
            millions = [edge / 1e6 for edge in edges]
            chart = heat_chart(shares, millions, x_title="million tokens", y_title=f"{gate} gate", top=top)
            parts.append(f"<div><h4>{escape(name)}</h4>{chart}</div>")
    charts = f'<div class="row">{"".join(parts)}</div>' if parts else ""
    missing = [name for name, history in trained.items() if history is None]
    if missing:
        charts += f'<p class="quiet">Not counted while training: {escape(", ".join(missing))}.</p>'
    return title + charts if trained else ""


def _saturations(runs: Runs) -> str:
    """A chart for each run that tells it, all to one scale."""
    found = {name: series for name, run in runs.items() if (series := _saturation(run))}
    top = max((y for series in found.values() for each in series for _, y in each.points()), default=0)
    return "".join(
        f"<div><h4>{escape(name)}</h4>{line_chart(it, x_title='million tokens', y_title='% of values', top=top)}</div>"
        for name, it in found.items()
    )


def _saturation(run: RunDirectory) -> list[Series]:
    lines = [line for line in run.metrics() if line["kind"] == "valid"]
    keys = [key for key in (lines[-1] if lines else {}) if key.startswith("saturation/")]
    if len(lines) < 2:
        return []
    layers = list(dict.fromkeys(key.split("/")[1] for key in keys))
    series = []
    for key in keys:
        _, layer, gate = key.split("/")
        chosen = [line for line in lines if key in line]
        x, y = [line["tokens"] / 1e6 for line in chosen], [100 * line[key] for line in chosen]
        series.append(Series(f"{title_of(layer)}, {gate}", x, y, layers.index(layer), dash=int(gate == "forget")))
    return series


def compression(runs: Runs) -> str:
    """What compressing gained and cost: of runs that are compressed, and of those whose presets were all measured."""
    parts = []
    for name, run in runs.items():
        parts.append(_measured(run.path / "compression.json", partial(_compressed, name)))
        parts.append(_measured(run.path / "sweep" / "sweep.json", partial(_sweep, name)))
    parts.append(_after_compression(runs))
    body = "".join(parts)
    return f"<h2>Compression</h2>{body}" if body else ""


def _after_compression(runs: Runs) -> str:
    """Scores before and after compression, the runs side by side; where a study has measured them."""
    found: dict[str, dict[str, dict[str, float]]] = {}  # by what was scored, the spec ("" for none), and the run

    def add(name: str, score: Any) -> str:
        if "split" in score:  # else it is no score
            metric = "bleu" if "bleu" in score else "perplexity"
            cache = ", with the cache" if "cache" in score else ""
            title = f"{'BLEU' if metric == 'bleu' else metric} on {score['split']}, {score['eval_gate']} gates{cache}"
            by_spec = found.setdefault(title, {}).setdefault(score.get("compressed") or "", {})
            by_spec[name] = float(score[metric])
        return ""

    for name, run in runs.items():
        for path in sorted((run.path / "measured").glob("*.json")):
            _measured(path, partial(add, name))
    parts = []
    for title, by_spec in found.items():
        before = by_spec.get("", {})
        names = [name for name in runs if any(name in each for each in by_spec.values())]
        rows = [[spec or "as trained"] for spec in sorted(by_spec, key=_by_strength)]
        for row, spec in zip(rows, sorted(by_spec, key=_by_strength), strict=True):
            for name in names:
                score = by_spec[spec].get(name)
                change = f" ({score - before[name]:+.2f})" if score is not None and spec and name in before else ""
                row.append("" if score is None else f"{score:.2f}{change}")
        if len(rows) > 1:
            parts.append(
                f"<h3>Score after compression</h3><p class='quiet'>{escape(title)}; in brackets the change.</p>"
            )
            parts.append(table(["", *names], rows, numbers=range(1, len(names) + 1)))
    return "".join(parts)


def _by_strength(spec: str) -> list[str | float]:
    """A key that sorts specs by their steps, and those with the same steps by their numbers, the higher first."""
    pieces = re.split(r"(\d+(?:\.\d+)?)", spec)
    return [-float(piece) if k % 2 else piece for k, piece in enumerate(pieces)]


def _compressed(name: str, found: Any) -> str:
    sizes = {**{f"{group}, bytes": size for group, size in found["groups"].items()}, "rest, bytes": found["rest"]}
    sizes["whole file, bytes"] = found["file"]
    rows = [
        [what, f"{size['before']:,}", f"{size['after']:,}", f"{size['before'] / max(size['after'], 1):.2f} ×"]
        for what, size in sizes.items()
    ]
    if (score := found["score"]) is not None:
        rows.append([f"{score['metric']} on {score['split']}", f"{score['before']:.2f}", f"{score['after']:.2f}", ""])
    if (speed := found["speed"]) is not None:
        faster = f"{speed['after'] / speed['before']:.2f} ×"
        rows.append([f"{speed['unit']}, {speed['how']}", f"{speed['before']:,.1f}", f"{speed['after']:,.1f}", faster])
    title = f"<h3>{escape(name)}</h3><p class='quiet'><code>{escape(found['spec'])}</code></p>"
    return title + table(["", "before", "after", "smaller or faster"], rows, numbers=(1, 2, 3))


def _sweep(name: str, found: Any) -> str:
    metric, before = found["metric"], found["before"]
    what = f"{'BLEU' if metric == 'bleu' else metric} on {found['split']}"
    rows = [["as trained", "", f"{before['bytes'] / 1e6:,.2f}", "1.0 ×", f"{before['score'][metric]:.2f}"]]
    points = sorted(found["points"].items(), key=lambda pair: -pair[1]["file"]["after"])
    for preset, point in points:
        size, score = point["file"], point["score"]["after"]
        ratio = f"{size['before'] / size['after']:.1f} ×"
        rows.append([preset, point["spec"], f"{size['after'] / 1e6:,.2f}", ratio, f"{score:.2f}"])
    own = Series("as trained", [before["bytes"] / 1e6], [before["score"][metric]], 0, labels=["as trained"])
    x, y = [point["file"]["after"] / 1e6 for _, point in points], [point["score"]["after"] for _, point in points]
    presets = Series("compressed", x, y, 1, labels=[preset for preset, _ in points])
    chart = dot_chart([own, presets], x_title="MB on disk", y_title=what)
    return f"<h3>{escape(name)}, {escape(what)}</h3>{chart}" + table(
        ["preset", "spec", "MB", "smaller", what], rows, numbers=(2, 3, 4)
    )


def counts_file(run: RunDirectory) -> Path:
    """Where `g2lstm gates` tells what it has counted."""
    return run.path / "gates" / "gates.json"


def histograms(runs: Runs, others: Mapping[str, Any]) -> str:
    """Of all gates over a split, layer by layer, the runs side by side.

    Args:
        runs: those that `g2lstm gates` has counted are shown as it did.
        others: what was counted of other ones, in the same form.
    """
    title = "<h2>Histograms of the gates</h2>"
    counted: dict[str, list[tuple[str, Any]]] = {}  # by the layer, for each run where it was counted, and its gates

    def add(name: str, found: Any) -> str:
        tokens = ", ".join(f"{count:,} {side} tokens" for side, count in found["data"]["tokens"].items())
        where = f"{found['mode']}; {found['data'].get('split', 'one text')}, {tokens}"
        head = f'<h4>{escape(name)}</h4><p class="quiet">{escape(where)}</p>'
        for layer in found["layers"]:
            counted.setdefault(layer["title"], []).append((head, layer["gates"]))
        return ""

    for name, run in runs.items():
        if name in others:
            add(name, others[name])
        else:
            _measured(counts_file(run), partial(add, name))
    if not counted:
        return f'{title}<p class="quiet">None yet: <code>g2lstm gates RUN</code> counts them.</p>'
    return title + "".join(
        f'<h3>{escape(layer)}</h3><div class="row narrow">{_histograms(each)}</div>' for layer, each in counted.items()
    )


def _histograms(runs: list[tuple[str, Any]]) -> str:
    """One layer of each run, drawn to one scale."""
    curves = [{gate: gates[gate]["counts"] for gate in ("input", "forget")} for _, gates in runs]
    top = max(100 * max(counts) / max(sum(counts), 1) for each in curves for counts in each.values())
    parts = []
    for (head, gates), each in zip(runs, curves, strict=True):
        rows = [
            [gate, f"{numbers['mean']:.3f}", f"{numbers['below_0.1']:.1%}", f"{numbers['above_0.9']:.1%}"]
            for gate, numbers in gates.items()
        ]
        facts = table(["gate", "mean", "below 0.1", "above 0.9"], rows, numbers=(1, 2, 3))
        parts.append(f"<div>{head}{histogram_chart(each, x_title='gate', top=top)}{facts}</div>")
    return "".join(parts)


def _measured(path: Path, show: Callable[[Any], str]) -> str:
    """What is shown of a file of measurements; nothing if there is none."""
    if not os.path.exists(path):
        return ""
    try:
        return show(parse_json(read_bounded(path, _LONGEST)))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise G2Error(f"{path} is not as it was written: {error!r}; delete it, and measure anew") from None
