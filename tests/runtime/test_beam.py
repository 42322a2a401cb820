from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from g2lstm.errors import G2Error
from g2lstm.runtime.beam import Offers, SearchOptions, beam_search
from g2lstm.runtime.sampling import Utf8

EOS = 0
PENALTIES = st.sampled_from([0.0, 0.5, 1.0, 2.0])
SEEDS = st.integers(0, 10_000)
PIECES = st.sampled_from([b"a", b"", *(bytes([byte]) for byte in "é猫🙂".encode()), "é".encode(), b"\x81a", b"a\xc3"])


class State(NamedTuple):
    nodes: np.ndarray  # (B, K)
    is_first: bool = False

    def select(self, sentences, hypotheses):
        assert (np.diff(sentences) > 0).all()
        return State(np.take_along_axis(self.nodes[sentences], hypotheses, axis=1))


class Automaton:
    """A random model with as many states of mind as `nodes`; a sentence is where it starts."""

    def __init__(self, words, seed, *, nodes=50, sharpness=2.0, dtype=np.float64):
        rng = np.random.default_rng(seed)
        logits = rng.normal(size=(nodes, words)) * sharpness
        self.log_probabilities = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(dtype)
        self.following = rng.integers(nodes, size=(nodes, words))
        self.looks = rng.random((nodes, 7))
        self.words, self.widths = words, []

    def step(self, tokens, state, count):
        assert tokens.shape == state.nodes.shape
        self.widths.append(tuple(tokens.shape))
        if state.is_first:
            assert (tokens == EOS).all()
        nodes = state.nodes if state.is_first else self.following[state.nodes, tokens]
        likely = self.log_probabilities[nodes]
        best = np.argsort(-likely, axis=-1, kind="stable")[..., :count]
        if np.isnan(likely).any():
            best = np.argsort(~np.isnan(likely), axis=-1)[..., :count]
        values = np.take_along_axis(likely, best, axis=-1)
        return Offers(values, best, likely[..., EOS], self.looks[nodes], State(nodes))

    def search(self, starts, max_lengths, **options):
        state = State(np.array(starts)[:, None], is_first=True)
        return beam_search(self.step, state, len(starts), np.array(max_lengths), SearchOptions(EOS, **options))

    def nodes_of(self, start, tokens):
        nodes = [start]
        for token in tokens:
            nodes.append(int(self.following[nodes[-1], token]))
        return nodes

    def log_probability(self, start, tokens):
        steps = zip(self.nodes_of(start, tokens), [*tokens, EOS], strict=True)
        return sum(self.log_probabilities[node, token].item() for node, token in steps)


class TiedError(Exception):
    """Two hypotheses are equally likely, as when the automaton passes the same nodes in another order."""


def check_distinct(scores):
    if any(before - after < 1e-9 for before, after in pairwise(scores)):
        raise TiedError


def is_whole(utf8, tokens, max_length):
    """Whether tokens make characters, and those that an unfinished one lacks have room."""
    missing = 0
    for token in tokens:
        missing = utf8.after[missing, token]
        if missing < 0:
            return False
    return missing <= max(max_length - len(tokens), 0)


def slow_search(model, start, max_length, *, beam, length_penalty=1.0, n_best=1, forbidden=(), utf8=None):
    """The definition, for one sentence, in plain Python, and never ending early; it has no answer to ties."""
    unfinished, finished = [(0.0, [], start)], []
    while unfinished and len(finished) < beam:
        continuations = []
        for total, tokens, node in unfinished:
            for word in range(model.words) if len(tokens) < max_length else [EOS]:
                if word not in forbidden and (utf8 is None or is_whole(utf8, [*tokens, word], max_length)):
                    likely = total + model.log_probabilities[node, word].item()
                    continuations.append((likely, [*tokens, word], model.following[node, word].item()))
        continuations.sort(key=lambda one: -one[0])
        check_distinct(likely for likely, *_ in continuations[: 2 * beam + 1])
        finished += [one for one in continuations[:beam] if one[1][-1] == EOS]
        unfinished = [one for one in continuations if one[1][-1] != EOS][:beam]
    scored = [(total / len(tokens) ** length_penalty, tokens[:-1]) for total, tokens, _ in finished]
    scored.sort(reverse=True)
    check_distinct(score for score, _ in scored[: n_best + 1])
    return scored[:n_best]


def every_sentence(model, start, max_length, length_penalty):
    for length in range(max_length + 1):
        for tokens in product(range(1, model.words), repeat=length):
            yield model.log_probability(start, tokens) / (length + 1) ** length_penalty, list(tokens)


