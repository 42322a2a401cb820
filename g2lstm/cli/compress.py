"""`g2lstm compress`: makes a run smaller and says what that gains and costs; or measures all presets."""

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from g2lstm.cli.options import DataDir, Json, Run
from g2lstm.cli.output import UNKNOWN, console, error_console, print_json, say, table, tell
from g2lstm.cli.progress import bar
from g2lstm.compression.spec import PRESETS
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from g2lstm.runs.records import CompressionReport, Sizes, SweepFile
    from g2lstm.tasks.trained import Scoring, Trained

_METRICS = {"perplexity": "perplexity", "bleu": "BLEU"}
HELP = "\n\n".join(
    [
        "Make a run smaller: write a new run directory, which every command accepts, and show the gains and the costs.",
        'A SPEC says what to do to which weights: "group=operation,operation; group=operation".',
        "Groups: gates, the matrices of the input and forget gates; cell, those of the output gate and the candidate; "
        "embedding, together with a softmax that is tied to it; softmax, if it has weights of its own. Biases and "
        "groups that are not named stay as they are.",
        "Operations: round:R rounds to multiples of R; round:R,clip:C also limits them to C; svd:K keeps rank K, "
        "stored as two thin matrices; int8 and int6 store eight or six bits per weight and a scale per row; int4 "
        "stores four bits per weight and a scale per 32 columns; svd:K,int8 and the like store the thin matrices so.",
        "A SPEC can also be the name of a preset:",
        "\n".join(f"  {name:<16} {text}" for name, text in PRESETS.items()),
        "Examples: `g2lstm compress runs/ptb-small small`, `g2lstm compress runs/ptb-small "
        '"gates=round:0.2,clip:0.4; cell=int8"` and `g2lstm compress runs/ptb-small --sweep`',
    ]
)


def compress(
    run: Run,
    spec: Annotated[str | None, typer.Argument(help="What to do to which weights, or a preset; see above.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The new run directory, by default RUN+SPEC; for a sweep, RUN/sweep.")
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Measure every preset for the run's task; continues where it stopped.")
    ] = False,
    split: Annotated[str, typer.Option(help="The split to score: test, valid or train.")] = "test",
    cache: Annotated[
        bool, typer.Option("--cache", help="Score with the cache pointer that the recipe describes.")
    ] = False,
    no_score: Annotated[bool, typer.Option("--no-score", help="Only compress; this needs no data.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """See `HELP`."""
    from g2lstm.compression.spec import Spec

    if (spec is None) != sweep:
        what = "give a SPEC, such as small, or --sweep" if spec is None else "--sweep takes no SPEC; leave one out"
        raise G2Error(f"{what}; `g2lstm compress --help` explains both")
    if no_score and (sweep or cache):
        raise G2Error(f"--no-score and {'--sweep' if sweep else '--cache'} contradict each other; leave one out")
    parsed = None if spec is None else Spec.parse(spec)

    from g2lstm.runs.compressed import check_compressible, compress_run, default_folder
    from g2lstm.runs.directory import RunDirectory
    from g2lstm.runs.records import CompressionReport
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
        print_json({"out": str(folder), **report})
        return
    console().print(_table(CompressionReport.model_validate(report), f"{run} → {folder}"))
    say(f"next: g2lstm eval {shlex.quote(str(folder))}")


def _sweep(trained: "Trained", folder: Path, scoring: "Scoring", as_json: bool) -> None:
    from g2lstm.lab.bench.sweep import Sweep
    from g2lstm.runs.records import without_none

    sweep = Sweep(trained, folder, scoring)
    if sweep.starts_over:
        tell(f"{sweep.path} is of other weights, another split or another version; measuring everything again")
    with bar() as show:
        for name in sweep.run(show):
            if not error_console().is_terminal:
                tell(f"{name}: {_outcome(sweep.found, name)}")
    if as_json:
        print_json(without_none(sweep.found))
        return
    console().print(_sweep_table(sweep.found))
    for name, left in sweep.found.left_out.items():
        say(f"{name} left out: {left.reason}")
    say(f"written: {sweep.path}")


def _table(report: "CompressionReport", title: str) -> Table:
    rows: list[list[str] | None] = [[f"{name}, bytes", *_bytes(size)] for name, size in report.groups.items()]
    whole = report.file.model_copy(update={"bits_per_weight": report.bits_per_weight})
    rows += [["rest, bytes", *_bytes(report.rest)], None, ["model.safetensors, bytes", *_bytes(whole)]]
    score, speed = report.score, report.speed
    if score is None:
        rows.append(["score", UNKNOWN, UNKNOWN, UNKNOWN, ""])
    else:
        change = _change(score.metric, score.before, score.after)
        name = f"{_METRICS[score.metric]} on {score.split}"
        rows.append([name, f"{score.before:.2f}", f"{score.after:.2f}", change, ""])
    if speed is None:
        rows.append(["speed", UNKNOWN, UNKNOWN, UNKNOWN, ""])
    else:
        name = f"{speed.unit} ({speed.how}; a short measurement)"
        rows.append([name, f"{speed.before:,.1f}", f"{speed.after:,.1f}", f"× {speed.after / speed.before:.2f}", ""])
    return table(("", "before", "after", "change", "bits per weight"), rows, title=title, caption=report.spec)


def _sweep_table(sweep: "SweepFile") -> Table:
    metric, own, before = sweep.metric, sweep.score_before, sweep.before
    assert before is not None, "the run itself is measured first"
    bits = f"{before.bits_per_weight:.2f}"
    rows: list[list[str] | None] = [
        [UNKNOWN, "as trained", f"{before.bytes:,}", "", bits, f"{own:.2f}", "", "", ""],
        None,
    ]
    unit = "speed"
    for name, point in sorted(sweep.points.items(), key=lambda pair: -pair[1].file.after):
        size, speed, found = point.file, point.speed, sweep.score_of(name)
        rate = [UNKNOWN, UNKNOWN]
        if speed is not None:
            unit = speed.unit
            rate = [f"{speed.after:,.1f}", f"× {speed.after / speed.before:.2f}"]
        sizes = [f"{size.after:,}", f"{size.before / size.after:.1f} ×", f"{point.bits_per_weight:.2f}"]
        rows.append([name, point.spec, *sizes, f"{found:.2f}", _change(metric, own, found), *rate])
    headings = ("preset", "spec", "bytes", "smaller", "bits per weight", _METRICS[metric], "change", unit, "faster")
    return table(headings, rows, title=f"{sweep.run}, {_METRICS[metric]} on {sweep.split}", left=2)


def _outcome(sweep: "SweepFile", name: str) -> str:
    if name in sweep.left_out:
        return f"left out: {sweep.left_out[name].reason}"
    return f"{sweep.points[name].file.after:,} bytes, {_METRICS[sweep.metric]} {sweep.score_of(name):.2f}"


def _bytes(size: "Sizes") -> tuple[str, str, str, str]:
    before, after = size.before, size.after
    change = f"÷ {before / after:.2f}" if before >= after else f"+ {after - before:,}"
    return (
        f"{before:,}",
        f"{after:,}",
        change,
        UNKNOWN if size.bits_per_weight is None else f"{size.bits_per_weight:.2f}",
    )


def _change(metric: str, before: float, after: float) -> str:
    """The change in per cent for perplexity, in points for BLEU."""
    if not (math.isfinite(before) and math.isfinite(after)):
        return UNKNOWN
    return f"{100 * (after / before - 1):+.2f} %" if metric == "perplexity" else f"{after - before:+.2f}"
