"""Carries out a study: trains what is missing, resumes what was interrupted, and measures every run."""

import copy
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Protocol

from g2lstm.compression.model import compress
from g2lstm.errors import G2Error
from g2lstm.lab.study import results
from g2lstm.lab.study.estimate import Estimate, estimate
from g2lstm.lab.study.plan import Measurement, PlannedRun, Study
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.records import Record
from g2lstm.runs.trained import load, score
from g2lstm.tasks.recipes import Recipe
from g2lstm.tasks.task import Validation
from g2lstm.tasks.trained import Progress, Scoring
from g2lstm.training.progress import Observer, TrainingProgress
from g2lstm.training.start import train_recipe

TRAINING = "training"
_UNKNOWN_TRAINING, _UNKNOWN_MEASUREMENT = 300.0, 10.0  # seconds, for data of unknown size


@dataclass(frozen=True)
class Job:
    """What remains to be done for one run of a study, and what is done."""

    run: PlannedRun
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
        """What is left to do, with an estimate of its seconds."""
        known = self.estimate
        training = {} if self.training else {TRAINING: _UNKNOWN_TRAINING if known is None else known.train_seconds}
        each = _UNKNOWN_MEASUREMENT if known is None else known.measure_seconds
        return training | {measurement.name: each for measurement in self.missing}


class Watcher(Observer, Protocol):
    """Whoever wants to follow a study; an `Observer` of its trainings too."""

    def on_stage(self, number: int, job: Job, stage: str) -> None:
        """Called when one of a job's stages begins; jobs are numbered from 0."""

    def on_share(self, share: float) -> None:
        """Called with the share of a measurement that is done; `on_step` has that of a training."""

    def on_job_end(self, number: int, job: Job) -> None:
        """Called when a job is done or has failed."""


def jobs_of(study: Study, out: Path, only: tuple[str, ...] = ()) -> list[Job]:
    """Every run of a study, and what is left to do for it.

    Args:
        study: its runs.
        out: the folder for all runs.
        only: patterns of names, such as "*gumbel*"; other runs are left out.
    """
    if out.exists() and not out.is_dir():
        raise G2Error(f"{out} is not a folder; choose one for the runs with --out")
    wanted = [run for run in study.runs if not only or any(fnmatch(run.name, pattern) for pattern in only)]
    if not wanted:
        raise G2Error(
            f"no run of {study.name} is called {' or '.join(only)}; there are: "
            f"{', '.join(run.name for run in study.runs)}"
        )
    return [_job(run, out) for run in wanted]


def as_they_are(study: Study, out: Path) -> tuple[list[Job], dict[str, str]]:
    """The runs of a study as they are now; and why tables can't show the others, by name.

    These are runs that the study would train in another way, or on another text.
    """
    found, reasons = [], {}
    for run in study.runs:
        try:
            found.append(_job(run, out))
        except G2Error as error:
            reasons[run.name] = str(error)
    return found, reasons


def _job(run: PlannedRun, out: Path) -> Job:
    recipe, directory = run.load(out), RunDirectory(out / run.name)
    training = results.training_of(directory.path)
    notes: tuple[str, ...] = ()
    if directory.recipe_file.exists():
        notes = tuple(results.check_recipe(directory.path, recipe))
        recipe = directory.recipe  # a run continues as it began
        results.check_text(directory.path, recipe, run.measurements)
    if run.starts_from is not None:
        results.check_start(directory.path, out / run.starts_from)
    return Job(run, recipe, training, tuple(results.missing(run, out)), estimate(recipe), notes)


def carry_out(jobs: list[Job], out: Path, watcher: Watcher, data_dir: Path | None = None) -> dict[str, str]:
    """Does what is left of the jobs, one after the other.

    If a job fails with a G2Error, the others are still done. A study can be stopped at any moment: `Interrupted` and
    KeyboardInterrupt pass through, and whatever is done by then is kept.

    Args:
        jobs: a run that starts from another comes after it.
        out: the folder for all runs.
        watcher: called with the progress.
        data_dir: a folder that holds the named data sets.

    Returns:
        Why jobs failed, by the name of the run.
    """
    failures: dict[str, str] = {}
    for number, job in enumerate(jobs):
        try:
            _do(number, job, out, watcher, data_dir)
        except G2Error as error:
            failures[job.run.name] = str(error)
        watcher.on_job_end(number, job)
    return failures


