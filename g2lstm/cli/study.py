"""`g2lstm study`: the paper's tables and figures, each from its own runs."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from g2lstm.cli.options import DataDir, Json, Set
from g2lstm.cli.output import UNKNOWN, console, print_json, say, table, tell
from g2lstm.cli.progress import StudyBar, bar, drawn, duration, study_progress

if TYPE_CHECKING:
    from g2lstm.lab.study.runner import Job
    from g2lstm.lab.study.table import StudyTable


def carry_out(jobs: "list[Job]", out: Path, data_dir: Path | None = None) -> dict[str, str]:
    """Carries out the jobs with a progress bar; returns why some failed, by run. Exits with 130 if interrupted."""
    from g2lstm.lab.study.runner import carry_out as do
    from g2lstm.training.environment import Interrupted

    progress = study_progress()
    try:
        with drawn(progress):
            return do(jobs, out, StudyBar(progress, jobs), data_dir)
    except (Interrupted, KeyboardInterrupt) as stopped:
        tell(f"{str(stopped) or 'interrupted; finished measurements are kept'}; the same command continues")
        raise typer.Exit(130) from None


def study(
    name: Annotated[str, typer.Argument(help="table1 to table5, figures or ablations.")],
    scale: Annotated[
        Literal["small", "paper"],
        typer.Option(help="small: at most an hour per run on two cores; paper: the paper's own recipes."),
    ] = "small",
    seeds: Annotated[int, typer.Option(min=1, help="How often to train each run; more than one gives deviations.")] = 1,
    out: Annotated[Path, typer.Option(help="The folder for all runs; studies share it.")] = Path("runs/study"),
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only runs with such names, such as *gumbel*; repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, what they cost and what is done.")] = False,
    table_only: Annotated[bool, typer.Option("--table-only", help="Print what there is; train nothing.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    overrides: Set = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Reproduce one of the paper's tables: train what is missing, measure it, and print it beside the paper's figures.

    You can stop a study at any time; the same command continues and skips what is done. A difference between methods
    comes with a 95 % interval and a p-value from a paired bootstrap over the sentences of the test set.

    Examples: `g2lstm study table3 --dry-run`, `g2lstm study table3 --seeds 2 --markdown`
    """
    from g2lstm.lab.study.runner import as_they_are, jobs_of
    from g2lstm.lab.study.studies import find_study
    from g2lstm.lab.study.table import build

    chosen = find_study(name, scale, seeds, overrides or ())
    jobs = jobs_of(chosen, out, tuple(only or ()))
    if dry_run:
        _show_jobs(jobs, out, as_json)
        return
    failures: dict[str, str] = {}
    wanted = [job.run.name for job in jobs]
    if not table_only and not all(job.is_done for job in jobs):
        failures = carry_out(jobs, out, data_dir)
    every, others = as_they_are(chosen, out)
    jobs = [job for job in every if job.run.name in wanted]
    failures |= {run: reason for run, reason in others.items() if run in wanted}
    tables = [build(table, chosen.runs, out, others) for table in chosen.tables]
    if failures or only:
        tables = [table for table in tables if not table.is_empty]
    notes = [note for job in jobs for note in job.notes]
    files: list[Path] = []
    if name == "figures" and not failures:
        notes += [f"no figures, which show all runs of the study: {reason}" for reason in others.values()]
        if only and not all(job.is_done for job in every):
            notes.append("the figures show all runs of the study; they are drawn without --only")
        elif not others:
            files = _figures(every, out, data_dir)
    if as_json:
        print_json(
            {
                "study": name,
                "scale": scale,
                "seeds": seeds,
                "out": str(out),
                "tables": [table.to_json() for table in tables],
                "files": [str(file) for file in files],
                "runs": [_job_facts(job) for job in jobs],
                "notes": notes,
                "failures": failures,
            }
        )
    elif markdown:
        options = [*_repeated("--only", only), *_repeated("--set", overrides)]
        command = shlex.join(["g2lstm", "study", name, "--scale", scale, "--seeds", str(seeds), *options])
        print("\n\n".join([*(table.to_markdown() for table in tables), f"Command: `{command}`"]))
    else:
        for table in tables:
            show_table(table)
    for file in () if as_json else files:
        print(file)
    for note in notes:
        tell(f"note: {note}")
    for run, reason in failures.items():
        tell(f"{run} was left out: {reason}")
    if failures:
        raise typer.Exit(2)


