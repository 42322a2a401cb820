"""`g2lstm demo`: trains, scores, compresses and compares three methods on embedded data; makes a page to try one."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from g2lstm.cli.progress import bar
from g2lstm.cli.shared import Json, Set, console, print_json, say, table, tell, usable
from g2lstm.cli.study import carry_out, show_table
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from g2lstm.lab.study.table import StudyTable

PRESET = "small"
_WINDOWS = 100  # of the validation text, in which to count gates
_NEXT = """With your own text:
  g2lstm train my.txt --out runs/mine
  g2lstm compress runs/mine small
  g2lstm view runs/mine
In your own script, call g2lstm.convert_(model) before training and
g2lstm.compress(model, "small") after it."""


def demo(
    out: Annotated[
        Path, typer.Option(help="The folder for the runs, table.json and report.html.", callback=usable)
    ] = Path("runs/demo"),
    minutes: Annotated[
        float | None, typer.Option(min=0.001, help="Training time for each method; 1.2 by default.")
    ] = None,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Train an LSTM, a G² model and one with binary gates on embedded text, and compare them.

    It scores each model, compresses it with the paper's settings and the preset `small`, counts its gates, and writes
    the last one as a page that runs it in a browser. This needs no download and takes at most five minutes on two
    cores. Stop it at any time; the same command continues.
    """
    from g2lstm.lab.study.jobs import jobs_of
    from g2lstm.lab.study.studies import demo as plan
    from g2lstm.lab.study.table import build, signed
    from g2lstm.look.report import check_out
    from g2lstm.runs.compressed import default_folder, write_json
    from g2lstm.runs.directory import RunDirectory

    report = out / "report.html"
    check_out(report)
    study = plan([*([] if minutes is None else [f"train.minutes={minutes}"]), *(overrides or ())])
    jobs = jobs_of(study, out)
    small = {job.run.name: default_folder(job.path, PRESET) for job in jobs}
    page = list(small.values())[-1] / "export" / "model.html"  # of the model with binary gates
    for job in jobs:
        if job.training is None and (folder := small[job.run.name]).exists():
            raise G2Error(f"{folder} was not made from the {job.run.name} that the demo would train; move it away too")
    is_done = all(job.is_done for job in jobs) and all(path.exists() for path in (report, page, *small.values()))
    if is_done:
        tell(f"found the results of an earlier demo in {out}; choose another folder with --out to run it again")
    else:
        report.unlink(missing_ok=True)  # what it shows is about to change
        together = sum(job.recipe.train.minutes or 0 for job in jobs) or None
        for run, reason in (failures := carry_out(jobs, minutes=together)).items():
            tell(f"{run} failed: {reason}")
        if failures:
            raise typer.Exit(2)
    found = build(study.tables[0], jobs_of(study, out))
    try:
        if not is_done:
            _look([job.path for job in jobs], list(small.values()), found, report, page)
    except KeyboardInterrupt:
        tell("interrupted; finished work is kept; the same command continues")
        raise typer.Exit(130) from None
    facts, rows = {**found.to_json(), "compressed": {}}, []
    for name, folder in small.items():
        known = RunDirectory(folder).compression_report()
        if known is None or known.score is None or known.speed is None:
            raise G2Error(f"{folder} was not made by this demo; move it away")
        file, score, speed = known.file, known.score, known.speed
        facts["compressed"][name] = known.model_dump(include={"file", "score", "speed"})
        sizes = [f"{file.before / 1e6:.2f}", f"{file.after / 1e6:.2f}"]
        rows.append([name, *sizes, signed(score.after - score.before), f"{speed.before:,.0f}", f"{speed.after:,.0f}"])
    write_json(out / "table.json", facts)
    if as_json:
        print_json({"out": str(out), "report": str(report), "page": str(page), **facts})
        return
    show_table(found)
    headings = ("", "MB", f"MB, {PRESET}", "perplexity", speed.unit, f"{speed.unit}, {PRESET}")
    console().print(table(headings, rows, title=f"What the preset {PRESET} gains and costs, on all weights"))
    say(f"Tables and pictures:\n  {report.absolute()}")
    say(f"The binary model, to try in your browser:\n  {page.absolute()}\n{_NEXT}")


def _look(runs: Sequence[Path], small: Sequence[Path], compared: "StudyTable", report: Path, page: Path) -> None:
    """Compresses the runs with the preset unless that is done, counts their gates, and writes the report and the page.

    The report begins with the table; the page runs the last of the compressed models.
    """
    from g2lstm.compression.spec import Spec
    from g2lstm.export.html.page import export_html
    from g2lstm.look.examine import examine
    from g2lstm.look.report import Measured, write_report
    from g2lstm.runs.compressed import compress_run, write_json
    from g2lstm.runs.trained import load
    from g2lstm.tasks.trained import Scoring

    with bar() as show:
        for run, folder in zip(runs, small, strict=True):
            trained = load(run)
            if not folder.exists():
                compress_run(trained, Spec.parse(PRESET), folder, show, Scoring("test"))
            progress = partial(show, f"counting the gates of {run.name}")
            found = examine(trained, run.name, split="valid", samples=_WINDOWS, progress=progress)
            write_json(trained.run.own("gates") / "gates.json", found.numbers)
        show("writing the report", 0, 1)
        chances = {one.column: one.in_words()[-1] for one in compared.comparisons}
        head, *rows = zip(*compared.grid(), strict=True)  # methods as columns
        rows = [(*row, chances.get(row[0], "")) for row in rows]
        write_report([*runs, *small], report, measured=[Measured(compared.title, (*head, "p"), rows, compared.notes)])
        show("writing the report", 1, 1)
        page.parent.mkdir(exist_ok=True)
        export_html(small[-1], page, force=True)