@settings(max_examples=40)
@given(SEEDS, st.integers(2, 30), st.integers(0, 12), PENALTIES)
def test_a_beam_of_one_is_greedy(seed, words, max_length, length_penalty):
    model = Automaton(words, seed)
    [[got]] = model.search([3], [max_length], beam=1, length_penalty=length_penalty)
    node, tokens = 3, []
    while len(tokens) < max_length:
        word = model.log_probabilities[node].argmax().item()
        if word == EOS:
            break
        tokens.append(word)
        node = model.following[node, word]
    assert got.tokens == tokens


@given(SEEDS, st.integers(3, 4), st.integers(0, 4), PENALTIES, st.floats(0.1, 4))
def test_a_beam_that_holds_everything_is_exhaustive_search(seed, words, max_length, length_penalty, sharpness):
    model = Automaton(words, seed, sharpness=sharpness)
    first, *others = sorted(every_sentence(model, 5, max_length, length_penalty), reverse=True)[:4]
    assume(all(before[0] > after[0] for before, after in pairwise([first, *others])))  # equal ones have no order
    expected = [first, *others][:3]
    [got] = model.search([5], [max_length], beam=words**4, n_best=3, length_penalty=length_penalty)
    assert [one.tokens for one in got] == [tokens for _, tokens in expected]
    assert [one.score for one in got] == pytest.approx([score for score, _ in expected])


@given(SEEDS, st.integers(2, 12), st.integers(0, 9), st.integers(1, 6), PENALTIES, st.data())
def test_is_the_definition_and_stopping_early_changes_nothing(seed, words, max_length, beam, length_penalty, data):
    model = Automaton(words, seed, sharpness=data.draw(st.floats(0.1, 4)))
    options = {"beam": beam, "length_penalty": length_penalty, "n_best": data.draw(st.integers(1, beam))}
    options["forbidden"] = data.draw(st.lists(st.integers(1, words - 1), max_size=3))
    options["utf8"] = Utf8([b"\n", *data.draw(st.lists(PIECES, min_size=words - 1, max_size=words - 1))])
    try:
        expected = slow_search(model, 1, max_length, **options)
    except TiedError:
        reject()
    [got] = model.search([1], [max_length], **options)
    assert [one.tokens for one in got] == [tokens for _, tokens in expected]
    assert [one.score for one in got] == pytest.approx([score for score, _ in expected])


@settings(max_examples=40)
@given(SEEDS, st.lists(st.tuples(st.integers(0, 49), st.integers(0, 10)), min_size=1, max_size=6), st.integers(1, 5))
def test_a_batch_is_as_one_sentence_at_a_time(seed, sentences, beam):
    model = Automaton(8, seed)
    starts, max_lengths = [start for start, _ in sentences], [length for _, length in sentences]
    together = model.search(starts, max_lengths, beam=beam, n_best=beam)
    assert together == [model.search([start], [length], beam=beam, n_best=beam)[0] for start, length in sentences]


@settings(max_examples=40)
@given(SEEDS, st.integers(1, 6), PENALTIES)
def test_what_is_said_of_hypotheses_is_true(seed, beam, length_penalty):
    model = Automaton(9, seed)
    for start, best in enumerate(
        model.search(list(range(4)), [8] * 4, beam=beam, n_best=beam, length_penalty=length_penalty)
    ):
        assert len({tuple(one.tokens) for one in best}) == len(best) == beam
        assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)
        for one in best:
            assert EOS not in one.tokens
            assert one.log_probability == pytest.approx(model.log_probability(start, one.tokens))
            assert one.score == pytest.approx(one.log_probability / (len(one.tokens) + 1) ** length_penalty)
            assert one.attention is None


@settings(max_examples=40)
@given(SEEDS, st.integers(1, 5))
def test_attention_is_that_of_each_token_and_of_the_end(seed, beam):
    model = Automaton(6, seed)
    starts, max_lengths = [2, 7, 9], [6, 0, 3]
    plain = model.search(starts, max_lengths, beam=beam, n_best=beam)
    kept = model.search(starts, max_lengths, beam=beam, n_best=beam, keep_attention=True)
    assert kept == plain
    for start, best in zip(starts, kept, strict=True):
        for one in best:
            assert np.array_equal(one.attention, model.looks[model.nodes_of(start, one.tokens)])


