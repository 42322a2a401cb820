"""Carries out a study: trains what is missing, resumes what was interrupted, and measures every run."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from g2lstm.compression.model import compress
from g2lstm.errors import G2Error
from g2lstm.lab.study.jobs import FOLDER, TRAINING, Job, keep, read, training_of, weights_of
from g2lstm.lab.study.plan import Measurement
from g2lstm.runs.records import Record
from g2lstm.runs.trained import load, score
from g2lstm.tasks.trained import Progress, Scoring
from g2lstm.training.progress import Observer
from g2lstm.training.start import train_recipe


class Watcher(Observer, Protocol):
    """Hears how a study goes; also an `Observer` of its training runs."""

    def on_stage(self, job: Job, stage: str) -> None:
        """Called when one of a job's stages begins."""

    def on_share(self, share: float) -> None:
        """Called with the share of a measurement that is done; `on_step` does the same for training."""


def carry_out(jobs: list[Job], watcher: Watcher, data_dir: Path | None = None) -> dict[str, str]:
    """Does what is left of the jobs, one after the other, and returns why some failed, by the name of the run.

    If a job fails with a G2Error, the others are still done. A study can be stopped at any moment: `Interrupted` and
    KeyboardInterrupt pass through, and whatever is done by then is kept.
    """
    failures: dict[str, str] = {}
    for job in jobs:
        try:
            _do(job, watcher, data_dir)
        except G2Error as error:
            failures[job.run.name] = str(error)
    return failures


def _do(job: Job, watcher: Watcher, data_dir: Path | None) -> None:
    if job.training is None:
        start = None
        if job.run.starts_from is not None:
            earlier = job.path.with_name(job.run.starts_from)
            start = weights_of(earlier)
            if training_of(earlier) is None:
                raise G2Error(f"it starts from {earlier.name}, which has not been trained")
        watcher.on_stage(job, TRAINING)
        done = train_recipe(job.recipe, job.path, watcher, resume=True, data_dir=data_dir)
        # If a budget in minutes was not used up, it was never turned into a number of epochs.
        epochs = float(done.epoch if done.epochs is None else done.epochs)
        keep(job.path, TRAINING, {"epochs": epochs, "seconds": done.seconds, "step": done.step, "start": start})
    if job.missing:
        measuring = Measuring(job.path, data_dir)
        for measurement in job.missing:
            watcher.on_stage(job, measurement.name(job.recipe))
            measuring.measure(measurement, lambda done, total: watcher.on_share(done / total))


class _TunedCache(Record):
    """Cache settings, and what they were tuned for."""

    window: int
    theta: float
    share: float
    weights: str | None
    valid_sha256: str


class Measuring:
    """Measures the run of a directory in several ways, loading its model once."""

    def __init__(self, path: Path, data_dir: Path | None = None) -> None:
        self.path, self.data_dir = path, data_dir
        self.trained, self.weights = load(path), weights_of(path)

    def measure(self, measurement: Measurement, progress: Progress) -> dict[str, Any]:
        """Scores the run and saves the result in its directory; an uncompressed score goes into its result.json too."""
        spec, trained = measurement.spec, self.trained
        if spec is not None:
            trained = copy.copy(trained)
            trained.model = compress(trained.model, spec)
        how = Scoring(measurement.split, measurement.eval_gate, by_sentence=True, data_dir=self.data_dir)
        trained.check_scoring(replace(how, cache=measurement.cache is not None))
        basis = {"weights": self.weights, "trained_on_text": trained.run.training_facts().get("train_sha256", "")}
        if measurement.cache == "tuned":
            tuned = self._tuned(how, progress)
            basis["tuned_on_text"] = tuned.valid_sha256
            how = replace(how, cache_window=tuned.window, cache_theta=tuned.theta, cache_lambda=tuned.share)
        elif measurement.cache == "recipe":
            how = replace(how, cache=True)
        result = score(trained, how, progress, compressed=spec)
        if spec is None:
            trained.run.add_result({name: value for name, value in result.items() if name != "by_sentence"})
        keep(self.path, measurement.name(trained.recipe), basis | result)
        return basis | result

    def _tuned(self, how: Scoring, progress: Progress) -> _TunedCache:
        """A cache tuned on the validation set; it is tuned once for each run, gate and text."""
        name = f"{Measurement('valid', how.eval_gate, 'tuned').name(self.trained.recipe)}-settings"
        file, valid = self.path / FOLDER / f"{name}.json", self.trained.passes("valid", self.data_dir).sha256
        saved = read(file, _TunedCache) if file.is_file() else None
        if saved is None or (saved.weights, saved.valid_sha256) != (self.weights, valid):
            best = self.trained.tune(replace(how, tune_cache=True), progress)
            settings = {"window": best.cache_window, "theta": best.cache_theta, "share": best.cache_lambda}
            keep(self.path, name, {**settings, "weights": self.weights, "valid_sha256": valid})
            saved = read(file, _TunedCache)
        return saved