def _repeated(option: str, values: list[str] | None) -> list[str]:
    return [word for each in values or () for word in (option, each)]


def _figures(jobs: "list[Job]", out: Path, data_dir: Path | None) -> list[Path]:
    from g2lstm.lab.study.figures import draw_figures

    with bar() as show:
        return draw_figures([job.run for job in jobs], out, data_dir, partial(show, "counting gates"))


def show_table(found: "StudyTable") -> None:
    """Prints a table for a terminal, what its differences are worth, and its notes."""
    from g2lstm.lab.study.table import COMPARISON, HOW

    unbounded = Console(width=10_000)
    widths = {turned: unbounded.measure(_cells(found, turned)).maximum for turned in (False, True)}
    console().print(_cells(found, is_turned=widths[False] > max(console().width, widths[True])))
    if found.comparisons:
        rows = [comparison.in_words() for comparison in found.comparisons]
        console().print(table(COMPARISON, rows, title=HOW, left=2))
    for line in found.notes:
        say(line)


def _cells(found: "StudyTable", is_turned: bool) -> Table:
    """The table with a row for each method or, turned, with a column for each, which suits a narrow terminal."""
    grid = [["", *found.headings], *([name, *(cell.text for cell in cells)] for name, cells in found.rows)]
    (_, *headings), *rows = zip(*grid, strict=True) if is_turned else grid
    made = Table(title=escape(found.title), title_justify="left")
    made.add_column("", overflow="fold")
    for heading in headings:
        style = "dim" if heading.startswith("  ") else None
        made.add_column(escape(heading.strip()), justify="right", overflow="fold", style=style)
    for name, *cells in rows:
        made.add_row(escape(name), *map(escape, cells), style="dim" if name.startswith("  ") else None)
    return made


def _job_facts(job: "Job") -> dict[str, Any]:
    trained = {} if job.training is None else {"epochs": job.training.epochs, "seconds": job.training.seconds}
    return {
        "run": job.run.name,
        "recipe": job.run.recipe,
        "is_trained": job.training is not None,
        **trained,
        "measured": len(job.run.measurements) - len(job.missing),
        "measurements": len(job.run.measurements),
        "seconds_left": 0.0 if job.is_done else None if job.estimate is None else sum(job.stages.values()),
        "bytes": None if job.estimate is None else job.estimate.bytes,
    }


def _show_jobs(jobs: "list[Job]", out: Path, as_json: bool) -> None:
    from g2lstm.lab.study.estimate import HOW

    facts = [_job_facts(job) for job in jobs]
    if as_json:
        print_json({"out": str(out), "runs": facts, "how": HOW})
        return
    rows = []
    for job, each in zip(jobs, facts, strict=True):
        left, size = each["seconds_left"], each["bytes"]
        rows.append(
            [
                each["run"],
                each["recipe"],
                "yes" if job.training else "begun" if (out / job.run.name).exists() else "no",
                f"{each['measured']} of {each['measurements']}",
                UNKNOWN if job.is_done else "?" if left is None else duration(left),
                "?" if size is None else f"{size / 1e6:,.0f} MB",
            ]
        )
    headings = ("run", "recipe", "trained", "measured", "time left", "memory")
    console().print(table(headings, rows, title=f"Runs in {out}", left=2))
    known = [each["seconds_left"] for each in facts if each["seconds_left"] is not None]
    others = len(facts) - len(known)
    more = f", plus {others} runs on a text of unknown size" if others else ""
    say(f"About {duration(sum(known))} in all{more}. {HOW}")
