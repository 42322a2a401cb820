"""`g2lstm study`: the paper's tables and figures, each from its runs."""

import json
import shlex
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table

from g2lstm.cli.options import DataDir, Json, Set
from g2lstm.cli.output import console, error_console
from g2lstm.cli.train import BarObserver

if TYPE_CHECKING:
    from g2lstm.lab.study.plan import Study
    from g2lstm.lab.study.runner import Job
    from g2lstm.lab.study.table import Table as Found
    from g2lstm.tasks.learner import Validation
    from g2lstm.training.progress import TrainingProgress


class StudyBar:
    """Draws a study: a bar for the whole, by estimated time, and one for the run or measurement under way."""

    def __init__(self, bar: Bar, jobs: "list[Job]") -> None:
        self.bar, self.jobs = bar, jobs
        self.seconds = {number: sum(job.stages.values()) for number, job in enumerate(jobs)}
        self.whole = bar.add_task("all", total=max(sum(self.seconds.values()), 1.0), rate="", perplexity="")
        self.training: BarObserver | None = None
        self._began = time.monotonic()
        self._done = 0.0  # estimated seconds of what is done
        self._stage = 0.0  # and of the stage under way
        self._share: float | None = None  # of that stage; a training that is resumed does not begin with 0
        self._worked = 0.0  # estimated seconds of what was done since this began

    def on_stage(self, number: int, job: "Job", stage: str) -> None:
        """Names the run and the stage, and how long all will take yet."""
        self.bar.start()
        self._close_stage()
        self._stage = job.stages[stage]
        text = f"run {number + 1} of {len(self.jobs)}, {job.plan.name}"
        self.bar.update(self.whole, description=escape(text), rate=f"{self._left()} left in all")
        self.training = BarObserver(self.bar)
        self.bar.update(self.training.task, description=escape(stage))
        if not self.bar.console.is_terminal:
            self.on_message(f"{text}: {stage}; {self._left()} left in all")

    def on_share(self, share: float) -> None:
        """Moves both bars."""
        before = share if self._share is None else self._share
        share = max(share, before)  # tuning a cache counts from 0 for each setting
        self._worked += (share - before) * self._stage
        self._share = share
        self.bar.update(self.whole, completed=self._done + share * self._stage, rate=f"{self._left()} left in all")
        if self.training is not None:
            self.bar.update(self.training.task, completed=share)

    def on_job_end(self, number: int, job: "Job") -> None:
        """Whatever was estimated for it is over."""
        self._close_stage()
        self._done = sum(self.seconds[before] for before in range(number + 1))
        self.bar.update(self.whole, completed=self._done, rate=f"{self._left()} left in all")

    def on_step(self, progress: "TrainingProgress", share: float, values: dict[str, float]) -> None:
        """As `g2lstm train` does."""
        assert self.training is not None
        self.training.on_step(progress, share, values)
        self.on_share(share)

    def on_validation(self, progress: "TrainingProgress", validation: "Validation", is_best: bool) -> None:
        """As `g2lstm train` does."""
        assert self.training is not None
        self.training.on_validation(progress, validation, is_best)

    def on_message(self, message: str) -> None:
        """As it is."""
        self.bar.console.print(message, highlight=False, markup=False, soft_wrap=True)

    def _close_stage(self) -> None:
        if self.training is not None:
            self.bar.remove_task(self.training.task)
            self.training = None
        self._done += self._stage
        self._stage, self._share = 0.0, None

    def _left(self) -> str:
        """The estimate of what is left, corrected by how well the estimate did so far."""
        done = self._done + (self._share or 0.0) * self._stage
        passed = time.monotonic() - self._began
        factor = passed / self._worked if passed > 60 and self._worked > 0 else 1.0
        return duration(factor * (sum(self.seconds.values()) - done))


