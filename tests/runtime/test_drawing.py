"""Translations drawn at random: as often as the model says, the same in every batch, within their limits."""

from collections import Counter

import numpy as np
import pytest

from g2lstm.errors import G2Error
from g2lstm.runtime.beam import Drawing, SearchOptions, find
from tests.runtime.test_beam import EOS, Automaton, State

MODEL = Automaton(words=5, seed=1)


def draw(starts, longest=20, temperature=1.0, seed=0, **options):
    """The starts are the sources, too."""
    state, sources = State(np.array(starts)[:, None], is_first=True), [[start] for start in starts]
    most = np.full(len(starts), longest)
    how = SearchOptions(EOS, drawing=Drawing(temperature, seed), **options)
    return find(MODEL.step, state, sources, most, how)


def test_sentences_come_as_often_as_the_model_says():
    (found,) = draw([3], n_best=4000)
    counts = Counter(tuple(one.tokens) for one in found)
    for tokens, count in counts.most_common(5):
        share = np.exp(MODEL.log_probability(3, list(tokens)))
        assert abs(count - 4000 * share) < 5 * np.sqrt(4000 * share)  # five standard deviations


def test_a_temperature_of_zero_is_greedy_search():
    starts = list(range(20))
    searched = MODEL.search(starts, [20] * 20, beam=1)
    assert draw(starts, temperature=0) == searched


def test_a_low_temperature_prefers_the_likely():
    cold, warm = (np.mean([one.log_probability for one in draw([3], temperature=t, n_best=300)[0]]) for t in (0.3, 1.5))
    assert cold > warm + 1


def test_a_sentence_is_the_same_in_every_batch():
    together = draw([4, 9, 3], n_best=3, seed=7)
    alone = [draw([start], n_best=3, seed=7)[0] for start in (4, 9, 3)]
    assert together == alone
    assert together != draw([4, 9, 3], n_best=3, seed=8)
    assert len({tuple(one.tokens) for one in together[0]}) > 1


def test_what_is_said_of_them_is_true():
    for one in draw([5], n_best=50, keep_attention=True, length_penalty=0.5)[0]:
        assert one.log_probability == pytest.approx(MODEL.log_probability(5, one.tokens))
        assert one.score == pytest.approx(one.log_probability / (len(one.tokens) + 1) ** 0.5)
        assert np.array_equal(one.attention, MODEL.looks[MODEL.nodes_of(5, one.tokens)])


def test_lengths_and_words_are_limited():
    for one in draw([5, 6], longest=4, min_length=2, forbidden=[2], n_best=50)[1]:
        assert 2 <= len(one.tokens) <= 4
        assert 2 not in one.tokens
    assert {len(one.tokens) for one in draw([5], longest=1, min_length=3, n_best=9)[0]} == {3}


@pytest.mark.parametrize("how", [{"temperature": -1}, {"temperature": float("nan")}, {"seed": -1}, {"n_best": 0}])
def test_bad_arguments(how):
    with pytest.raises(G2Error, match="must be"):
        draw([1], **how)
