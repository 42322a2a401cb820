"""`write_report`: what is known of some runs, side by side, in one file that any browser shows."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from g2lstm.config import recipe_to_toml
from g2lstm.data.cache import write_atomically
from g2lstm.errors import G2Error
from g2lstm.inspect.reading import read_sentence
from g2lstm.inspect.report_page import heat_map, page
from g2lstm.inspect.report_sections import Runs, compression, curves, histograms, scores, settings
from g2lstm.inspect.runs import example_sentences, named_runs
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

    What a run has not got is left out: its scores come from `g2lstm eval`, its histograms from `g2lstm gates`.

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
    sections += [settings(runs), scores(runs), curves(runs), compression(runs), histograms(runs)]
    sections.append(_heat_maps(runs, texts, data_dir, say))
    sections.append(_recipes(runs))
    with write_atomically(out) as file:
        file.write(page(title, [section for section in sections if section]).encode())


def check_out(out: Path) -> None:
    """Raises if a report must not be written there."""
    if out.is_dir():
        raise G2Error(f"{out} is a folder; give the name of a file, such as {out / 'report.html'}")
    if out.exists() and _MARK not in out.read_bytes()[:2000].decode("utf-8", errors="replace"):
        raise G2Error(f"{out} exists and is not a report of ours; choose another name with --out")


def _heat_maps(runs: Runs, texts: Sequence[str] | None, data_dir: Path | None, say: Say) -> str:
    maps: dict[str, list[str]] = {}  # by the sentence
    for name, run in runs.items():
        say(f"reading sentences with {name}")
        trained = load(run.path)
        for text in example_sentences(trained, _SENTENCES, data_dir) if texts is None else texts:
            reading = read_sentence(trained, text)
            head = f"<h4>{escape(name)}</h4><p class='quiet'>{escape(reading.mode)}</p>"
            if reading.translation:
                head += f"<p>{escape(reading.translation)}</p>"
            maps.setdefault(text, []).append(f"<div>{head}{heat_map(reading)}</div>")
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
