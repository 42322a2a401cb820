"""Measures one run in one way: its score, and what each sentence adds to it."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from g2lstm.compression.model import compress
from g2lstm.config.mt import BleuSection
from g2lstm.data.text import sha256_of
from g2lstm.errors import G2Error
from g2lstm.lm.cache import CacheSettings, cached_perplexity, tune_cache
from g2lstm.lm.evaluate import perplexity
from g2lstm.mt.bleu import score as bleu_score
from g2lstm.runs.language import TrainedLanguageModel
from g2lstm.runs.trained import load
from g2lstm.runs.translation import TrainedTranslationModel
from g2lstm.study import results
from g2lstm.study.plan import Measurement
from g2lstm.study.significance import Array

Progress = Callable[[int, int], None]
Rows = Sequence[Sequence[float]]  # what each sentence adds to the sums of its score
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
        if isinstance(trained, TrainedLanguageModel):
            score, by_sentence = self._perplexity(trained, measurement, progress)
        else:
            score, by_sentence = self._bleu(trained, measurement, progress)
        if spec is None:
            trained.run.add_result(score)
        result = {**score, **_compression_fact(measurement), "by_sentence": by_sentence}
        results.keep(self.path, measurement, result)
        return result

    def _perplexity(
        self, trained: TrainedLanguageModel, measurement: Measurement, progress: Progress
    ) -> tuple[dict[str, Any], Rows]:
        stream = trained.split(measurement.split, self.data_dir)
        tokens = torch.from_numpy(stream.read(0, len(stream)))
        gate = measurement.eval_gate
        facts = _compression_fact(measurement)
        facts |= {"data": f"{trained.recipe.data.name or 'own'}/{stream.text_sha256[:8]}", "split": measurement.split}
        facts["gate"] = gate
        if measurement.cache is None:
            score = perplexity(trained.model, tokens, eval_gate=gate, progress=progress)
        else:
            cache = self._cache(measurement, progress)
            facts["cache"] = f"{cache.window},{cache.theta:g},{cache.share:g}"
            score = cached_perplexity(trained.model, tokens, cache, eval_gate=gate, progress=progress)
        ends = (tokens[1:] == trained.tokenizer.eos_id).numpy()
        result = {
            "perplexity": score.perplexity,
            "split": measurement.split,
            "tokens": score.tokens,
            "eval_gate": gate,
            **({"cache": facts["cache"]} if measurement.cache else {}),
            "signature": trained.run.signature(**facts),
        }
        return result, _nats_by_sentence(-score.log_probabilities.double().numpy(), ends)

    def _cache(self, measurement: Measurement, progress: Progress) -> CacheSettings:
        """Of the recipe, or tuned on the validation set once for each run and gate."""
        assert isinstance(self.trained, TrainedLanguageModel)
        own = self.trained.recipe.evaluate.cache
        if measurement.cache == "recipe":
            return CacheSettings(own.window, own.theta, own.lambda_)
        tuning = Measurement("valid", measurement.eval_gate, "tuned")
        file = self.path / results.FOLDER / f"{tuning.name}-settings.json"
        if not file.is_file():
            valid = self.trained.split("valid", self.data_dir)
            tokens = torch.from_numpy(valid.read(0, len(valid)))
            found = tune_cache(self.trained.model, tokens, eval_gate=measurement.eval_gate, progress=progress).settings
            results.write(file, vars(found))
        return CacheSettings(**results.read(file))

    def _bleu(
        self, trained: TrainedTranslationModel, measurement: Measurement, progress: Progress
    ) -> tuple[dict[str, Any], Rows]:
        if measurement.cache is not None:
            raise G2Error(f"{self.path} is a translation model; the cache is for language models")
        how, split, gate = trained.recipe.evaluate, measurement.split, measurement.eval_gate
        sources, references = trained.split(split, self.data_dir)
        found = trained.search(sources, eval_gate=gate, progress=progress)
        texts = [best[0].text for best in found]
        scores = bleu_score(texts, references, tokenize=how.bleu.tokenize, lowercase=how.bleu.lowercase)
        hashes = "+".join(sha256_of(file)[:8] for file in trained.files(split, self.data_dir))
        facts = _compression_fact(measurement)
        facts |= {"data": f"{trained.recipe.data.name or 'own'}/{hashes}", "split": split, "gate": gate}
        facts |= {"beam": str(how.beam), "penalty": f"{how.length_penalty:g}"}
        result = {
            "bleu": scores.bleu,
            "chrf": scores.chrf,
            "split": split,
            "sentences": len(texts),
            "eval_gate": gate,
            "beam": how.beam,
            "length_penalty": how.length_penalty,
            **({"trained_on": trained.partial} if trained.partial else {}),
            "bleu_signature": scores.bleu_signature,
            "chrf_signature": scores.chrf_signature,
            "signature": trained.run.signature(**facts),
        }
        return result, _bleu_by_sentence(texts, references, how.bleu)


def _compression_fact(measurement: Measurement) -> dict[str, str]:
    return {} if measurement.spec is None else {"compressed": measurement.spec}


def _nats_by_sentence(nats: Array, ends: Any) -> list[list[float]]:
    """For each line the sum of -log p and the tokens, its <eos> with them; (n,) each."""
    starts = np.flatnonzero(np.concatenate([[True], ends[:-1]]))
    sums = np.add.reduceat(nats, starts)
    counts = np.diff(np.append(starts, len(nats)))
    return [[round(float(total), 4), int(count)] for total, count in zip(sums, counts, strict=True)]


def _bleu_by_sentence(texts: Sequence[str], references: Sequence[str], how: BleuSection) -> list[list[int]]:
    """For each sentence: matches of 1 to 4 words, n-grams of 1 to 4 words, its length, and the reference's."""
    from sacrebleu.metrics.bleu import BLEU

    bleu = BLEU(tokenize=how.tokenize, lowercase=how.lowercase, force=True, effective_order=True)
    scores = [bleu.sentence_score(text, [reference]) for text, reference in zip(texts, references, strict=True)]
    return [[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores]
