"""`write_report`: what is known about some runs, side by side, in one file for any browser."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from g2lstm.errors import G2Error
from g2lstm.files import write_whole
from g2lstm.look.examine import count_some, explained_on, named_runs
from g2lstm.look.pictures.curve import Shrunk, draw_shrunk
from g2lstm.look.pictures.histograms import draw_layers
from g2lstm.look.pictures.sentence import draw_attention, draw_timelines, draw_words
from g2lstm.look.pictures.style import GATE_NAMES, svg_element
from g2lstm.look.pictures.training import draw_history, draw_learning, gate_history
from g2lstm.look.summary import same_tokens, summarise
from g2lstm.nn.checks import NOISY_METHODS
from g2lstm.page.palette import css_variables
from g2lstm.recipes.files import recipe_to_toml
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.records import GatesFile
from g2lstm.runs.trained import load
from g2lstm.tasks.reading import Reading
from g2lstm.tasks.recipes import task_of
from g2lstm.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARK = '<meta name="generator" content="g2lstm">'  # in every report, so that no other file is overwritten
_SENTENCES = 2

Runs = Mapping[str, RunDirectory]


class Measured(NamedTuple):
    """A table of what else was measured: texts, the first of each row its name."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def to_html(self) -> str:
        """The table below its title, and the notes below it."""
        texts = (re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(note)) for note in self.notes)
        notes = "".join(f'<p class="quiet">{text}</p>' for text in texts)
        return f"<h2>{escape(self.title)}</h2>{_table(self.head, self.rows, range(1, len(self.head)))}{notes}"


def write_report(
    paths: Sequence[Path],
    out: Path,
    *,
    texts: Sequence[str] | None = None,
    data_dir: Path | None = None,
    measured: Sequence[Measured] = (),
    progress: Callable[[str], None] | None = None,
) -> None:
    """Write a self-contained page about runs: settings, scores, curves, compression, histograms, heat maps.

    It leaves out what a run doesn't have, such as scores, which come from `g2lstm eval`. Histograms come from
    `g2lstm gates` or, failing that, from some validation text if it is available.

    Args:
        paths: run directories, compressed ones too.
        out: the page; replaces an earlier report, but no other file.
        texts: sentences to show as heat maps; by default some of the validation text, if that is available.
        data_dir: where the named data sets are.
        measured: tables that follow the summary.
        progress: called with what is being done.
    """
    check_out(out)
    runs = named_runs(paths)
    say = progress or (lambda _: None)
    say("reading what was measured")
    counts = {name: run.gate_counts() for name, run in runs.items()}
    compressed = _compression(runs)  # first, since it may find a damaged file
    sections = [_summary(runs), *(table.to_html() for table in measured), _learning(runs)]
    readings: dict[str, dict[str, Reading]] = {}  # by sentence and run
    for name, run in runs.items():
        say(f"reading sentences with {name}")
        trained = load(run.path)  # one at a time
        counts[name] = counts[name] or count_some(trained, data_dir)
        for text in trained.examples(_SENTENCES, data_dir) if texts is None else texts:
            readings.setdefault(text, {})[name] = trained.read(text)
    sections += [_histograms(counts), _explained(counts), _sentences(readings, counts), compressed]
    sections += [_scores(runs), _settings(runs), _recipes(runs)]
    write_whole(out, _page(", ".join(runs), [section for section in sections if section]).encode())


def check_out(out: Path) -> None:
    """Raise if a report must not be written there."""
    if out.is_dir():
        raise G2Error(f"{out} is a folder; give the name of a file, such as {out / 'report.html'}")
    if out.exists() and _MARK not in out.read_bytes()[:2000].decode("utf-8", errors="replace"):
        raise G2Error(f"{out} exists and is not one of our reports; choose another name with --out")


def _page(title: str, sections: Sequence[str]) -> str:
    """The whole page; it needs no script, no other file and no network."""
    style = css_variables() + files("g2lstm.look").joinpath("report.css").read_text(encoding="utf-8")
    body = "\n".join(sections)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{_MARK}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>g2lstm: {escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f'<p class="quiet">A report by g2lstm {escape(__version__)}.</p>\n{body}\n</body>\n</html>\n'
    )


