"""`g2lstm gates`: what the gates of a run do, in numbers and pictures."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import Progress as Bar
from rich.progress import TaskID
from rich.table import Table

from g2lstm.cli.options import DataDir, EvalGate, Json
from g2lstm.cli.output import console, error_console, progress_columns
from g2lstm.errors import G2Error

Runs = Annotated[list[Path], typer.Argument(help="Run directories, made by `g2lstm train`; several are compared.")]


def gates(
    runs: Runs,
    text: Annotated[str | None, typer.Option(help="A sentence, tokenised as the training text was.")] = None,
    split: Annotated[str, typer.Option(help="valid, test, train, or none for the text alone.")] = "valid",
    samples: Annotated[int, typer.Option(min=1, help="Windows of text or sentence pairs at most.")] = 10_000,
    training: Annotated[bool, typer.Option("--training", help="As in training, with noise and dropout.")] = False,
    hard_score: Annotated[bool, typer.Option("--hard-score", help="Score the split with hard and soft gates.")] = False,
    eval_gate: EvalGate = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of noise, dropout and which pairs.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A folder for what is written; RUN/gates if not given.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Counts the gates over a split of the run's own data, and shows what they do at each word of a text.

    Writes gates.json and pictures, PNG and SVG. The mode, evaluation or training, is always said.

    Examples: `g2lstm gates runs/ptb-small --text "the company said it will grow"`,
    `g2lstm gates runs/lstm runs/g2 --split train --out compared`
    """
    from g2lstm.look.examine import examine
    from g2lstm.look.gallery import as_object, write_gallery
    from g2lstm.look.pictures.training import gate_history
    from g2lstm.look.runs import named_runs
    from g2lstm.runs.directory import RunDirectory
    from g2lstm.runs.trained import load

    if len(runs) > 1 and out is None:
        raise G2Error("several runs are compared; say with --out which folder shall hold the comparison")
    if split == "none" and (text is None or hard_score):
        raise G2Error("--split none looks at a text alone; give --text, and leave --hard-score out")
    if out is not None and out.exists() and not out.is_dir():
        raise G2Error(f"{out} is a file; choose a folder with --out")
    folder = out or RunDirectory(runs[0]).own("gates")
    directories = named_runs(runs)
    if len({each.recipe.task for each in directories.values()}) > 1:
        raise G2Error("one run is a language model and another translates; compare runs of one task")
    trained = {name: load(each.path) for name, each in directories.items()}
    findings = {}
    errors = error_console()
    with Bar(*progress_columns(), console=errors, transient=True, disable=not errors.is_terminal) as bar:
        for name, each in trained.items():
            show = partial(_update, bar, bar.add_task(escape(name), total=None))
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
                progress=show,
            )
    files = write_gallery(folder, findings)
    if as_json:
        print(json.dumps(as_object(findings), allow_nan=False))
        return
    for name, found in findings.items():
        _show(found.numbers)
        if found.metrics and gate_history(found.metrics) is None:
            note = f"no histogram over training time: the gates of {name} were not counted while it was trained"
            console().print(escape(note), highlight=False, soft_wrap=True)
    console().print(f"{len(files)} files in {escape(str(files[0].parent))}", highlight=False, soft_wrap=True)


def _update(bar: Bar, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)


def _show(numbers: Mapping[str, Any]) -> None:
    read = ", ".join(f"{count:,} {side} tokens" for side, count in numbers["data"]["tokens"].items())
    where = f"split {numbers['data']['split']}" if "split" in numbers["data"] else "the text"
    table = Table(title=escape(f"{numbers['run']}: {numbers['mode']}; {where}, {read}"), title_justify="left")
    for column in ("layer", "gate"):
        table.add_column(column)
    for column in ("mean", "below 0.1", "above 0.9", "entropy, bits", "distance to 0 or 1", "half-life, steps"):
        table.add_column(column, justify="right")
    for layer in numbers["layers"]:
        for gate, each in layer["gates"].items():
            life = each.get("half_life_steps")
            table.add_row(
                layer["title"] if gate == "input" else "",
                gate,
                f"{each['mean']:.3f}",
                f"{each['below_0.1']:.1%}",
                f"{each['above_0.9']:.1%}",
                f"{each['entropy_bits']:.3f}",
                f"{each['distance_to_nearer_end']:.3f}",
                f"{life['median']:,.1f} ({life['p10']:,.1f} to {life['p90']:,.1f})" if life else "",
                end_section=gate == "output",
            )
    console().print(table)
    if "scores" in numbers:
        scores = numbers["scores"]
        console().print(
            f"{scores['metric']}: {scores['soft']:.2f} with soft gates, {scores['hard']:.2f} with hard ones"
        )
    for each in numbers.get("boundaries", []):
        word, comma = each["auc"]["first_word"], each["auc"]["comma"]
        console().print(
            f"clause boundaries by {each['title']}: AUC {word:.3f} at the first word, {comma:.3f} at the comma"
        )
    if "text" in numbers:
        _show_text(numbers["text"])


def _show_text(text: Mapping[str, Any]) -> None:
    for side, places in text["unknown"].items():
        if places:
            words = " ".join(dict.fromkeys(text["tokens"][side][place] for place in places))
            console().print(escape(f"not in the vocabulary, read as <unk>: {words}"), highlight=False, soft_wrap=True)
    if "translation" in text:
        console().print(escape(f"translation: {text['translation']}"), highlight=False, soft_wrap=True)
    else:
        words = ", ".join(f"{word} {share:.1%}" for word, share in text["next_words"][:5])
        console().print(escape(f"likeliest next words: {words}"), highlight=False, soft_wrap=True)
