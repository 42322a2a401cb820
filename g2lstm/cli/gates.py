"""`g2lstm gates` and `report`: what the gates of runs do, in numbers and pictures, and all else that is known."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from g2lstm.cli.progress import bar
from g2lstm.cli.shared import DataDir, EvalGate, Json, Runs, console, print_json, say, table, tell, usable
from g2lstm.errors import G2Error

_COLUMNS = {  # headings, names of numbers, and their forms
    "mean": ("mean", ".3f"),
    "below 0.1": ("below_0.1", ".1%"),
    "above 0.9": ("above_0.9", ".1%"),
    "entropy, bits": ("entropy_bits", ".3f"),
    "distance to 0 or 1": ("distance_to_nearer_end", ".3f"),
}


def gates(
    runs: Runs,
    text: Annotated[str | None, typer.Option(help="A sentence, tokenised as the training text was.")] = None,
    split: Annotated[
        str, typer.Option(help="The split to count: valid, test or train; none shows only the text.")
    ] = "valid",
    samples: Annotated[int, typer.Option(min=1, help="The most text windows or sentence pairs to read.")] = 10_000,
    training: Annotated[
        bool, typer.Option("--training", help="Look at the gates as in training, with noise and dropout.")
    ] = False,
    hard_score: Annotated[bool, typer.Option("--hard-score", help="Score the split with hard and soft gates.")] = False,
    eval_gate: EvalGate = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="The seed for noise, dropout and the choice of pairs.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write to; RUN/gates by default.", callback=usable)
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Count gate values over a split of the run's own data, and show what the gates do at each word of a text.

    Writes gates.json and pictures as PNG and SVG. All of them say whether the mode was evaluation or training.

    Examples: `g2lstm gates runs/ptb-small --text "the company said it will grow"`,
    `g2lstm gates runs/lstm runs/g2 --split train --out compared`
    """
    from g2lstm.look.examine import as_object, examine, named_runs, write_gallery
    from g2lstm.look.pictures.training import gate_history
    from g2lstm.runs.directory import RunDirectory
    from g2lstm.runs.trained import load

    if len(runs) > 1 and out is None:
        raise G2Error("comparing several runs needs a folder for the comparison; choose one with --out")
    if split == "none" and (text is None or hard_score):
        raise G2Error("--split none shows only a text; give --text, and leave out --hard-score")
    if out is not None and out.exists() and not out.is_dir():
        raise G2Error(f"{out} is a file; choose a folder with --out")
    folder = out or RunDirectory(runs[0]).own("gates")
    directories = named_runs(runs)
    if len({each.recipe.task for each in directories.values()}) > 1:
        raise G2Error("these runs have different tasks; compare runs of the same task")
    trained = {name: load(each.path) for name, each in directories.items()}
    findings = {}
    with bar() as show:
        for name, each in trained.items():
            findings[name] = examine(
                each,
                name,
                split=None if split == "none" else split,
                samples=samples,
                text=text,
                eval_gate=eval_gate,
                training=training,
                seed=seed,
                hard_score=hard_score,
                data_dir=data_dir,
                progress=partial(show, name),
            )
    files = write_gallery(folder, findings)
    if as_json:
        print_json(as_object(findings))
        return
    for name, found in findings.items():
        _show(found.numbers)
        if found.metrics and gate_history(found.metrics) is None:
            say(f"no histogram over training time: the gates of {name} were not counted while it was trained")
    say(f"{len(files)} files in {files[0].parent}")


def _show(numbers: Mapping[str, Any]) -> None:
    read = ", ".join(f"{count:,} {side} tokens" for side, count in numbers["data"]["tokens"].items())
    where = f"split {numbers['data']['split']}" if "split" in numbers["data"] else "the text"
    rows: list[list[str] | None] = []
    for layer in numbers["layers"]:
        for gate, each in layer["gates"].items():
            life = each.get("half_life_steps")
            half = f"{life['median']:,.1f} ({life['p10']:,.1f} to {life['p90']:,.1f})" if life else ""
            values = [format(each[key], form) for key, form in _COLUMNS.values()]
            rows.append([layer["title"] if gate == "input" else "", gate, *values, half])
        rows.append(None)
    headings = ("layer", "gate", *_COLUMNS, "half-life, steps")
    title = f"{numbers['run']}: {numbers['mode']}; {where}, {read}"
    console().print(table(headings, rows, title=title, left=2))
    if numbers["explained"]:
        _show_explained(numbers)
    if "scores" in numbers:
        scores = numbers["scores"]
        say(f"{scores['metric']}: {scores['soft']:.2f} with soft gates, {scores['hard']:.2f} with hard gates")
    if "text" in numbers:
        _show_text(numbers["text"])


def _show_text(text: Mapping[str, Any]) -> None:
    for side, places in text["unknown"].items():
        if places:
            words = " ".join(dict.fromkeys(text["tokens"][side][place] for place in places))
            say(f"not in the vocabulary, read as <unk>: {words}")
    if "translation" in text:
        say(f"translation: {text['translation']}")
    else:
        words = ", ".join(f"{word} {share:.1%}" for word, share in text["next_words"][:5])
        say(f"likeliest next words: {words}")


def _show_explained(numbers: Mapping[str, Any]) -> None:
    from g2lstm.runs.records import Explained

    units = [Explained.model_validate(one) for one in numbers["explained"]]
    rows = []
    for one in units:
        shares = f"{one.open_with:.0%}", f"{one.open_without:.0%}"
        rows.append([one.title, one.gate, str(one.unit), one.feature, *shares, f"{one.phi:+.2f}"])
    title = f"{numbers['run']}: units that respond to a feature, chosen on half of the text and measured on the other"
    headings = ("layer", "gate", "unit", "feature", "open there", "elsewhere", "φ")
    console().print(table(headings, rows, title=title, left=4))
    say("for example, «open»:")
    for one in units:
        for example in one.examples[:1]:
            say(f"  {one.title}, {one.gate} {one.unit}: {example.marked('«', '»')}")


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The file to write.", callback=usable)] = Path("report.html"),
    text: Annotated[
        list[str] | None, typer.Option(help="Show the gates of this sentence; repeatable.", metavar="TEXT")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Write a page about one or more runs, side by side: settings, scores, curves, compression and gates.

    Any browser can show it. Without --text, its sentences come from the validation text, if available.

    Example: `g2lstm report runs/ptb-small runs/ptb-small-sigmoid --out report.html`
    """
    from g2lstm.look.report import write_report

    write_report(runs, out, texts=text, data_dir=data_dir, progress=tell)
    say(f"written: {out}")