def study_bar() -> Bar:
    """Where a `StudyBar` is drawn."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f}% {task.fields[rate]} {task.fields[perplexity]}"),
    )
    return Bar(*columns, console=error_console(), auto_refresh=True)


def carry_out(jobs: "list[Job]", out: Path, data_dir: Path | None = None) -> dict[str, str]:
    """Does the jobs under a bar; stopped by Ctrl-C, exits with 130."""
    from g2lstm.lab.study.runner import carry_out as do
    from g2lstm.training.environment import Interrupted

    bar = study_bar()
    try:
        return do(jobs, out, StudyBar(bar, jobs), data_dir)
    except (Interrupted, KeyboardInterrupt) as stopped:
        bar.stop()
        what = str(stopped) or "interrupted; what was measured is kept"
        error_console().print(f"{what}; the same command goes on", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    finally:
        if bar.live.is_started:
            bar.stop()


def study(
    name: Annotated[str, typer.Argument(help="table1 to table5, figures or ablations.")],
    scale: Annotated[str, typer.Option(help="small: an hour a run on two cores; paper: its recipes as they are.")] = (
        "small"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="How often each run is trained; more give a deviation.")] = 1,
    out: Annotated[Path, typer.Option(help="The folder of all runs, which studies share.")] = Path("runs/study"),
    only: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Only runs of such names, as *gumbel*.")] = (
        None
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, what they cost, what is done.")] = False,
    table_only: Annotated[bool, typer.Option("--table-only", help="Print what there is; train nothing.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables for a document.")] = False,
    overrides: Set = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Carries out one of the paper's tables: trains what is missing, measures it, prints ours beside the paper's.

    It can be stopped at any time; the same command goes on, and skips what is done. A difference between methods comes
    with a 95 % interval and a p-value from a paired bootstrap over the sentences of the test set.

    Examples: `g2lstm study table3 --dry-run`, `g2lstm study table3 --seeds 2 --markdown`
    """
    from g2lstm.lab.study.forms import to_json, to_markdown
    from g2lstm.lab.study.runner import as_they_are, jobs_of, left_out
    from g2lstm.lab.study.studies import find_study
    from g2lstm.lab.study.table import build

    chosen = find_study(name, scale, seeds, overrides or ())
    jobs = jobs_of(chosen, out, tuple(only or ()))
    if dry_run:
        _show_jobs(jobs, out, as_json)
        return
    failures: dict[str, str] = {}
    wanted = [job.plan.name for job in jobs]
    if not table_only and not all(job.is_done for job in jobs):
        failures = carry_out(jobs, out, data_dir)
        jobs = as_they_are(jobs, out)
    others = left_out(jobs, chosen, out)
    failures |= {run: reason for run, reason in others.items() if run in wanted}
    tables = [build(table, chosen.plans, out, others) for table in chosen.tables]
    if failures or only:
        tables = [table for table in tables if not table.is_empty]
    notes = [note for job in jobs for note in job.notes]
    files: list[Path] = []
    if name == "figures" and not failures:
        if others:
            notes += [f"no figures, which show all runs of the study: {reason}" for reason in others.values()]
        elif only and not all(job.is_done for job in jobs_of(chosen, out)):
            notes.append("the figures show all runs of the study; they are drawn without --only")
        else:
            files = _draw(chosen, out, data_dir)
    if as_json:
        result: dict[str, Any] = {"study": name, "scale": scale, "seeds": seeds, "out": str(out)}
        result |= {"tables": [to_json(table) for table in tables], "files": [str(file) for file in files]}
        result |= {"runs": [_job_facts(job) for job in jobs]}
        print(json.dumps(result | {"notes": notes, "failures": failures}, ensure_ascii=False))
    elif markdown:
        options = [*_repeated("--only", only), *_repeated("--set", overrides)]
        command = shlex.join(["g2lstm", "study", name, "--scale", scale, "--seeds", str(seeds), *options])
        print("\n\n".join([*(to_markdown(table) for table in tables), f"Command: `{command}`"]))
    else:
        for table in tables:
            show_table(table)
    for file in () if as_json else files:
        print(file)
    for line in (
        *(f"note: {note}" for note in notes),
        *(f"{run} was left out: {reason}" for run, reason in failures.items()),
    ):
        error_console().print(line, highlight=False, markup=False, soft_wrap=True)
    if failures:
        raise typer.Exit(2)


