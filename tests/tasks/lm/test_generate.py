from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from g2lstm.errors import G2Error
from g2lstm.tasks.lm.generate import choose, generate
from g2lstm.tasks.lm.model import LanguageModel

VOCABULARY = 19
LOGITS = st.lists(st.floats(-50, 50), min_size=2, max_size=30).map(lambda values: torch.tensor(values))


@pytest.fixture
def model():
    model = LanguageModel(VOCABULARY, 6, 8, 2)
    with torch.no_grad():
        model.softmax_bias.normal_()
    return model


def take(count, *args, **options):
    return list(islice(generate(*args, **options), count))


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_same_seed_same_tokens(model):
    one, same, other = (take(40, model, [3, 5], generator=seeded(seed)) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert all(0 <= token < VOCABULARY for token in one)


def test_global_generator_is_left_alone_if_one_is_given(model):
    before = torch.get_rng_state()
    take(5, model, [3], generator=seeded(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_greedy_is_the_likeliest_after_all_that_was_read(model):
    got = take(8, model, [3, 5], temperature=0.0)
    model.eval()
    text = [3, 5]
    for token in got:
        logits = model.logits(model(torch.tensor(text).unsqueeze(1)).features[-1, 0])
        assert token == logits.argmax()
        text.append(token)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong", [float("inf"), float("nan")])
def test_logits_that_are_not_finite_are_no_reason_to_draw(temperature, wrong):
    with pytest.raises(G2Error, match="logits that are not finite"):
        choose(torch.tensor([0.0, wrong, -float("inf")]), temperature)


def test_forbidden_tokens_never_come(model):
    forbidden = list(range(1, VOCABULARY))
    assert set(take(20, model, [4], forbidden=forbidden)) == {0}
    assert set(take(20, model, [4], forbidden=forbidden, temperature=0.0)) == {0}


def test_frequencies_are_those_of_the_tempered_softmax():
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    draws, generator = 4000, seeded(0)
    counts = torch.bincount(torch.tensor([choose(logits, 2.0, generator=generator) for _ in range(draws)]), minlength=4)
    expected = (logits / 2.0).softmax(0)
    assert ((counts / draws - expected).abs() < 5 * (expected * (1 - expected) / draws).sqrt()).all()


@given(LOGITS, st.integers(1, 35), st.floats(0.01, 10), st.integers(0, 1000))
def test_top_k_draws_one_of_the_k_likeliest(logits, k, temperature, seed):
    token = choose(logits, temperature, top_k=k, generator=seeded(seed))
    assert (logits > logits[token]).sum() < k


@given(LOGITS, st.floats(0.01, 1.0), st.integers(0, 1000))
def test_top_p_draws_from_the_nucleus(logits, p, seed):
    token = choose(logits, 1.0, top_p=p, generator=seeded(seed))
    probabilities = logits.double().softmax(0)
    likelier = probabilities[logits > logits[token]].sum()
    assert likelier < p + 1e-9


@given(LOGITS, st.integers(0, 1000))
def test_narrow_limits_are_greedy(logits, seed):
    best = logits.max()
    for options in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-300}, {"temperature": 0.0}):
        assert logits[choose(logits, **options, generator=seeded(seed))] == best


def test_nucleus_is_the_fewest_that_reach_p():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    drawn = {choose(logits, 1.0, top_p=0.75, generator=seeded(seed)) for seed in range(200)}
    assert drawn == {0, 1}


def test_model_is_as_before_between_tokens(model):
    model.train()
    tokens = generate(model, [1], eval_gate="hard")
    next(tokens)
    assert model.training
    assert {layer.eval_gate for layer in model.lstms} == {"soft"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature must be a finite number of at least 0, got -1.0"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"top_p": 0.0}, r"top_p is a probability and must lie in \(0, 1\], got 0.0"),
    ],
)
def test_bad_arguments_are_told_at_once(model, options, message):
    with pytest.raises(G2Error, match=message):
        generate(model, **{"prompt": [1], **options})
