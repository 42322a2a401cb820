"""Measures one run in one way: its score, and what each sentence adds to it."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from g2lstm.compression.model import compress
from g2lstm.errors import G2Error
from g2lstm.lab.study import results
from g2lstm.lab.study.plan import Measurement
from g2lstm.runs.scoring import cache_settings, score_language, score_translation
from g2lstm.runs.trained import load
from g2lstm.tasks.lm.cache import CacheSettings, tune_cache
from g2lstm.tasks.lm.trained import TrainedLanguageModel
from g2lstm.tasks.mt.trained import TrainedTranslationModel
from g2lstm.text.corpus import TokenStream

Progress = Callable[[int, int], None]
Trained = TrainedLanguageModel | TrainedTranslationModel


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
        how: dict[str, Any] = {"eval_gate": measurement.eval_gate, "compressed": spec, "by_sentence": True}
        how |= {"data_dir": self.data_dir, "progress": progress}
        if isinstance(trained, TrainedLanguageModel):
            cache = None if measurement.cache is None else self._cache(measurement, progress)
            result = score_language(trained, measurement.split, cache=cache, **how)
        elif measurement.cache is not None:
            raise G2Error(f"{self.path} is a translation model; the cache is for language models")
        else:
            result = score_translation(trained, measurement.split, **how)
        if spec is None:
            trained.run.add_result({name: value for name, value in result.items() if name != "by_sentence"})
        text = self.trained.run.training_facts().get("train_sha256", "")
        tuned_on = {"tuned_on_text": self._valid().text_sha256} if measurement.cache == "tuned" else {}
        result = {"weights": self._weights, "trained_on_text": text, **tuned_on, **result}
        results.keep(self.path, measurement, result)
        return result

    def _valid(self) -> TokenStream:
        assert isinstance(self.trained, TrainedLanguageModel)
        return self.trained.split("valid", self.data_dir)

    def _cache(self, measurement: Measurement, progress: Progress) -> CacheSettings:
        """Of the recipe, or tuned on the validation set once for each run, gate and text."""
        assert isinstance(self.trained, TrainedLanguageModel)
        if measurement.cache == "recipe":
            return cache_settings(self.trained)
        tuning = Measurement("valid", measurement.eval_gate, "tuned")
        name = f"{tuning.name}-settings.json"
        file = self.path / results.FOLDER / name
        valid = self._valid()
        tuned_for = {"weights": self._weights, "valid_sha256": valid.text_sha256}
        if not file.is_file() or not tuned_for.items() <= results.read(file).items():
            tokens = torch.from_numpy(valid.read(0, len(valid)))
            found = tune_cache(self.trained.model, tokens, eval_gate=measurement.eval_gate, progress=progress).settings
            results.write(self.path, name, {**vars(found), **tuned_for})
        try:
            return CacheSettings(**{key: value for key, value in results.read(file).items() if key not in tuned_for})
        except results.STRANGE:
            raise results.damaged(file) from None
