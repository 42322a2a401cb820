"""`g2lstm compress`: makes a run smaller, and says what that gains and costs."""

import math
import re
import shlex
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from g2lstm.cli.progress import bar
from g2lstm.cli.shared import UNKNOWN, DataDir, Json, Run, console, print_json, say, table, tell, usable
from g2lstm.cli.train import train_with_bar
from g2lstm.compression.spec import PRESETS, Spec
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from g2lstm.compression.curve import Found
    from g2lstm.tasks.recipes import Recipe
    from g2lstm.tasks.trained import Trained
    from g2lstm.training.progress import TrainingProgress

_LARGE_SHARE = 0.2  # as a loss; who writes 0.5 mostly means 0.5%

HELP = "\n\n".join(
    [
        "Make a run smaller: write a compressed run, which every command accepts, and show what that gains and costs.",
        'A SPEC says what to do to which weights: "group=operation,operation; group=operation". A single operation '
        "applies to all groups.",
        "Groups: gates, the matrices of the input and forget gates; cell, the matrices of the output gate and the "
        "candidate; plain, both in torch's own layers; embedding, including a softmax that is tied to it; softmax, if "
        "it has weights of its own; linear, all other linear layers and attention. Biases and groups that are not "
        "named stay as they are.",
        "Operations: round:R rounds to multiples of R; round:R,clip:C also clips to ±C; int8, int6, int3 and int2 "
        "store that many bits per weight and a scale per row; levels:K stores K levels and a scale per row, levels:3 "
        "in 1.6 bits; int4 stores four bits per weight and a scale per 32 columns; int2,group:64 stores a scale per "
        "64 columns, as do int3, int4 and levels:K with group:K; bits:B stores any number of bits from 1 to 6, such as "
        "1.8, with codes of different lengths; bits:B,zipf spends more of them on the first rows, for embeddings of "
        "words that are sorted by frequency; svd:K reduces the rank to K, stored as two thin matrices; svd:K,int4 "
        "also packs these; keep leaves weights as they are.",
        'What follows "pattern:" applies to modules or parameters whose names match, and the most specific pattern '
        'wins: "int8; layers.0: gates=levels:5; *.weight_ih_l0: keep".',
        "A SPEC can also be the name of a preset:",
        "\n".join(f"  {name:<16} {text.replace('; ', ';' + chr(10) + ' ' * 19)}" for name, text in PRESETS.items()),
        "small is the best choice without training; tiny, two bits per weight, needs --finetune.",
        "Few bits cost little after a short finetune: --finetune EPOCHS trains with the weights as they will be "
        "stored, at a quarter of the recipe's learning rate, and keeps the best validation. Ctrl-C saves the state and "
        "exits with code 130; --resume continues from there.",
        "Without a SPEC, a search finds the encoding of each matrix: --max-loss 0.5% finds the smallest file whose "
        "perplexity on the validation text rises by no more than that, --budget 2MB the best model in a file of that "
        "size. (For a translation model, it is the perplexity of the references.) It prints the curve that it found, "
        "and the spec. A search that was stopped continues with the same command: RUN/search.json keeps what was "
        "measured, for other bounds too.",
        "Examples: `g2lstm compress runs/ptb-small small`, `g2lstm compress runs/ptb-small tiny --finetune 2`, "
        "`g2lstm compress runs/ptb-small --max-loss 0.5%`, "
        '`g2lstm compress runs/ptb-small "gates=round:0.2,clip:0.4; cell=int8"`',
    ]
)


