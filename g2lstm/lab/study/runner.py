"""Carries out a study: trains what is missing, resumes what was interrupted, and measures every run."""

import copy
import os
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch

from g2lstm.compression.model import compress
from g2lstm.errors import G2Error
from g2lstm.lab.study.jobs import FOLDER, TRAINING, Job, keep, read, training_of, weights_of
from g2lstm.lab.study.plan import Measurement
from g2lstm.runs.records import Record
from g2lstm.runs.trained import load, score
from g2lstm.tasks.trained import Progress, Scoring
from g2lstm.training.progress import Observer, Turn
from g2lstm.training.start import train_recipe

_FIRST_PLAN = 20  # epochs, until the speed is known; the learning rate is still rising then
_MOST_EPOCHS = 1000  # if a recipe sets no limit
_LOOK_SECONDS = 0.3  # at what other programs do
_ROUND_SECONDS = 20.0  # of all trainings that take turns; shorter ones would spend their time on loading


class Watcher(Observer, Protocol):
    """Hears how a study goes; also an `Observer` of its training runs."""

    def on_stage(self, job: Job, stage: str, is_new: bool = True) -> None:
        """Called when one of a job's stages begins, or goes on after others had their turn."""

    def on_share(self, share: float) -> None:
        """Called with the share of a measurement that is done; `on_step` does the same for training."""


def carry_out(
    jobs: list[Job], watcher: Watcher, data_dir: Path | None = None, minutes: float | None = None
) -> dict[str, str]:
    """Does what is left of the jobs, one after the other, and returns why some failed, by the name of the run.

    Given `minutes`, it first trains them all in turns, within that time.

    If a job fails with a G2Error, the others are still done. A study can be stopped at any moment: `Interrupted` and
    KeyboardInterrupt pass through, and whatever is done by then is kept.
    """
    if minutes is not None and any(job.training is None for job in jobs):
        train_in_turns(jobs, watcher, minutes)
    failures: dict[str, str] = {}
    for job in jobs:
        try:
            _do(job, watcher, data_dir, is_new=minutes is None)
        except G2Error as error:
            failures[job.run.name] = str(error)
    return failures


def train_in_turns(jobs: list[Job], watcher: Watcher, minutes: float) -> None:
    """Trains jobs that are to be compared: all get the same number of updates, as many as these minutes allow.

    They take turns of some epochs. After each round, the clock decides how many epochs all of them will have, so it
    does not matter how fast the machine is, or whose turn it is when it gets slow.
    """
    start, used, until, threads = time.monotonic(), 0.0, 1, torch.get_num_threads()
    limit = min((job.recipe.train.epochs or _MOST_EPOCHS for job in jobs), default=_MOST_EPOCHS)
    planned = min(limit, _FIRST_PLAN)
    before = dict.fromkeys((job.path for job in jobs), 0)
    while True:
        began = time.monotonic()
        torch.set_num_threads(free_threads(threads))
        done = {}
        for job in jobs:
            watcher.on_stage(job, TRAINING, before[job.path] == 0)
            done[job.path] = train_recipe(job.recipe, job.path, watcher, resume=True, turn=Turn(planned, until))
        if all(one.finished for one in done.values()):
            return
        now = time.monotonic()
        trained = sum(one.epoch - before[path] for path, one in done.items()) / len(jobs)
        used = max(now - start, sum(one.seconds for one in done.values()))  # the latter if this is a resumed training
        before = {path: one.epoch for path, one in done.items()}
        finished = [one.epoch for one in done.values() if one.finished]
        rate = (now - began) / max(trained, 1)
        planned = finished[0] if finished else planned_epochs(max(before.values()), 60 * minutes - used, rate, limit)
        until = min(max(before.values()) + max(1, round(_ROUND_SECONDS / rate)), planned)


def free_threads(most: int) -> int:
    """The threads for which other programs leave cores, at least one; with more, all would wait for the slowest."""
    busy = psutil.cpu_percent(_LOOK_SECONDS) / 100 * (os.cpu_count() or 1)
    return max(1, min(most, round((os.cpu_count() or 1) - busy)))


def planned_epochs(done: int, seconds_left: float, seconds_per_epoch: float, limit: int) -> int:
    """How many epochs to plan for in all: at least one more, in which the learning rate can fall, if any are left."""
    return max(min(done + max(int(seconds_left / seconds_per_epoch), 1), limit), done)


def _do(job: Job, watcher: Watcher, data_dir: Path | None, *, is_new: bool) -> None:
    if job.training is None:
        start = None
        if job.run.starts_from is not None:
            earlier = job.path.with_name(job.run.starts_from)
            start = weights_of(earlier)
            if training_of(earlier) is None:
                raise G2Error(f"it starts from {earlier.name}, which has not been trained")
        watcher.on_stage(job, TRAINING, is_new)
        done = train_recipe(job.recipe, job.path, watcher, resume=True, data_dir=data_dir)
        keep(job.path, TRAINING, {"epochs": done.epochs, "seconds": done.seconds, "step": done.step, "start": start})
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
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "compression changes these matrices")  # it measures what that costs
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
