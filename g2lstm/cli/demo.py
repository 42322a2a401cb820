"""`g2lstm demo`: trains, scores, compresses and compares three methods on embedded data."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from g2lstm.cli.options import Json, Set
from g2lstm.cli.output import UNKNOWN, console, print_json, say, table, tell
from g2lstm.cli.progress import bar
from g2lstm.cli.study import carry_out
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from g2lstm.compression.spec import Spec
    from g2lstm.lab.study.plan import Study
    from g2lstm.lab.study.table import StudyTable

PRESET = "small"
_WINDOWS = 100  # of the validation text, to count gates on
_NEXT = """With your own text, in a folder that holds train.txt, valid.txt and test.txt:
  g2lstm train embedded --set data.path=FOLDER --out runs/mine
  g2lstm compress runs/mine small
  g2lstm view runs/mine
In your own script: g2lstm.convert_(model) before training, g2lstm.freeze_(model) after."""


def demo(
    out: Annotated[Path, typer.Option(help="The folder for the runs, table.json and report.html.")] = Path("runs/demo"),
    minutes: Annotated[
        float | None, typer.Option(min=0.001, help="Training time for each method; 1.2 by default.")
    ] = None,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Train an LSTM, a sharpened LSTM and a G² model on embedded text, and compare them.

    Each is scored, compressed with the paper's settings and with the preset `small`, and its gates are counted. It
    needs no download, and at most five minutes on two cores. You can stop it at any time; the same command continues.
    """
    from g2lstm.lab.study.runner import jobs_of
    from g2lstm.lab.study.studies import demo as plan
    from g2lstm.look.report import check_out
    from g2lstm.runs.compressed import default_folder, write_json

    report = out / "report.html"
    check_out(report)
    study = plan([*([] if minutes is None else [f"train.minutes={minutes}"]), *(overrides or ())])
    jobs = jobs_of(study, out)
    for job in jobs:
        if job.training is None and (small := default_folder(out / job.run.name, PRESET)).exists():
            raise G2Error(f"{small} was made from another {job.run.name} than the demo would train; move it away too")
    made = [report, *(default_folder(out / job.run.name, PRESET) for job in jobs)]
    is_done = all(job.is_done for job in jobs) and all(path.exists() for path in made)
    if not is_done:
        report.unlink(missing_ok=True)  # what it shows is about to change
    else:
        tell(f"found the results of an earlier demo in {out}; choose another folder with --out to run it again")
    for note in (note for job in jobs for note in job.notes):
        tell(f"note: {note}")
    failures = carry_out(jobs, out)
    for run, reason in failures.items():
        tell(f"{run} failed: {reason}")
    if failures:
        raise typer.Exit(2)
    try:
        _look([out / run.name for run in study.runs], report, is_done)
    except KeyboardInterrupt:
        tell("interrupted; finished work is kept; the same command continues")
        raise typer.Exit(130) from None
    rows, found = demo_rows(study, out)
    facts = {"rows": rows, "signatures": found.signatures}
    write_json(out / "table.json", facts)
    if as_json:
        print_json({"out": str(out), "report": str(report), **facts})
        return
    console().print(_table(rows, study.title))
    for line in (*found.notes, f"Report: {report.absolute()}", _NEXT):
        say(line)


def _look(runs: Sequence[Path], report: Path, is_done: bool) -> None:
    """Compresses the runs with the preset, counts their gates and writes the report, as far as that is not done."""
    from g2lstm.compression.spec import Spec
    from g2lstm.look.report import write_report
    from g2lstm.runs.compressed import compress_run, default_folder
    from g2lstm.runs.trained import load
    from g2lstm.tasks.trained import Scoring

    small = [default_folder(run, PRESET) for run in runs]
    with bar() as show:
        for run, folder in zip(runs, small, strict=True):
            if folder.exists():
                _check_small(folder, Spec.parse(PRESET), run)
            else:
                compress_run(load(run), Spec.parse(PRESET), folder, show, Scoring("test"))
            _count_gates(run, partial(show, f"counting the gates of {run.name}"))
        if not is_done:
            show("writing the report", 0, 1)
            write_report([*runs, *small], report)
            show("writing the report", 1, 1)


