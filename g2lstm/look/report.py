"""`write_report`: what is known about some runs, side by side, in one file for any browser."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from g2lstm.errors import G2Error
from g2lstm.files import write_atomically
from g2lstm.look.examine import GatesFile, count_some, named_runs
from g2lstm.look.pictures.sentence import draw_words
from g2lstm.look.pictures.style import GATE_NAMES, css_variables
from g2lstm.look.report_sections import Runs, compression, histograms, learning, picture, scores, settings
from g2lstm.recipes.files import recipe_to_toml
from g2lstm.runs.trained import load
from g2lstm.tasks.reading import Reading
from g2lstm.version import __version__

_MARK = '<meta name="generator" content="g2lstm">'  # in every report, so that no other file is overwritten
_SENTENCES = 2


def write_report(
    paths: Sequence[Path],
    out: Path,
    *,
    texts: Sequence[str] | None = None,
    data_dir: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Write a self-contained page about runs: settings, scores, curves, compression, histograms, heat maps.

    It leaves out what a run doesn't have, such as scores, which come from `g2lstm eval`. Histograms are those of
    `g2lstm gates`, or of some validation text if that is available.

    Args:
        paths: run directories, compressed ones too.
        out: the page; replaces an earlier report, but no other file.
        texts: sentences to show heat maps of; by default some of the validation text, if that is available.
        data_dir: where the named data sets are.
        progress: called with what is being done.
    """
    check_out(out)
    runs = named_runs(paths)
    say = progress or (lambda _: None)
    say("reading what was measured")
    counts = {name: found for name, run in runs.items() if (found := GatesFile.of_run(run)) is not None}
    compressed = compression(runs)  # first, since it may find a damaged file
    sections = [settings(runs), scores(runs), learning(runs), compressed]
    readings: dict[str, dict[str, Reading]] = {}  # by sentence and run
    for name, run in runs.items():
        say(f"reading sentences with {name}")
        trained = load(run.path)  # one at a time
        if name not in counts and (counted := count_some(trained, data_dir)) is not None:
            counts[name] = counted
        for text in trained.examples(_SENTENCES, data_dir) if texts is None else texts:
            readings.setdefault(text, {})[name] = trained.read(text)
    ordered = {name: counts[name] for name in runs if name in counts}
    sections += [histograms(ordered), _sentences(readings), _recipes(runs)]
    with write_atomically(out) as file:
        file.write(_page(", ".join(runs), [section for section in sections if section]).encode())


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


def _sentences(readings: Mapping[str, Mapping[str, Reading]]) -> str:
    if not readings:
        return ""
    parts = ["<h2>Sentences</h2><p class='quiet'>Gates from 0 to 1, averaged over the units of a layer.</p>"]
    for text, by_run in readings.items():
        parts.append(f"<h3>{escape(text)}</h3>")
        parts += [
            f"<p>{escape(name)}: {escape(reading.translation)}</p>"
            for name, reading in by_run.items()
            if reading.translation
        ]
        for side in dict.fromkeys(side for reading in by_run.values() for side in reading.tokens):
            own = {name: reading for name, reading in by_run.items() if side in reading.tokens}
            figure = draw_words(own, side, tuple(GATE_NAMES))
            parts.append(picture(figure, f"gates at each token of the {side}: {', '.join(own)}; {text}"))
    return "".join(parts)


def _recipes(runs: Runs) -> str:
    each = "".join(
        f"<details><summary>{escape(name)}</summary><pre>{escape(recipe_to_toml(run.recipe))}</pre></details>"
        for name, run in runs.items()
    )
    return f"<h2>Recipes</h2>{each}"