def _picture(figure: "Figure", label: str) -> str:
    """A picture in the page; its label is unique there."""
    return f"<figure>{svg_element(figure, label)}</figure>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[int] = ()) -> str:
    """A table of plain texts; `numbers` says which columns are right-aligned."""

    def line(cells: Sequence[str], tag: str) -> str:
        kinds = [' class="number"' if k in numbers else "" for k in range(len(cells))]
        return "<tr>" + "".join(f"<{tag}{k}>{escape(c)}</{tag}>" for c, k in zip(cells, kinds, strict=True)) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table><thead>{line(head, "th")}</thead><tbody>{body}</tbody></table></div>'


def _summary(runs: Runs) -> str:
    """What matters most, as a table, and a sentence on what it shows."""
    found = summarise(runs)
    if found is None:
        return '<p class="quiet">No scores yet; add some with <code>g2lstm eval RUN</code>.</p>'
    head, rows, sentence = found
    return _table(head, rows, numbers=range(1, len(head))) + f"<p>{escape(sentence)}</p>"


def _settings(runs: Runs) -> str:
    """The settings of the runs side by side, without those that no run has."""
    columns = []
    for run in runs.values():
        recipe, model, lines = run.recipe, run.recipe.model, run.metrics()
        facts = {
            "task": task_of(recipe).trained.title,
            "data": recipe.data.name or str(recipe.data.path),
            "method": model.method,
            "tau": "" if model.method == "sigmoid" or model.tau is None else f"{model.tau:g}",
            "noise rate": f"{model.noise_rate:g}" if model.method in NOISY_METHODS else "",
            "sampled gates": model.gates if model.method in NOISY_METHODS else "",
            "embedding": str(model.embedding),
            "hidden": str(model.hidden),
            "layers": str(model.layers),
            "optimiser": recipe.train.optimizer.name,
            "seed": str(recipe.train.seed),
            "trained": "",
            "compression": run.compression or "",
            "weights on disk": f"{run.model_file.stat().st_size / 1e6:,.1f} MB",
        }
        if lines:
            step, tokens, seconds = (lines[-1][key] for key in ("step", "tokens", "seconds"))
            facts["trained"] = f"{step:,} updates, {tokens / 1e6:,.1f} M tokens, {seconds / 60:,.1f} minutes"
        columns.append(facts)
    rows = [[name, *(facts[name] for facts in columns)] for name in columns[0]]
    return "<h2>Settings</h2>" + _table(["", *runs], [row for row in rows if any(row[1:])])


def _scores(runs: Runs) -> str:
    """The scores of the recipes as they are now, each with its signature."""
    rows, others = [], 0
    for name, run in runs.items():
        metric = task_of(run.recipe).trained.metric
        for score in run.results():
            if score.recipe not in (None, run.recipe_hash):
                others += 1
                continue
            options = {key: getattr(score, key, None) for key in ("cache", "dynamic", "beam", "trained_on")}
            how = ", ".join(f"{key} {option}" for key, option in options.items() if option is not None)
            value = f"{metric.title} {getattr(score, metric.name):.2f}"
            if score.bits_per_character is not None and score.unknown_share is not None:
                value += f", {score.bits_per_character:.3f} bits per character, {score.unknown_share:.1%} unknown"
            cells = [name, value, score.split, f"{score.eval_gate} gates", how]
            signatures = [text for text in (score.signature, score.bleu_signature) if text is not None]
            rows.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
            rows.append(f'<td></td><td colspan="4"><code>{"<br>".join(map(escape, signatures))}</code></td>')
    if not rows:
        return '<h2>Scores</h2><p class="quiet">None yet; add some with <code>g2lstm eval RUN</code>.</p>'
    body = "".join(f'<tr class="{("scored", "signature")[k % 2]}">{row}</tr>' for k, row in enumerate(rows))
    left = f'<p class="quiet">Scores of other recipes, left out: {others}.</p>' if others else ""
    return f'<h2>Scores</h2><div class="scroll"><table>{body}</table></div>{left}'


