"""`write_report`: what is known of some runs, side by side, in one file that any browser shows."""

import os
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from g2lstm.errors import G2Error
from g2lstm.files import write_atomically
from g2lstm.look.reading import Reading, read_sentence
from g2lstm.look.report_page import heat_map, page
from g2lstm.look.report_sections import Runs, compression, counts_file, curves, histograms, scores, settings
from g2lstm.look.runs import count_some, example_sentences, named_runs
from g2lstm.recipes.files import recipe_to_toml
from g2lstm.runs.trained import load
from g2lstm.version import __version__

_MARK = '<meta name="generator" content="g2lstm">'  # in every report, and in no file that should not be overwritten
_SENTENCES = 3

Say = Callable[[str], None]


def write_report(
    paths: Sequence[Path],
    out: Path,
    *,
    texts: Sequence[str] | None = None,
    data_dir: Path | None = None,
    progress: Say | None = None,
) -> None:
    """Writes one self-contained page about runs: settings, scores, curves, compression, histograms, heat maps.

    What a run has not got is left out, such as scores, which come from `g2lstm eval`. Histograms are those of `g2lstm
    gates`; else some of the validation text is counted, if it is here.

    Args:
        paths: run directories, compressed ones too.
        out: the page; one from before is replaced, any other file is not.
        texts: the sentences whose heat maps are shown; else some of the validation text, if it is here.
        data_dir: where named data sets are.
        progress: called with what is being done.
    """
    check_out(out)
    runs = named_runs(paths)
    say = progress or (lambda _: None)
    title = f"g2lstm: {', '.join(runs)}"
    sections = [
        f"<h1>{escape(', '.join(runs))}</h1>",
        f'<p class="quiet">A report by g2lstm {escape(__version__)}.</p>',
    ]
    say("reading what was measured")
    sections += [settings(runs), scores(runs), curves(runs), compression(runs)]
    counted: dict[str, Any] = {}  # where `g2lstm gates` has not
    maps: dict[str, list[str]] = {}  # by the sentence
    for name, run in runs.items():
        say(f"reading sentences with {name}")
        trained = load(run.path)  # one at a time
        if not os.path.exists(counts_file(run)) and (found := count_some(trained, data_dir)) is not None:
            counted[name] = found
        for text in example_sentences(trained, _SENTENCES, data_dir) if texts is None else texts:
            maps.setdefault(text, []).append(_heat_map(name, read_sentence(trained, text)))
    sections += [histograms(runs, counted), _sentences(maps), _recipes(runs)]
    with write_atomically(out) as file:
        file.write(page(title, [section for section in sections if section]).encode())


def check_out(out: Path) -> None:
    """Raises if a report must not be written there."""
    if out.is_dir():
        raise G2Error(f"{out} is a folder; give the name of a file, such as {out / 'report.html'}")
    if out.exists() and _MARK not in out.read_bytes()[:2000].decode("utf-8", errors="replace"):
        raise G2Error(f"{out} exists and is not a report of ours; choose another name with --out")


def _heat_map(name: str, reading: Reading) -> str:
    head = f"<h4>{escape(name)}</h4><p class='quiet'>{escape(reading.mode)}</p>"
    if reading.translation:
        head += f"<p>{escape(reading.translation)}</p>"
    return f"<div>{head}{heat_map(reading)}</div>"


def _sentences(maps: Mapping[str, Sequence[str]]) -> str:
    if not maps:
        return ""
    body = "".join(f"<h3>{escape(text)}</h3>{''.join(each)}" for text, each in maps.items())
    return f"<h2>Sentences</h2><p class='quiet'>The mean of each gate over the units of a layer, 0 to 1.</p>{body}"


def _recipes(runs: Runs) -> str:
    each = "".join(
        f"<details><summary>{escape(name)}</summary><pre>{escape(recipe_to_toml(run.recipe))}</pre></details>"
        for name, run in runs.items()
    )
    return f"<h2>Recipes</h2>{each}"