class _Noting:
    """Passes a training's calls on to a watcher; saves which weights it starts from before the first checkpoint."""

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
    path, earlier = out / job.run.name, job.run.starts_from
    if earlier is not None:
        results.check_start(path, out / earlier)  # it may have been trained again since
    if job.training is None:
        is_begun = RunDirectory(path).has_checkpoints()
        if earlier is not None and not is_begun and results.training_of(out / earlier) is None:
            raise G2Error(f"it starts from {earlier}, which has not been trained")
        start = None if earlier is None or is_begun else results.weights_of(out / earlier)
        watcher.on_stage(number, job, TRAINING)
        train_recipe(job.recipe, path, _Noting(watcher, path, start), resume=True, data_dir=data_dir)
    if results.keep_training(path) is None:
        raise G2Error(f"{path} holds no finished training; `g2lstm train {path / 'recipe.toml'} --resume` says why")
    if not job.missing:
        return
    measuring = Measuring(path, data_dir)
    for measurement in job.missing:
        watcher.on_stage(number, job, measurement.name)
        measuring.measure(measurement, lambda done, total: watcher.on_share(done / total))


class _TunedCache(Record):
    """Cache settings, and what they were tuned for."""

    window: int
    theta: float
    share: float
    weights: str | None
    valid_sha256: str


class Measuring:
    """Measures a run in several ways, loading its model once.

    Args:
        path: the run directory.
        data_dir: a folder that holds the named data sets.
    """

    def __init__(self, path: Path, data_dir: Path | None = None) -> None:
        self.path, self.data_dir = path, data_dir
        self.trained = load(path)
        self._weights = results.weights_of(path)

    def measure(self, measurement: Measurement, progress: Progress) -> dict[str, Any]:
        """Scores the run and saves the result in its directory; an uncompressed score goes into its result.json too."""
        spec, trained = measurement.spec, self.trained
        if spec is not None:
            trained = copy.copy(trained)
            trained.model = compress(trained.model, spec)
        how = Scoring(measurement.split, measurement.eval_gate, by_sentence=True, data_dir=self.data_dir)
        trained.check_scoring(replace(how, cache=measurement.cache is not None))
        if measurement.cache == "tuned":
            how = self._tuned(how, progress)
        elif measurement.cache == "recipe":
            how = replace(how, cache=True)
        result = score(trained, how, progress, compressed=spec)
        if spec is None:
            trained.run.add_result({name: value for name, value in result.items() if name != "by_sentence"})
        text = self.trained.run.training_facts().get("train_sha256", "")
        tuned_on = {"tuned_on_text": self._valid()} if measurement.cache == "tuned" else {}
        result = {"weights": self._weights, "trained_on_text": text, **tuned_on, **result}
        results.keep(self.path, measurement, result)
        return result

    def _valid(self) -> str:
        """Identifies the validation text."""
        return self.trained.passes("valid", self.data_dir).sha256

    def _tuned(self, how: Scoring, progress: Progress) -> Scoring:
        """Adds a cache tuned on the validation set; it is tuned once for each run, gate and text."""
        name = f"{Measurement('valid', str(how.eval_gate), 'tuned').name}-settings.json"
        file = self.path / results.FOLDER / name
        weights, valid = self._weights, self._valid()
        saved = results.read(file, _TunedCache) if file.is_file() else None
        if saved is None or (saved.weights, saved.valid_sha256) != (weights, valid):
            best = self.trained.tune(replace(how, tune_cache=True), progress)
            settings = {"window": best.cache_window, "theta": best.cache_theta, "share": best.cache_lambda}
            results.write(self.path, name, {**settings, "weights": weights, "valid_sha256": valid})
            saved = results.read(file, _TunedCache)
        return replace(how, cache_window=saved.window, cache_theta=saved.theta, cache_lambda=saved.share)
