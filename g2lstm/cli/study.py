"""`g2lstm study`: the paper's tables and figures, each from its own runs."""

import shlex
from contextlib import closing
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from g2lstm.cli.progress import StudyBar, bar, duration
from g2lstm.cli.shared import UNKNOWN, DataDir, Json, Set, console, print_json, say, table, tell, usable
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from g2lstm.lab.study.jobs import Job
    from g2lstm.lab.study.table import StudyTable


def carry_out(jobs: "list[Job]", data_dir: Path | None = None, minutes: float | None = None) -> dict[str, str]:
    """Carries out the jobs with a progress bar; returns why some failed, by run. Exits with 130 if interrupted."""
    from g2lstm.lab.study.runner import carry_out as do
    from g2lstm.training.environment import Interrupted

    for job in jobs:
        if job.problem:
            raise G2Error(job.problem)
    try:
        with closing(StudyBar(jobs)) as watcher:
            return do(jobs, watcher, data_dir, minutes)
    except (Interrupted, KeyboardInterrupt) as stopped:
        tell(f"{str(stopped) or 'interrupted; finished measurements are kept'}; the same command continues")
        raise typer.Exit(130) from None


def study(
    name: Annotated[str, typer.Argument(help="table1 to table5, figures, ablations or bits.")],
    scale: Annotated[
        Literal["small", "paper"],
        typer.Option(help="small takes at most an hour per run on two cores; paper uses the paper's own recipes."),
    ] = "small",
    seeds: Annotated[int, typer.Option(min=1, help="The number of seeds per run; two or more give deviations.")] = 1,
    out: Annotated[Path, typer.Option(help="The folder for all runs; studies share it.", callback=usable)] = Path(
        "runs/study"
    ),
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only runs whose names match, such as *gumbel*; repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, what they cost and what is done.")] = False,
    table_only: Annotated[bool, typer.Option("--table-only", help="Print the results so far; train nothing.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    overrides: Set = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Reproduce one of the paper's tables: train what is missing, and print our scores beside the paper's.

    `bits` is not in the paper: Penn Treebank with few bits per weight and one layer of 300 units, as in papers on
    quantised LSTMs, and a picture of perplexity against bits.

    You can stop a study at any time; the same command continues and skips what is done. A difference between methods
    comes with a 95 % interval and a p-value from a paired bootstrap over the sentences of the test set.

    Examples: `g2lstm study table3 --dry-run`, `g2lstm study table3 --seeds 2 --markdown`
    """
    from g2lstm.lab.study.jobs import jobs_of
    from g2lstm.lab.study.studies import find_study
    from g2lstm.lab.study.table import build

    chosen = find_study(name, scale, seeds, overrides or ())
    names = [run.name for run in chosen.runs]
    wanted = [run for run in names if not only or any(fnmatch(run, pattern) for pattern in only)]
    if not wanted:
        raise G2Error(f"no run of {name} is called {' or '.join(only or ())}; there are: {', '.join(names)}")
    jobs = [job for job in jobs_of(chosen, out) if job.run.name in wanted]
    if dry_run:
        _show_jobs(jobs, out, as_json)
        return
    failures = {} if table_only else carry_out(jobs, data_dir)
    every = jobs_of(chosen, out)
    jobs = [job for job in every if job.run.name in wanted]
    failures |= {job.run.name: job.problem for job in jobs if job.problem}
    tables = [build(table, every) for table in chosen.tables]
    if failures or only:
        tables = [table for table in tables if not table.is_empty]
    files: list[Path] = []
    if only and name == "figures" and not all(job.is_done for job in every):
        tell("the figures show all runs of the study; leave out --only to draw them")
    elif name == "figures" and not failures:
        from g2lstm.lab.study.figures import draw_figures

        with bar() as show:
            files = draw_figures(every, data_dir, partial(show, "counting gates"))
    elif name == "bits":
        from g2lstm.lab.study.figures import draw_league

        files = draw_league([build(table, every) for table in chosen.tables], out)
    if as_json:
        print_json(
            {
                "study": name,
                "scale": scale,
                "seeds": seeds,
                "out": str(out),
                "tables": [table.to_json() for table in tables],
                "files": [str(file) for file in files],
                "runs": [_facts(job) for job in jobs],
                "failures": failures,
            }
        )
    elif markdown:
        options = [word for each in only or () for word in ("--only", each)]
        options += [word for each in overrides or () for word in ("--set", each)]
        command = shlex.join(["g2lstm", "study", name, "--scale", scale, "--seeds", str(seeds), *options])
        say("\n\n".join([*(table.to_markdown() for table in tables), f"Command: `{command}`"]))
    else:
        for table in tables:
            show_table(table)
        for file in files:
            say(str(file))
    for run, reason in failures.items():
        tell(f"{run} was left out: {reason}")
    if failures:
        raise typer.Exit(2)


def show_table(found: "StudyTable") -> None:
    """Prints a table for a terminal, the significance of its differences, and its notes.

    In a narrow terminal, methods are columns instead of rows.
    """
    from g2lstm.lab.study.table import COMPARISON, HOW

    grid = found.grid()
    shown = [table(first, rest, title=found.title) for first, *rest in (grid, list(zip(*grid, strict=True)))]
    widths = [Console(width=10_000).measure(each).maximum for each in shown]
    console().print(shown[widths[0] > max(console().width, widths[1])])
    if found.comparisons:
        rows = [comparison.in_words() for comparison in found.comparisons]
        console().print(table(COMPARISON, rows, title=HOW, left=2))
    for line in found.notes:
        say(line, is_prose=True)


def _facts(job: "Job") -> dict[str, Any]:
    from g2lstm.lab.study.jobs import estimate

    is_known = job.is_done or estimate(job.recipe) is not None
    trained = {} if job.training is None else {"epochs": job.training.epochs, "seconds": job.training.seconds}
    return {
        "run": job.run.name,
        "recipe": job.run.recipe,
        "is_trained": job.training is not None,
        **trained,
        "measured": len(job.measured),
        "measurements": len(job.run.measurements),
        "seconds_left": sum(job.stages.values()) if is_known else None,
    }


def _show_jobs(jobs: "list[Job]", out: Path, as_json: bool) -> None:
    from g2lstm.lab.study.jobs import ESTIMATE

    facts = [_facts(job) for job in jobs]
    if as_json:
        print_json({"out": str(out), "runs": facts, "how": ESTIMATE})
        return
    rows = []
    for each in facts:
        left, measured = each["seconds_left"], f"{each['measured']} of {each['measurements']}"
        words = ("yes" if each["is_trained"] else "no", measured, UNKNOWN if left is None else duration(left))
        rows.append([each["run"], each["recipe"], *words])
    headings = ("run", "recipe", "trained", "measured", "time left")
    console().print(table(headings, rows, title=f"Runs in {out}", left=2))
    known = [each["seconds_left"] for each in facts if each["seconds_left"] is not None]
    others = len(facts) - len(known)
    more = f", plus {others} runs on a text of unknown size" if others else ""
    say(f"About {duration(sum(known))} in all{more}. {ESTIMATE}")