def _learning(runs: Runs) -> str:
    """Scores over training time, and how the values of the gates changed."""
    metrics = {name: lines for name, run in runs.items() if (lines := run.metrics())}
    if not metrics:
        return ""
    curves = ""
    tokens = {name: same_tokens(runs[name]) for name in metrics}
    for kind in dict.fromkeys(tokens.values()):  # a perplexity per token can only be compared with others of that kind
        own = {name: lines for name, lines in metrics.items() if tokens[name] == kind}
        for metric in ("perplexity", "bleu"):
            if (figure := draw_learning(own, metric)) is not None:
                curves += _picture(figure, f"{metric} over training time: {', '.join(own)}")
    html = "<h2>Learning</h2>"
    if curves:
        html += f'<p class="quiet">The pale lines are training batches.</p><div class="row">{curves}</div>'
    html += "<h3>Histograms of the gates over training time</h3>"
    histories = {name: history for name, lines in metrics.items() if (history := gate_history(lines)) is not None}
    if histories:
        html += _picture(draw_history(histories), f"histograms over training time: {', '.join(histories)}")
    if missing := ", ".join(name for name in metrics if name not in histories):
        html += f'<p class="quiet">Not counted while training: {escape(missing)}.</p>'
    return html


def _compression(runs: Runs) -> str:
    """What compressing gained and cost."""
    parts, shrunk = [], dict[tuple[str, ...], list[Shrunk]]()  # models whose scores can be compared share a picture
    for name, run in runs.items():
        if (report := run.compression_report()) is None:
            continue
        sizes = {f"{group}, bytes": size for group, size in report.groups.items()}
        sizes |= {"rest, bytes": report.rest, "whole file, bytes": report.file}
        rows = [
            [what, f"{size.before:,}", f"{size.after:,}", f"{size.before / max(size.after, 1):.2f} ×"]
            for what, size in sizes.items()
        ]
        if (score := report.score) is not None:
            rows.append([f"{score.metric} on {score.split}", f"{score.before:.2f}", f"{score.after:.2f}", ""])
            megabytes = report.file.before / 1e6, report.file.after / 1e6
            same = f"{score.metric} on {score.split}", *same_tokens(run)
            shrunk.setdefault(same, []).append(Shrunk(name, megabytes, (score.before, score.after)))
        if (speed := report.speed) is not None:
            faster = f"{speed.after / speed.before:.2f} ×"
            rows.append([f"{speed.unit}, {speed.how}", f"{speed.before:,.1f}", f"{speed.after:,.1f}", faster])
        parts.append(f"<h3>{escape(name)}</h3><p class='quiet'><code>{escape(report.spec)}</code></p>")
        parts.append(_table(["", "before", "after", "smaller or faster"], rows, numbers=(1, 2, 3)))
    pictures = "".join(
        _picture(draw_shrunk(models, title), f"{title} against size: {', '.join(model.label for model in models)}")
        for (title, *_), models in shrunk.items()
    )
    return f"<h2>Compression</h2>{pictures}{''.join(parts)}" if parts else ""


def _histograms(counts: Mapping[str, GatesFile | None]) -> str:
    """Histograms of all gates, layer by layer; runs with the same layers are drawn together."""
    groups: dict[tuple[str, ...], dict[str, GatesFile]] = {}
    for name, each in counts.items():
        if each is not None:
            groups.setdefault(tuple(layer.title for layer in each.layers), {})[name] = each
    none = '<p class="quiet">None yet; count gates with <code>g2lstm gates RUN</code>.</p>'
    return "<h2>Histograms of the gates</h2>" + ("".join(map(_same_layers, groups.values())) or none)


