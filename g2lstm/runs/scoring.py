"""Scores of a trained model on a split of its data, each with the signature that says what it rests on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch

from g2lstm.errors import G2Error
from g2lstm.nn.mode import evaluating, lstms
from g2lstm.runs.sentences import bleu_by_sentence, nats_by_sentence
from g2lstm.tasks.lm.cache import CacheSettings, cached_perplexity, tune_cache
from g2lstm.tasks.lm.dynamic import DynamicSettings, dynamic_perplexity, gradient_mean_squares
from g2lstm.tasks.lm.evaluate import perplexity
from g2lstm.tasks.lm.trained import TrainedLanguageModel
from g2lstm.tasks.mt.bleu import score
from g2lstm.tasks.mt.trained import TrainedTranslationModel
from g2lstm.text.lines import sha256_of

Progress: TypeAlias = Callable[[int, int], None]  # tokens or sentences done, and those in all


def cache_settings(
    trained: TrainedLanguageModel, window: int | None = None, theta: float | None = None, share: float | None = None
) -> CacheSettings:
    """The recipe's cache, with what is given instead."""
    own = trained.recipe.evaluate.cache
    return CacheSettings(
        window=own.window if window is None else window,
        theta=own.theta if theta is None else theta,
        share=own.lambda_ if share is None else share,
    )


def score_language(
    trained: TrainedLanguageModel,
    split: str,
    *,
    eval_gate: str | None = None,
    cache: CacheSettings | None = None,
    tunes_cache: bool = False,
    dynamic: bool = False,
    compressed: str | None = None,
    by_sentence: bool = False,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Perplexity on a split read as one stream, as `result.json` has it.

    Args:
        trained: the model.
        split: valid, test or train.
        eval_gate: "soft", "tempered" or "hard"; None for the model's own.
        cache: mix in the cache pointer.
        tunes_cache: find its settings on the validation split instead.
        dynamic: learn from what was read; not together with a cache.
        compressed: the spec, where a model was compressed after it was loaded.
        by_sentence: also tell what each sentence adds to the sums that the score is made of.
        data_dir: a folder that holds the named data sets.
        progress: called with the tokens done and those in all.
    """
    if dynamic and (cache is not None or tunes_cache):
        raise G2Error("the cache and dynamic evaluation cannot be mixed; ask for one of them")
    model, gate = trained.model, _gate_of(trained, eval_gate)
    stream = trained.split(split, data_dir)
    tokens = torch.from_numpy(stream.read(0, len(stream)))
    facts = _facts(trained, stream.text_sha256[:8], split, gate, compressed)
    if tunes_cache:
        valid = trained.split("valid", data_dir)
        ids = torch.from_numpy(valid.read(0, len(valid)))
        cache = tune_cache(model, ids, eval_gate=gate, progress=progress).settings
    if cache is not None:
        facts["cache"] = f"{cache.window},{cache.theta:g},{cache.share:g}"
        found = cached_perplexity(model, tokens, cache, eval_gate=gate, progress=progress)
    elif dynamic and (spec := trained.run.compression) is not None:
        raise G2Error(
            f"dynamic evaluation trains the weights, and those in {trained.run.path} are compressed ({spec}); "
            "take the run that they were made from"
        )
    elif dynamic:
        rule = DynamicSettings()
        facts["dynamic"] = f"rms,{rule.segment},{rule.learning_rate:g},{rule.decay:g}"
        train = torch.from_numpy(trained.split("train", data_dir).read(0, 1 << 20))  # more would change little
        squares = gradient_mean_squares(model, train, eval_gate=gate, progress=progress)
        found = dynamic_perplexity(model, tokens, squares, rule, eval_gate=gate, progress=progress)
    else:
        found = perplexity(model, tokens, eval_gate=gate, progress=progress)
    result: dict[str, Any] = {
        "perplexity": found.perplexity,
        "split": split,
        "tokens": found.tokens,
        "eval_gate": gate,
        **{name: facts[name] for name in ("cache", "dynamic", "compressed") if name in facts},
        "signature": trained.run.signature(**facts),
    }
    if by_sentence:
        ends = (tokens[1:] == trained.tokenizer.eos_id).numpy()
        result["by_sentence"] = nats_by_sentence(-found.log_probabilities.double().numpy(), ends)
    return result


def score_translation(
    trained: TrainedTranslationModel,
    split: str,
    *,
    eval_gate: str | None = None,
    beam: int | None = None,
    length_penalty: float | None = None,
    compressed: str | None = None,
    by_sentence: bool = False,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """BLEU and chrF on a split, as `result.json` has them.

    Args:
        trained: the model.
        split: valid, test or train.
        eval_gate: "soft", "tempered" or "hard"; None for the model's own.
        beam: hypotheses that are followed; this and the next are the recipe's if not given.
        length_penalty: scores are divided by length to this power.
        compressed: the spec, where a model was compressed after it was loaded.
        by_sentence: also tell what each sentence adds to the sums that the score is made of.
        data_dir: a folder that holds the named data sets.
        progress: called with the sentences done and those in all.
    """
    how, gate = trained.recipe.evaluate, _gate_of(trained, eval_gate)
    beam = how.beam if beam is None else beam
    length_penalty = how.length_penalty if length_penalty is None else length_penalty
    files = trained.files(split, data_dir)
    sources, references = trained.split(split, data_dir)
    with evaluating(trained.model):
        found = trained.search(
            sources, beam=beam, length_penalty=length_penalty, max_source=None, eval_gate=gate, progress=progress
        )
    texts = [best[0].text for best in found]
    scores = score(texts, references, tokenize=how.bleu.tokenize, lowercase=how.bleu.lowercase)
    hashes = "+".join(sha256_of(file)[:8] for file in files)
    facts = _facts(trained, hashes, split, gate, compressed)
    facts |= {"beam": str(beam), "penalty": f"{length_penalty:g}"}
    result: dict[str, Any] = {
        "bleu": scores.bleu,
        "chrf": scores.chrf,
        "split": split,
        "sentences": len(texts),
        "eval_gate": gate,
        "beam": beam,
        "length_penalty": length_penalty,
        **({"trained_on": trained.partial} if trained.partial else {}),
        "bleu_signature": scores.bleu_signature,
        "chrf_signature": scores.chrf_signature,
        **{name: facts[name] for name in ("compressed",) if name in facts},
        "signature": trained.run.signature(**facts),
    }
    if by_sentence:
        result["by_sentence"] = bleu_by_sentence(texts, references, how.bleu)
    return result


def _gate_of(trained: TrainedLanguageModel | TrainedTranslationModel, eval_gate: str | None) -> str:
    layers = lstms(trained.model)
    if not layers and eval_gate not in (None, "soft"):  # after `freeze_`
        raise G2Error(f"this model's layers are torch.nn.LSTMs, whose gates are soft, not {eval_gate!r}; load it anew")
    return eval_gate or (layers[0].eval_gate if layers else "soft")


def _facts(
    trained: TrainedLanguageModel | TrainedTranslationModel, hashes: str, split: str, gate: str, compressed: str | None
) -> dict[str, str]:
    """What the signature says beside the run's own facts."""
    facts = {} if compressed is None else {"compressed": compressed}
    return facts | {"data": f"{trained.recipe.data.name or 'own'}/{hashes}", "split": split, "gate": gate}
