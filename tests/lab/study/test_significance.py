"""The bootstrap against direct computation."""

import math

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from g2lstm import G2Error
from g2lstm.lab.study.table import LEAST, Term, bleu_of, bootstrap, perplexity_of
from g2lstm.tasks.mt.trained import bleu_by_sentence


def losses(seed, shift=0.0, sentences=200):
    generator = np.random.default_rng(seed)
    tokens = generator.integers(3, 30, sentences).astype(float)
    nats = tokens * (4 + shift) + generator.normal(0, 2, sentences)
    return np.stack([nats, tokens], axis=1)


def test_the_value_is_the_difference_of_the_whole_set():
    first, second = losses(1), losses(1, 0.1)
    found = bootstrap([Term(1, [first]), Term(-1, [second])], perplexity_of, samples=50)
    direct = [math.exp(one[:, 0].sum() / one[:, 1].sum()) for one in (first, second)]
    assert found.value == pytest.approx(direct[0] - direct[1], rel=1e-12)
    assert found.low <= found.value <= found.high


@pytest.mark.parametrize("block", [1, 7])
def test_against_a_plain_loop_over_drawn_sentences(block):
    """Same distribution, another generator: quantiles and p agree within what 4000 samples allow."""
    first, second = losses(1), losses(2, 0.01)
    terms = [Term(1, [first]), Term(-1, [second])]
    found = bootstrap(terms, perplexity_of, samples=4000, block=block)
    blocks = [np.arange(at, min(at + block, 200)) for at in range(0, 200, block)]
    generator = np.random.default_rng(99)
    values = []
    for _ in range(4000):
        drawn = np.concatenate([blocks[k] for k in generator.integers(len(blocks), size=len(blocks))])
        one, other = (math.exp(side[drawn, 0].sum() / side[drawn, 1].sum()) for side in (first, second))
        values.append(one - other)
    values = np.array(values)
    spread = values.std()
    assert found.low == pytest.approx(np.quantile(values, 0.025), abs=0.2 * spread)
    assert found.high == pytest.approx(np.quantile(values, 0.975), abs=0.2 * spread)
    assert found.p_value == pytest.approx(2 * min((values <= 0).mean(), (values >= 0).mean()), abs=0.04)


def test_what_is_equal_is_chance_and_what_is_far_apart_is_not():
    assert bootstrap([Term(1, [losses(1)]), Term(-1, [losses(1)])], perplexity_of).p_value == 1
    assert bootstrap([Term(1, [losses(1)]), Term(-1, [losses(1, 0.5)])], perplexity_of).p_value < 0.01


@pytest.mark.parametrize("sentences", [LEAST, 200])
def test_chance_alone_is_found_significant_as_often_as_it_should_be(sentences):
    """Of two samples of one distribution a twentieth has p <= 0.05; of 200 that is 10 with a deviation of 3.1."""
    found = [
        bootstrap(
            [Term(1, [losses(k, sentences=sentences)]), Term(-1, [losses(1000 + k, sentences=sentences)])],
            perplexity_of,
            samples=200,
        ).p_value
        for k in range(200)
    ]
    assert sum(p <= 0.05 for p in found) <= 10 + 4 * 3.1


def test_the_interval_and_the_chance_tell_the_same():
    """Zero is outside of the interval where p is at most 0.05, and nowhere else."""
    for k in range(100):
        found = bootstrap([Term(1, [losses(k)]), Term(-1, [losses(500 + k)])], perplexity_of, samples=1000)
        assert (found.p_value <= 0.05) == (not found.low <= 0 <= found.high)


def test_seeds_are_averaged_and_drawn_together():
    seeds = [losses(k) for k in range(3)]
    found = bootstrap([Term(1, seeds)], perplexity_of, samples=20)
    assert found.value == pytest.approx(np.mean([perplexity_of(one.sum(0, keepdims=True))[0] for one in seeds]))


def test_a_difference_of_differences():
    a, b, c, d = (losses(k, shift) for k, shift in ((1, 0.0), (1, 0.2), (1, 0.1), (1, 0.5)))
    found = bootstrap([Term(1, [a]), Term(-1, [b]), Term(-1, [c]), Term(1, [d])], perplexity_of, samples=20)
    whole = [perplexity_of(one.sum(0, keepdims=True))[0] for one in (a, b, c, d)]
    assert found.value == pytest.approx(whole[0] - whole[1] - whole[2] + whole[3])


def test_other_sentences_cannot_be_compared():
    with pytest.raises(G2Error, match=r"on the same sentences, got \[3, 4\]"):
        bootstrap([Term(1, [losses(1)[:3]]), Term(-1, [losses(1)[:4]])], perplexity_of)


@pytest.mark.parametrize(("tokenize", "lowercase"), [("none", False), ("none", True), ("13a", True)])
def test_bleu_from_sums_is_sacrebleus_corpus_score(tokenize, lowercase):
    from g2lstm.tasks.mt.recipe import BleuSection

    texts = ["A man rides a red bike .", "", "two dogs", "the cat sat on the mat today", "Nothing here matches"]
    references = ["a man rides a bike .", "x y", "two Dogs run", "the cat sat on a mat", "so it is"]
    rows = bleu_by_sentence(texts, references, BleuSection(tokenize=tokenize, lowercase=lowercase))
    metric = BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    sums = np.array([np.sum(rows, axis=0), np.sum(rows[:2], axis=0), rows[2]], dtype=float)
    wanted = [metric.corpus_score(texts[s], [references[s]]).score for s in (slice(0, 5), slice(0, 2), slice(2, 3))]
    assert bleu_of(sums) == pytest.approx(wanted, abs=1e-9)