def _repeated(option: str, values: list[str] | None) -> list[str]:
    return [word for each in values or () for word in (option, each)]


def _draw(study: "Study", out: Path, data_dir: Path | None) -> list[Path]:
    from g2lstm.cli.progress import bar
    from g2lstm.lab.study.figures import draw_figures

    with bar() as show:
        return draw_figures(study.plans, out, data_dir, partial(show, "counting gates"))


def show_table(table: "Found") -> None:
    """A table for a terminal, what the differences are worth, and notes."""
    from g2lstm.lab.study.forms import COMPARISON, HOW, in_words

    unbounded = Console(width=10_000)
    widths = {turned: unbounded.measure(_cells(table, turned)).maximum for turned in (False, True)}
    console().print(_cells(table, is_turned=widths[False] > max(console().width, widths[True])))
    if table.comparisons:
        differences = Table(title=HOW, title_justify="left")
        for heading in COMPARISON:
            differences.add_column(heading, justify="left" if heading in COMPARISON[:2] else "right")
        for one in table.comparisons:
            differences.add_row(*map(escape, in_words(one)))
        console().print(differences)
    for line in table.notes:
        console().print(line, highlight=False, markup=False, soft_wrap=True)


def _cells(table: "Found", is_turned: bool) -> Table:
    """The table itself: a row for each method, or, turned, a column for each, which suits a narrow terminal."""
    grid = [["", *table.headings], *([name, *(cell.text for cell in cells)] for name, cells in table.rows)]
    (_, *headings), *rows = zip(*grid, strict=True) if is_turned else grid
    shown = Table(title=escape(table.title), title_justify="left")
    shown.add_column("", overflow="fold")
    for heading in headings:
        style = "dim" if heading.startswith("  ") else None
        shown.add_column(escape(heading.strip()), justify="right", overflow="fold", style=style)
    for name, *cells in rows:
        shown.add_row(escape(name), *map(escape, cells), style="dim" if name.startswith("  ") else None)
    return shown


def duration(seconds: float) -> str:
    """In the two largest units that matter: "2 h 10 min"."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{max(round(seconds), 0)} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours / 24:.0f} days"


def _job_facts(job: "Job") -> dict[str, Any]:
    trained = {} if job.training is None else {"epochs": job.training.epochs, "seconds": job.training.seconds}
    return {
        "run": job.plan.name,
        "recipe": job.plan.recipe,
        "is_trained": job.training is not None,
        **trained,
        "measured": len(job.plan.measurements) - len(job.missing),
        "measurements": len(job.plan.measurements),
        "seconds_left": 0.0 if job.is_done else None if job.estimate is None else sum(job.stages.values()),
        "bytes": None if job.estimate is None else job.estimate.bytes,
    }


def _show_jobs(jobs: "list[Job]", out: Path, as_json: bool) -> None:
    from g2lstm.lab.study.estimate import HOW

    facts = [_job_facts(job) for job in jobs]
    if as_json:
        print(json.dumps({"out": str(out), "runs": facts, "how": HOW}))
        return
    table = Table(title=f"Runs below {escape(str(out))}", title_justify="left")
    for heading in ("run", "recipe", "trained", "measured", "time left", "memory"):
        table.add_column(heading, justify="left" if heading in ("run", "recipe") else "right")
    for job, each in zip(jobs, facts, strict=True):
        left, size = each["seconds_left"], each["bytes"]
        table.add_row(
            each["run"],
            each["recipe"],
            "yes" if job.training else "begun" if (out / job.plan.name).exists() else "no",
            f"{each['measured']} of {each['measurements']}",
            "-" if job.is_done else "?" if left is None else duration(left),
            "?" if size is None else f"{size / 1e6:,.0f} MB",
        )
    console().print(table)
    known = [each["seconds_left"] for each in facts if each["seconds_left"] is not None]
    others = len(facts) - len(known)
    more = f" and {others} runs on text that nothing is known of" if others else ""
    console().print(f"In all about {duration(sum(known))}{more}. {HOW}", highlight=False, markup=False, soft_wrap=True)