def compress(
    run: Run,
    spec: Annotated[
        str | None, typer.Argument(help="What to do to which weights, or a preset; see above.", show_default=False)
    ] = None,
    max_loss: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Search: how much the perplexity may rise, such as 0.5%.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Search: the largest file allowed, such as 2MB.")
    ] = None,
    finetune: Annotated[
        int | None, typer.Option(min=1, metavar="EPOCHS", help="Train with the weights as they will be stored.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a finetune that has already begun.")] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the finetune's recipe; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The new run directory; RUN+SPEC by default.", callback=usable)
    ] = None,
    split: Annotated[str, typer.Option(help="The split to score: test, valid or train.")] = "test",
    cache: Annotated[bool, typer.Option("--cache", help="Score with the recipe's cache pointer.")] = False,
    no_score: Annotated[bool, typer.Option("--no-score", help="Only compress; this needs no data.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """See `HELP`."""
    if no_score and cache:
        raise G2Error("--no-score and --cache contradict each other; leave one out")
    if finetune is None and (resume or overrides):
        raise G2Error(f"{'--resume' if resume else '--set'} needs --finetune EPOCHS: without it nothing is trained")
    named, bounds = _what(spec, max_loss, budget)

    from g2lstm.runs.compressed import (
        beside,
        check_compressible,
        check_free,
        compress_run,
        default_folder,
        write_report,
    )
    from g2lstm.runs.directory import RunDirectory
    from g2lstm.runs.trained import load
    from g2lstm.tasks.trained import Scoring

    check_compressible(RunDirectory.open(run))
    trained = load(run)
    scoring = Scoring(split, cache=cache, data_dir=data_dir)
    trained.check_scoring(scoring)
    folder = out or (beside(run, named) if spec is None else default_folder(run, spec))
    how = None if no_score else scoring
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if finetune is None:
            check_free(folder)
        elif how is not None:
            trained.files(split, data_dir)  # a split that is missing is noticed now, not after the training
        found = _searched(trained, bounds, data_dir, is_shown=not as_json) if spec is None else None
        chosen = Spec.parse(named) if found is None else found.spec
        more: dict[str, Any] = {} if found is None else {"search": {**bounds, **_curve(found)}}
        seconds = 0.0
        if finetune is not None:
            from g2lstm.training.distill import finetune_recipe

            recipe = finetune_recipe(trained.run, chosen, finetune, overrides or ())
            command = ["compress", str(run), str(chosen), "--finetune", str(finetune), "--out", str(folder)]
            command += [word for one in overrides or () for word in ("--set", one)]
            command += ["--cache"] * cache + ["--no-score"] * no_score + ["--split", split] * (split != "test")
            progress = train_with_bar(recipe, folder, resume, data_dir, command)
            if progress is None:  # not the first process
                return
            more["finetune"], seconds = _done(recipe, progress), progress.seconds
        with bar() as show:
            if finetune is None:
                report = compress_run(trained, chosen, folder, show, how, more)
            else:
                report = write_report(trained, folder, show, how, seconds, more)
    if found is not None:
        from g2lstm.look.pictures.curve import draw_curve
        from g2lstm.look.pictures.style import save

        save(draw_curve(found), folder / "curve")
    for warning in caught:
        tell(str(warning.message))
    if as_json:
        print_json({"out": str(folder), **report})
        return
    console().print(_table(report, f"{run} → {folder}"))
    say(f"next: g2lstm eval {shlex.quote(str(folder))}")


def _what(spec: str | None, max_loss: str | None, budget: str | None) -> tuple[str, dict[str, Any]]:
    """What the new run is called after, and the bound of a search for its spec."""
    given = [spec is not None, max_loss is not None, budget is not None]
    if sum(given) != 1:
        raise G2Error("give one of SPEC, --max-loss SHARE and --budget BYTES" + (", not several" if any(given) else ""))
    if max_loss is not None:
        return f"max-loss-{max_loss.replace('%', 'pct')}", {"max_loss": _share(max_loss)}
    if budget is not None:
        return f"budget-{budget}", {"budget": _bytes(budget)}
    assert spec is not None
    Spec.parse(spec)
    return spec, {}


def _share(text: str) -> float:
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(%?)\s*", text)
    if found is None or not float(found[1]):
        raise G2Error(f"--max-loss must be a share above 0 such as 0.5% or 0.005, got {text!r}")
    number = float(found[1])
    if not found[2] and number > _LARGE_SHARE:
        raise G2Error(f"--max-loss {text} would allow a loss of {number:.0%}; write {text}% or {number:.0%}")
    return number / (100 if found[2] else 1)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([kMG]?)(i?)B?\s*", text)
    if found is None or not float(found[1]) or (found[3] and not found[2]):
        raise G2Error(f"--budget must be a number of bytes such as 2MB, 500kB, 1.5MiB or 2000000, got {text!r}")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " kMG".index(found[2] or " "))


def _searched(trained: "Trained", bounds: Mapping[str, Any], data_dir: Path | None, is_shown: bool) -> "Found":
    """Searches with a progress bar, and prints the curve."""
    from g2lstm.runs.compressed import search_run

    with bar() as show:
        found = search_run(trained, show, **bounds, data_dir=data_dir)
    if is_shown:
        headings = ("bytes", "ratio", "loss expected", "measured", "")
        console().print(table(headings, found.rows(), title="Perplexity on the validation text", left=0))
        say(str(found.spec))
    return found


def _curve(found: "Found") -> dict[str, Any]:
    """The curve for compression.json."""
    return {"curve": [{**one._asdict(), "spec": str(one.spec)} for one in found.curve]}


def _done(recipe: "Recipe", progress: "TrainingProgress") -> dict[str, Any]:
    """What a finetune was, for compression.json."""
    return {
        "epochs": progress.epochs,
        "updates": progress.step,
        "optimizer": recipe.train.optimizer.model_dump(),
        "best_validation": progress.best_scores,
    }


def _table(report: Mapping[str, Any], title: str) -> Table:
    file = report["file"] | {"bits_per_weight": report["bits_per_weight"]}
    rows: list[list[str] | None] = []
    for name, size in {**report["groups"], "rest": report["rest"], "model.safetensors": file}.items():
        before, after, bits = size["before"], size["after"], size.get("bits_per_weight")
        change = f"÷ {before / after:.2f}" if before >= after else f"+ {after - before:,}"
        if size is file:
            rows.append(None)
        rows.append([f"{name}, bytes", f"{before:,}", f"{after:,}", change, UNKNOWN if bits is None else f"{bits:.2f}"])
    if score := report["score"]:
        before, after, is_bleu = score["before"], score["after"], score["metric"] == "bleu"
        change = f"{after - before:+.2f}" if is_bleu else f"{100 * (after / before - 1):+.2f} %"
        name = f"{'BLEU' if is_bleu else score['metric']} on {score['split']}"
        change = change if math.isfinite(after - before) else UNKNOWN
        rows.append([name, f"{before:.2f}", f"{after:.2f}", change, ""])
    if speed := report["speed"]:
        before, after = speed["before"], speed["after"]
        name = f"{speed['unit']} ({speed['how']}; a short measurement)"
        rows.append([name, f"{before:,.1f}", f"{after:,.1f}", f"× {after / before:.2f}", ""])
    return table(("", "before", "after", "change", "bits per weight"), rows, title=title, caption=report["spec"])
