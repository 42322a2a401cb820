"""Carries a study out: trains what is missing, resumes what was cut, measures what has not been measured."""

from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol

from g2lstm.errors import G2Error
from g2lstm.lab.study import results
from g2lstm.lab.study.estimate import Estimate, estimate
from g2lstm.lab.study.measure import Measuring
from g2lstm.lab.study.plan import Measurement, Plan, Study
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.learner import Validation
from g2lstm.tasks.recipes import Recipe
from g2lstm.training.observe import Observer
from g2lstm.training.progress import TrainingProgress
from g2lstm.training.start import train_recipe

TRAINING = "training"
_UNKNOWN_TRAINING, _UNKNOWN_MEASUREMENT = 300.0, 10.0  # seconds, for a run that nothing is known of


@dataclass(frozen=True)
class Job:
    """What is to be done for one run of a study, and what is done already."""

    plan: Plan
    recipe: Recipe
    training: results.Training | None
    missing: tuple[Measurement, ...]
    estimate: Estimate | None
    notes: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.training is not None and not self.missing

    @property
    def stages(self) -> dict[str, float]:
        """What is left to do, and about how many seconds each takes."""
        known = self.estimate
        training = {} if self.training else {TRAINING: _UNKNOWN_TRAINING if known is None else known.train_seconds}
        each = _UNKNOWN_MEASUREMENT if known is None else known.measure_seconds
        return training | {measurement.name: each for measurement in self.missing}


class Watcher(Observer, Protocol):
    """Who is told how a study goes on; of a training as `Observer` is."""

    def on_stage(self, number: int, job: Job, stage: str) -> None:
        """One of the job's stages begins; jobs are numbered from 0."""

    def on_share(self, share: float) -> None:
        """How much of a measurement is done, in [0, 1]; of a training, `on_step` says it."""

    def on_job_end(self, number: int, job: Job) -> None:
        """All of the job is done, or it has failed."""


def jobs_of(study: Study, out: Path, only: tuple[str, ...] = ()) -> list[Job]:
    """Every run of a study, and how far it is.

    Args:
        study: what to look for.
        out: the folder of all runs.
        only: patterns of names such as "*gumbel*"; other runs are left out.
    """
    if out.exists() and not out.is_dir():
        raise G2Error(f"{out} is not a folder; choose one for the runs, with --out")
    wanted = [plan for plan in study.plans if not only or any(fnmatch(plan.name, pattern) for pattern in only)]
    if not wanted:
        raise G2Error(
            f"no run of {study.name} is called {' or '.join(only)}; there are: "
            f"{', '.join(plan.name for plan in study.plans)}"
        )
    return [_job(plan, out) for plan in wanted]


def as_they_are(jobs: list[Job], out: Path) -> list[Job]:
    """The same runs as they are now, but for those that are not what the study would train; `left_out` tells why."""
    found = []
    for job in jobs:
        with suppress(G2Error):
            found.append(_job(job.plan, out))
    return found


def left_out(jobs: list[Job], study: Study, out: Path) -> dict[str, str]:
    """The runs beside those of the jobs that tables cannot show, by name: why they are not what the study would train.

    Args:
        jobs: some of the study's, or all.
        study: whose tables they are.
        out: the folder of all runs.
    """
    reasons = {}
    mine = {job.plan.name for job in jobs}
    for plan in study.plans:
        try:
            if plan.name not in mine:
                _job(plan, out)
        except G2Error as error:
            reasons[plan.name] = str(error)
    return reasons


def _job(plan: Plan, out: Path) -> Job:
    recipe, run = plan.load(out), RunDirectory(out / plan.name)
    training = results.training_of(run.path)
    notes: tuple[str, ...] = ()
    if run.recipe_file.exists():
        notes = tuple(results.check_recipe(run.path, recipe))
        recipe = run.recipe  # what was begun goes on as it was begun
        results.check_text(run.path, recipe, plan.measurements)
    if plan.starts_from is not None:
        results.check_start(run.path, out / plan.starts_from)
    return Job(plan, recipe, training, tuple(results.missing(plan, out)), estimate(recipe), notes)


def carry_out(jobs: list[Job], out: Path, watcher: Watcher, data_dir: Path | None = None) -> dict[str, str]:
    """Does what is left of the jobs, one after the other.

    A job that a G2Error ends does not keep the others from being done. It can be stopped at any moment: `Interrupted`
    and KeyboardInterrupt go through, and what is done by then is kept.

    Args:
        jobs: a run that starts from another comes after it.
        out: the folder of all runs.
        watcher: who is told.
        data_dir: a folder that holds the named data sets.

    Returns:
        why those jobs failed that did, by the name of the run.
    """
    failures: dict[str, str] = {}
    for number, job in enumerate(jobs):
        try:
            _do(number, job, out, watcher, data_dir)
        except G2Error as error:
            failures[job.plan.name] = str(error)
        watcher.on_job_end(number, job)
    return failures


class _Noting:
    """Tells a watcher of a training; writes which weights it starts from, while there is no checkpoint yet."""

    def __init__(self, watcher: Watcher, path: Path, start: str | None) -> None:
        self.watcher, self.path, self.start = watcher, path, start

    def on_step(self, progress: TrainingProgress, share: float, values: dict[str, float]) -> None:
        self.watcher.on_step(progress, share, values)

    def on_validation(self, progress: TrainingProgress, validation: Validation, is_best: bool) -> None:
        if self.start is not None and progress.step == 0:
            results.keep_start(self.path, self.start)
        self.watcher.on_validation(progress, validation, is_best)

    def on_message(self, message: str) -> None:
        self.watcher.on_message(message)


def _do(number: int, job: Job, out: Path, watcher: Watcher, data_dir: Path | None) -> None:
    path, earlier = out / job.plan.name, job.plan.starts_from
    if earlier is not None:
        results.check_start(path, out / earlier)  # it may have been trained anew since
    if job.training is None:
        is_begun = RunDirectory(path).has_checkpoints()
        if earlier is not None and not is_begun and results.training_of(out / earlier) is None:
            raise G2Error(f"it starts from {earlier}, which has not been trained")
        start = None if earlier is None or is_begun else results.weights_of(out / earlier)
        watcher.on_stage(number, job, TRAINING)
        train_recipe(job.recipe, path, _Noting(watcher, path, start), resume=True, data_dir=data_dir)
    if results.keep_training(path) is None:
        raise G2Error(f"{path} holds no finished training; `g2lstm train {path / 'recipe.toml'} --resume` tells why")
    measuring = Measuring(path, data_dir)
    for measurement in job.missing:
        watcher.on_stage(number, job, measurement.name)
        measuring.measure(measurement, lambda done, total: watcher.on_share(done / total))
