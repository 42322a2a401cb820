"""A measurement against the functions that other commands score with."""

import copy
import json

import numpy as np
import pytest
import torch

from g2lstm import G2Error, compress
from g2lstm.compression.spec import Spec
from g2lstm.lab.study.jobs import Measured, measured, weights_of
from g2lstm.lab.study.plan import Measurement
from g2lstm.lab.study.runner import Measuring
from g2lstm.lab.study.table import bleu_of, perplexity_of
from g2lstm.runs.compressed import write_run
from g2lstm.runs.records import Score
from g2lstm.runs.trained import load, score
from g2lstm.tasks.lm.evaluate import perplexity, tune_cache
from g2lstm.tasks.recipes import load_recipe
from g2lstm.tasks.trained import Scoring
from g2lstm.training.start import train_recipe
from tests.lab.study.toys import Noting, of_language, of_translation, write_pairs, write_text

SPEC = "gates=svd:1"


def trained_run(folder, recipe, overrides):
    train_recipe(load_recipe(recipe, overrides), folder, Noting())
    return folder


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language")
    overrides = [*of_language(write_text(folder / "text")), "train.epochs=4", "train.optimizer.lr=0.1"]
    return trained_run(folder / "run", "ptb-small", overrides)


@pytest.fixture(scope="module")
def translation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translation")
    overrides = [*of_translation(write_pairs(folder / "pairs")), "train.epochs=30", "train.optimizer.lr=0.03"]
    return trained_run(folder / "run", "multi30k-small", overrides)


def measure(run, measurement):
    result = Measuring(run).measure(measurement, lambda done, total: None)
    assert measured(run, measurement, load(run).recipe, weights_of(run)) == Measured.model_validate(
        json.loads(json.dumps(result))
    )
    return result


ROWS = ("by_sentence", "trained_on_text")


def without_rows(result):
    return {name: value for name, value in result.items() if name not in ROWS}


@pytest.mark.parametrize("measurement", [Measurement(), Measurement("valid", "hard"), Measurement(cache="recipe")])
def test_a_language_model_scores_as_eval_has_it(language, measurement):
    result = measure(language, measurement)
    trained = load(language)
    direct = score(
        trained, Scoring(measurement.split, eval_gate=measurement.eval_gate, cache=measurement.cache is not None)
    )
    assert without_rows(result) == direct
    assert Score(**direct) in trained.run.results()
    sums = np.sum(result["by_sentence"], axis=0, keepdims=True)
    assert perplexity_of(sums)[0] == pytest.approx(result["perplexity"], rel=1e-4)
    assert len(result["by_sentence"]) == {"test": 30, "valid": 20}[measurement.split]


def test_each_sentence_has_its_own_losses(language):
    rows = measure(language, Measurement())["by_sentence"]
    trained = load(language)
    stream = trained.split("test")
    tokens = torch.from_numpy(stream.read(0, len(stream)))
    losses = -perplexity(trained.model, tokens).log_probabilities
    at = 0
    for nats, count in rows:
        part = slice(at, at + count)
        assert nats == pytest.approx(losses[part].sum().item(), abs=1e-3)
        assert (tokens[1:][part] == trained.tokenizer.eos_id).tolist() == [False] * (count - 1) + [True]
        at += count
    assert at == len(losses)


def test_a_compressed_model_scores_as_its_run_directory_would(language, tmp_path):
    result = measure(language, Measurement(compression=SPEC))
    trained = load(language)
    model = compress(trained.model, SPEC)
    folder = tmp_path / "compressed"
    folder.mkdir()
    write_run(folder, trained.run, model, Spec.parse(SPEC))
    direct = score(load(folder), Scoring("test", eval_gate="soft"))
    assert result["perplexity"] == pytest.approx(direct["perplexity"], rel=1e-6)
    assert result["signature"] == direct["signature"]
    assert result["compressed"] == SPEC
    assert result["perplexity"] != measure(language, Measurement())["perplexity"]
    assert not any("compressed" in score.signature for score in trained.run.results())


@pytest.mark.filterwarnings("error:compression changes these matrices")
def test_no_warning_of_what_a_study_measures(language):
    with pytest.raises(UserWarning, match="changes these matrices a lot"):
        compress(load(language).model, "gates=svd:1")
    assert measure(language, Measurement(compression="gates=svd:1"))["compressed"] == "gates=svd:1"


def test_a_tuned_cache_is_that_of_the_validation_set_and_of_the_uncompressed_model(language):
    result = measure(language, Measurement(cache="tuned", compression=SPEC))
    trained = load(language)
    valid = trained.split("valid")
    best = tune_cache(trained.model, torch.from_numpy(valid.read(0, len(valid))))
    assert best.lambda_ > 0.01, "a cache that does something"
    assert result["cache"] == f"{best.window},{best.theta:g},{best.lambda_:g}"
    other = copy.copy(trained)
    other.model = compress(trained.model, SPEC)
    assert result["perplexity"] == pytest.approx(
        score(other, Scoring("test", cache_window=best.window, cache_theta=best.theta, cache_lambda=best.lambda_))[
            "perplexity"
        ],
        rel=1e-6,
    )


def test_a_translation_model_scores_as_eval_has_it(translation):
    result = measure(translation, Measurement())
    assert without_rows(result) == score(load(translation), Scoring("test", eval_gate="soft"))
    assert result["bleu"] > 0, "a score that says something"
    assert bleu_of(np.sum(result["by_sentence"], axis=0, keepdims=True))[0] == pytest.approx(result["bleu"], abs=1e-9)
    assert len(result["by_sentence"]) == 24


def test_a_compressed_translation_model(translation):
    result = measure(translation, Measurement(compression="gates=round:0.5"))
    trained = load(translation)
    trained.model = compress(trained.model, "gates=round:0.5")
    assert result["bleu"] == score(trained, Scoring("test"))["bleu"]
    assert "|compressed:gates=round:0.5|" in result["signature"]


def test_translation_has_no_cache(translation):
    with pytest.raises(G2Error, match="--cache can.t be used here: .* is a translation model"):
        measure(translation, Measurement(cache="tuned"))
