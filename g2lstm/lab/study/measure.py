"""Measures one run in one way: its score, and what each sentence adds to it."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from g2lstm.compression.model import compress
from g2lstm.lab.study import results
from g2lstm.lab.study.plan import Measurement
from g2lstm.runs.trained import load, score
from g2lstm.tasks.trained import Progress, Scoring, Trained


class Measuring:
    """Measures a run, whose model is loaded once.

    Args:
        path: of the run.
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
        """Scores the run, and keeps the result in its directory; an uncompressed one in its result.json too."""
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
        """What tells the validation text from others."""
        return self.trained.passes("valid", self.data_dir).sha256

    def _tuned(self, how: Scoring, progress: Progress) -> Scoring:
        """With a cache that is tuned on the validation set, once for each run, gate and text."""
        name = f"{Measurement('valid', str(how.eval_gate), 'tuned').name}-settings.json"
        file = self.path / results.FOLDER / name
        tuned_for = {"weights": self._weights, "valid_sha256": self._valid()}
        if not file.is_file() or not tuned_for.items() <= results.read(file).items():
            best = self.trained.tune(replace(how, tune_cache=True), progress)
            settings = {"window": best.cache_window, "theta": best.cache_theta, "share": best.cache_lambda}
            results.write(self.path, name, {**settings, **tuned_for})
        found = results.read(file)
        try:
            return replace(
                how,
                cache_window=int(found["window"]),
                cache_theta=float(found["theta"]),
                cache_lambda=float(found["share"]),
            )
        except results.STRANGE:
            raise results.damaged(file) from None
