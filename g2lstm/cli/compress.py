"""`g2lstm compress`: a run made smaller, and what that gains and costs; or the curve of all presets."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from g2lstm.cli.options import DataDir, Json, Run
from g2lstm.cli.output import console, error_console
from g2lstm.cli.progress import bar
from g2lstm.compression.spec import PRESETS
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from g2lstm.tasks.trained import Scoring, Trained

_UNKNOWN = "-"  # shown for what was not measured
HELP = "\n\n".join(
    [
        "Makes a run smaller: a new run directory that every command takes, and a table of what that gains and costs.",
        'A SPEC says what is done to which weights: "group=step,step; group=step".',
        "Groups: gates, the matrices of the input and forget gates; cell, those of the output gate and the candidate; "
        "embedding, with a softmax that is tied to it; softmax, where it has weights of its own. What is not named "
        "stays as it is, and so do biases.",
        "Steps: round:R, multiples of R; round:R,clip:C, none of them beyond C; svd:K, rank K, stored as two thin "
        "matrices; int8 or int6, eight or six bits and a scale a row; int4, four bits and a scale for 32 columns; "
        "svd:K,int8 and so on, the thin matrices in such integers.",
        "Or it is the name of a preset:",
        "\n".join(f"  {name:<16} {text}" for name, text in PRESETS.items()),
        "Examples: `g2lstm compress runs/ptb-small small`, `g2lstm compress runs/ptb-small "
        '"gates=round:0.2,clip:0.4; cell=int8"` and `g2lstm compress runs/ptb-small --sweep`',
    ]
)


def compress(
    run: Run,
    spec: Annotated[str | None, typer.Argument(help="What is done to which weights, or a preset; see above.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The new run directory, RUN+SPEC if not given; of a sweep, RUN/sweep.")
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Measure all presets for the run's task; goes on where it was stopped.")
    ] = False,
    split: Annotated[str, typer.Option(help="Where to score: test, valid or train.")] = "test",
    cache: Annotated[bool, typer.Option("--cache", help="Score with the cache pointer, as the recipe has it.")] = False,
    no_score: Annotated[bool, typer.Option("--no-score", help="Only compress; needs no data.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """As `HELP` tells."""
    from g2lstm.compression.spec import Spec

    if (spec is None) != sweep:
        what = "give a SPEC, such as small, or --sweep" if spec is None else "--sweep takes no SPEC; leave one out"
        raise G2Error(f"{what}; `g2lstm compress --help` explains both")
    if no_score and (sweep or cache):
        raise G2Error(f"--no-score and {'--sweep' if sweep else '--cache'} contradict each other; leave one out")
    parsed = None if spec is None else Spec.parse(spec)

    from g2lstm.runs.compressed import check_compressible, compress_run, default_folder
    from g2lstm.runs.directory import RunDirectory
    from g2lstm.runs.trained import load
    from g2lstm.tasks.trained import Scoring

    check_compressible(RunDirectory.open(run))
    trained = load(run)
    scoring = Scoring(split, cache=cache, data_dir=data_dir)
    trained.check_scoring(scoring)
    if spec is None or parsed is None:
        _sweep(trained, out or trained.run.own("sweep"), scoring, as_json)
        return
    folder = default_folder(run, spec) if out is None else out
    with bar() as show:
        report = compress_run(trained, parsed, folder, show, None if no_score else scoring)
    if as_json:
        print(json.dumps({"out": str(folder), **report}))
        return
    console().print(_table(report, f"{run} → {folder}"))
    console().print(f"next: g2lstm eval {folder}", highlight=False, markup=False, soft_wrap=True)


def _sweep(trained: "Trained", folder: Path, scoring: "Scoring", as_json: bool) -> None:
    from g2lstm.lab.bench.curve import PAGE, PICTURE, check_pictures, draw
    from g2lstm.lab.bench.sweep import Sweep

    check_pictures()
    sweep = Sweep(trained, folder, scoring)
    if sweep.is_anew:
        _say(f"{sweep.path} is of other weights, another split or version; everything is measured anew")
    with bar() as show:
        for name in sweep.run(show):
            if not error_console().is_terminal:
                _say(f"{name}: {_outcome(sweep.found, name)}")
    draw(sweep.found, folder)
    if as_json:
        print(json.dumps(sweep.found))
        return
    console().print(_sweep_table(sweep.found))
    for name, left in sweep.found["left_out"].items():
        console().print(f"{name} left out: {left['reason']}", highlight=False, markup=False, soft_wrap=True)
    files = ", ".join(str(path) for path in (sweep.path, folder / PICTURE, folder / PAGE))
    console().print(f"written: {files}", highlight=False, markup=False, soft_wrap=True)


def _say(text: str) -> None:
    error_console().print(text, highlight=False, markup=False, soft_wrap=True)


def _table(report: Mapping[str, Any], title: str) -> Table:
    table = Table(title=escape(title), caption=escape(report["spec"]))
    for heading in ("", "before", "after", "change", "bits a weight"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, size in report["groups"].items():
        table.add_row(f"{name}, bytes", *_bytes(size), f"{size['bits_per_weight']:.2f}")
    table.add_row("rest, bytes", *_bytes(report["rest"]), _UNKNOWN, end_section=True)
    table.add_row("model.safetensors, bytes", *_bytes(report["file"]), f"{report['bits_per_weight']:.2f}")
    score, speed = report["score"], report["speed"]
    if score is None:
        table.add_row("score", _UNKNOWN, _UNKNOWN, _UNKNOWN)
    else:
        change = _change(score["metric"], score["before"], score["after"])
        name = f"{_METRICS[score['metric']]} on {score['split']}"
        table.add_row(name, f"{score['before']:.2f}", f"{score['after']:.2f}", change)
    if speed is None:
        table.add_row("speed", _UNKNOWN, _UNKNOWN, _UNKNOWN)
    else:
        rates = [f"{speed[key]:,.1f}" for key in ("before", "after")]
        name = f"{speed['unit']} ({speed['how']}; a short measurement)"
        table.add_row(name, *rates, f"× {speed['after'] / speed['before']:.2f}")
    return table


def _sweep_table(sweep: Mapping[str, Any]) -> Table:
    metric, before = sweep["metric"], sweep["before"]
    own = before["score"][metric]
    points = sweep["points"].items()
    speeds = [point["speed"] for _, point in points if point["speed"] is not None]
    table = Table(title=escape(f"{sweep['run']}, {_METRICS[metric]} on {sweep['split']}"))
    unit = speeds[0]["unit"] if speeds else "speed"
    for heading in ("preset", "spec", "bytes", "smaller", "bits a weight", _METRICS[metric], "change", unit, "faster"):
        table.add_column(heading, justify="left" if heading in ("preset", "spec") else "right")
    bits = f"{before['bits_per_weight']:.2f}"
    table.add_row(_UNKNOWN, "as trained", f"{before['bytes']:,}", "", bits, f"{own:.2f}", end_section=True)
    for name, point in sorted(points, key=lambda pair: -pair[1]["file"]["after"]):
        size, speed, found = point["file"], point["speed"], point["score"]["after"]
        rate = (_UNKNOWN, _UNKNOWN)
        if speed is not None:
            rate = (f"{speed['after']:,.1f}", f"× {speed['after'] / speed['before']:.2f}")
        table.add_row(
            name, point["spec"], f"{size['after']:,}", f"{size['ratio']:.1f} ×", f"{point['bits_per_weight']:.2f}",
            f"{found:.2f}", _change(metric, own, found), *rate,
        )  # fmt: skip
    return table


_METRICS = {"perplexity": "perplexity", "bleu": "BLEU"}


def _outcome(sweep: Mapping[str, Any], name: str) -> str:
    if name in sweep["left_out"]:
        return f"left out: {sweep['left_out'][name]['reason']}"
    point = sweep["points"][name]
    return f"{point['file']['after']:,} bytes, {_METRICS[sweep['metric']]} {point['score']['after']:.2f}"


def _bytes(size: Mapping[str, Any]) -> tuple[str, str, str]:
    before, after = size["before"], size["after"]
    return f"{before:,}", f"{after:,}", f"÷ {before / after:.2f}" if before >= after else f"+ {after - before:,}"


def _change(metric: str, before: float, after: float) -> str:
    """Of a perplexity in per cent, of BLEU in points."""
    if not (math.isfinite(before) and math.isfinite(after)):
        return _UNKNOWN
    return f"{100 * (after / before - 1):+.2f} %" if metric == "perplexity" else f"{after - before:+.2f}"
