"""Measures a run in one way: its score, and what each sentence adds to it."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from g2lstm.compression.model import compress
from g2lstm.lab.study import results
from g2lstm.lab.study.plan import Measurement
from g2lstm.runs.trained import load, score
from g2lstm.tasks.trained import Progress, Scoring, Trained


class _TunedCache(BaseModel):
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
        self.path = path
        self.data_dir = data_dir
        self._trained: Trained | None = None
        self._weights = results.weights_of(path)

    @property
    def trained(self) -> Trained:
        """The model, not compressed."""
        if self._trained is None:
            self._trained = load(self.path)
        return self._trained

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