def _check_small(folder: Path, spec: "Spec", run: Path) -> None:
    """Raises unless this compressed run is what the demo would make from the run."""
    from g2lstm.lab.study.plan import Measurement
    from g2lstm.lab.study.results import measured
    from g2lstm.runs.directory import RunDirectory

    before = measured(run, Measurement())
    assert before is not None, "the study comes first"
    small = RunDirectory.open(folder)
    try:
        report = small.compression_report()
    except G2Error:
        report = None
    score = None if report is None else report.score
    is_its_own = score is not None and math.isclose(score.before, before.score, rel_tol=1e-6) and score.split == "test"
    if not is_its_own or small.compression != str(spec):
        raise G2Error(f"{folder} was not made by this demo; move it away")


def _count_gates(run: Path, progress: Any) -> None:
    """Counts them unless those of the same weights are there."""
    from g2lstm.lab.study.results import Origin, read, weights_of
    from g2lstm.look.examine import examine
    from g2lstm.runs.compressed import write_json
    from g2lstm.runs.directory import RunDirectory
    from g2lstm.runs.trained import load

    file, weights = RunDirectory(run).own("gates") / "gates.json", weights_of(run)
    if not file.is_file() or read(file, Origin).weights != weights:
        found = examine(load(run), run.name, split="valid", samples=_WINDOWS, eval_gate="soft", progress=progress)
        write_json(file, {**found.numbers, "weights": weights})


def demo_rows(study: "Study", out: Path) -> "tuple[list[dict[str, Any]], StudyTable]":
    """The rows of the table, each with its name, its unit and a value for each method; and the study's own table."""
    from g2lstm.lab.study.table import build
    from g2lstm.runs.compressed import default_folder
    from g2lstm.runs.directory import RunDirectory

    (plan,) = study.tables
    found = build(plan, study.runs, out)
    chances = {one.column: one.difference.p_value for one in found.comparisons}
    rows = []
    for index, column in enumerate(plan.columns):
        unit = "share" if column.what == "saturation" else "change" if column.against else "perplexity"
        title = f"  gates {column.title}" if column.against else column.title
        values = [cells[index].values for _, cells in found.rows]
        row = _row(title, unit, [value[0] if value else None for value in values])
        rows.append(row | {"p_value": chances.get(column.title)})
    found_reports = [RunDirectory(default_folder(out / run.name, PRESET)).compression_report() for run in study.runs]
    reports = [report for report in found_reports if report is not None]
    changes = [None if report.score is None else report.score.after - report.score.before for report in reports]
    speeds = [report.speed for report in reports if report.speed is not None]
    more = [
        _row(f"  preset {PRESET} (all weights)", "change", changes),
        _row("size", "bytes", [report.file.before for report in reports]),
        _row(f"size, {PRESET}", "bytes", [report.file.after for report in reports]),
        _row(speeds[0].unit, "rate", [speed.before for speed in speeds]),
        _row(f"{speeds[0].unit}, {PRESET}", "rate", [speed.after for speed in speeds]),
    ]
    return [*rows[:-1], *more, rows[-1]], found


def _row(what: str, unit: str, values: Sequence[float | None]) -> dict[str, Any]:
    from g2lstm.lab.study.plan import METHODS

    return {"what": what, "unit": unit, **dict(zip(METHODS, values, strict=True))}


def _table(rows: Sequence[dict[str, Any]], title: str) -> Table:
    from g2lstm.lab.study.plan import METHODS
    from g2lstm.lab.study.table import chance

    cells = []
    for row in rows:
        p_value = row.get("p_value")
        values = [_text(row[method], row["unit"]) for method in METHODS]
        cells.append([row["what"], *values, "" if p_value is None else chance(p_value)])
    return table(("", *METHODS.values(), "p"), cells, title=title)


def _text(value: float | None, unit: str) -> str:
    from g2lstm.lab.study.table import signed

    if value is None:
        return UNKNOWN
    if unit == "change":
        return signed(value)
    forms = {"perplexity": "{:.2f}", "share": "{:.0%}", "rate": "{:,.0f}"}
    return f"{value / 1e6:.2f} MB" if unit == "bytes" else forms[unit].format(value)