def _same_layers(runs: Mapping[str, GatesFile]) -> str:
    html = ""
    for name, each in runs.items():
        tokens = ", ".join(f"{count:,} {side} tokens" for side, count in each.data.tokens.items())
        said = f"{name}: {each.mode}; {each.data.split or 'one text'}, {tokens}"
        html += f'<p class="quiet">{escape(said)}</p>'
    modes = " / ".join(dict.fromkeys(each.mode for each in runs.values()))
    layers = {name: each.model_dump(by_alias=True)["layers"] for name, each in runs.items()}
    rows = [
        [layer.title, gate, name, f"{each.mean:.3f}", f"{each.below:.1%}", f"{each.above:.1%}"]
        for same in zip(*(each.layers for each in runs.values()), strict=True)
        for gate in same[0].gates
        for name, layer in zip(runs, same, strict=True)
        for each in [layer.gates[gate]]
    ]
    facts = _table(["layer", "gate", "run", "mean", "below 0.1", "above 0.9"], rows, numbers=(3, 4, 5))
    html += _picture(draw_layers(layers, modes), f"histograms of the gates: {', '.join(runs)}")
    return f"{html}<details><summary>Numbers</summary>{facts}</details>"


def _explained(counts: Mapping[str, GatesFile | None]) -> str:
    """The units whose gates respond to a feature that can be named, with examples."""
    parts = []
    for name, found in counts.items():
        if found is None or not found.explained:
            continue
        rows = []
        for one in found.explained:
            numbers = [f"{one.open_with:.0%}", f"{one.open_without:.0%}", f"{one.phi:+.2f}"]
            cells = "".join(f"<td>{escape(text)}</td>" for text in (one.title, one.gate, str(one.unit), one.feature))
            cells += "".join(f'<td class="number">{text}</td>' for text in numbers)
            examples = "<br>".join(each.marked("<mark>", "</mark>", escape) for each in one.examples)
            rows.append(f'<tr class="scored">{cells}</tr><tr class="signature"><td colspan="7">{examples}</td></tr>')
        head = "".join(
            f"<th>{text}</th>" for text in ("layer", "gate", "unit", "feature", "open there", "elsewhere", "φ")
        )
        parts.append(f"<h3>{escape(name)}</h3>")
        parts.append(f'<div class="scroll"><table><thead><tr>{head}</tr></thead>{"".join(rows)}</table></div>')
    if not parts:
        return ""
    how = (
        "Chosen on half of the text, measured on the other half. In the examples, the gate is open at the marked words."
    )
    return f'<h2>Units that can be explained</h2><p class="quiet">{how}</p>{"".join(parts)}'


def _sentences(readings: Mapping[str, Mapping[str, Reading]], counts: Mapping[str, GatesFile | None]) -> str:
    if not readings:
        return ""
    how = "Gates from 0 to 1, averaged over the units of a layer; then single units."
    parts = [f'<h2>Sentences</h2><p class="quiet">{how}</p>']
    for text, by_run in readings.items():
        parts.append(f"<h3>{escape(text)}</h3>")
        for name, reading in by_run.items():
            if reading.translation:
                parts.append(f"<p>{escape(name)}: {escape(reading.translation)}</p>")
        for side in dict.fromkeys(side for reading in by_run.values() for side in reading.tokens):
            own = {name: reading for name, reading in by_run.items() if side in reading.tokens}
            figure = draw_words(own, side, tuple(GATE_NAMES))
            parts.append(_picture(figure, f"gates at each token of the {side}: {', '.join(own)}; {text}"))
            units = {name: explained_on(side, reading, counts[name]) for name, reading in own.items()}
            own = {name: reading for name, reading in own.items() if units[name]}
            if own:
                figure = draw_timelines(own, side, units)
                parts.append(_picture(figure, f"units at each token of the {side}: {', '.join(own)}; {text}"))
        if looked := {name: reading for name, reading in by_run.items() if reading.attention is not None}:
            parts.append(_picture(draw_attention(looked), f"attention: {', '.join(looked)}; {text}"))
    return "".join(parts)


def _recipes(runs: Runs) -> str:
    each = "".join(
        f"<details><summary>{escape(name)}</summary><pre>{escape(recipe_to_toml(run.recipe))}</pre></details>"
        for name, run in runs.items()
    )
    return f"<h2>Recipes</h2>{each}"