def test_length_penalty_makes_sentences_longer():
    model = Automaton(6, 0, sharpness=0.5)
    starts = list(range(20))
    means = []
    for length_penalty in (0.0, 0.5, 1.0, 2.0):
        best = model.search(starts, [10] * 20, beam=50, length_penalty=length_penalty)
        means.append(sum(len(one.tokens) for [one] in best) / 20)
    assert means == sorted(means)
    assert means[0] < means[2] < means[3]


def test_stops_as_soon_as_nothing_better_can_come():
    model = Automaton(5, 0)
    model.log_probabilities = np.tile(np.log([0.9, 0.04, 0.03, 0.02, 0.01]), (50, 1))
    [[got]] = model.search([0], [30], beam=4, length_penalty=0.0)
    assert got.tokens == []
    assert len(model.widths) == 1
    model.widths.clear()
    model.search([0], [30], beam=4, n_best=2, length_penalty=0.0)  # the second best is not known yet
    assert len(model.widths) == 2


def test_finished_sentences_leave_the_batch():
    model = Automaton(5, 0)
    model.log_probabilities[:, EOS] = -9.0
    model.search([0, 1, 2], [4, 1, 2], beam=2)
    assert model.widths == [(3, 1), (3, 2), (2, 2), (1, 2), (1, 2)]


def test_the_end_comes_at_the_longest_length_however_unlikely():
    model = Automaton(40, 0)
    model.log_probabilities[:, EOS] = -50.0
    best = model.search([0, 1, 2], [0, 1, 7], beam=3, n_best=3)
    assert [[len(one.tokens) for one in one_best] for one_best in best] == [[0], [1] * 3, [7] * 3]
    assert best[0][0].log_probability == -50.0
    assert best[2][0].log_probability == pytest.approx(model.log_probability(2, best[2][0].tokens))


def test_forbidden_words_never_come_and_the_next_best_do():
    model = Automaton(12, 3)
    for start in range(10):
        likeliest = model.log_probabilities[start].argsort()[::-1].tolist()
        options = {"beam": 4, "n_best": 4, "forbidden": [word for word in likeliest if word != EOS][:5]}
        [got] = model.search([start], [3], **options)
        assert [one.tokens for one in got] == [tokens for _, tokens in slow_search(model, start, 3, **options)]
        assert not {token for one in got for token in one.tokens} & set(options["forbidden"])
    assert [[one.tokens for one in best] for best in model.search([4], [6], forbidden=range(1, 12))] == [[[]]]


def test_impossible_words_make_no_hypotheses():
    model = Automaton(6, 0)
    model.log_probabilities[:, 3:] = -np.inf
    [best] = model.search([0], [2], beam=10, n_best=10)
    assert sorted(one.tokens for one in best) == [[], [1], [1, 1], [1, 2], [2], [2, 1], [2, 2]]


def test_sums_are_kept_in_single_precision_at_least():
    model = Automaton(20, 0, dtype=np.float16, sharpness=0.1)
    model.log_probabilities[:, EOS] = -40.0
    [[got]] = model.search([0], [30], beam=2)
    assert got.log_probability == pytest.approx(model.log_probability(0, got.tokens), rel=1e-6)


def test_a_broken_model_is_told():
    model = Automaton(5, 0)
    model.log_probabilities[7, 2] = np.nan
    with pytest.raises(G2Error, match="log-probabilities are not numbers"):
        model.search([0, 7], [5, 5])


def test_a_whole_penalty_is_that_number_also_for_long_sentences():
    """1024 to the power of 7 is 0 in 64 bits: a hope computed so would end the search too early."""
    model = Automaton(6, 3)
    whole, real = (model.search([1, 2, 3], [1023] * 3, length_penalty=p, n_best=3) for p in (7, 7.0))
    assert whole == real


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "beam must be a whole number from 1 to 1000, got 0"),
        ({"beam": 1.5}, "beam must be a whole number from 1 to 1000, got 1.5"),
        ({"beam": 5000}, "beam must be a whole number from 1 to 1000, got 5000"),
        ({"n_best": 0}, "n_best must be from 1 to the beam of 5, got 0"),
        ({"n_best": 6}, "n_best must be from 1 to the beam of 5, got 6; a wider beam finds more"),
        ({"length_penalty": -0.1}, "length_penalty must be from 0 to 10, got -0.1"),
        ({"length_penalty": float("nan")}, "length_penalty must be from 0 to 10, got nan"),
        ({"forbidden": [3, EOS]}, "<eos>, token id 0, is forbidden"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(G2Error, match=message):
        Automaton(5, 0).search([0], [5], **options)
