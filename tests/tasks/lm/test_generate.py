from itertools import islice

import numpy as np
import pytest
import torch

from g2lstm.errors import G2Error
from g2lstm.runtime.sampling import continuation
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.lm.trained import reader
from g2lstm.tasks.lm.trained import seeded as seeded_by_torch

VOCABULARY = 19


def generate(model, prompt, eval_gate=None, generator=None, **options):
    """Token ids without end that continue a prompt."""
    return continuation(reader(model, eval_gate), prompt, generator=generator or seeded_by_torch(None), **options)


@pytest.fixture
def model():
    model = LanguageModel(VOCABULARY, 6, 8, 2)
    with torch.no_grad():
        model.softmax_bias.normal_()
    return model


def take(count, *args, **options):
    return list(islice(generate(*args, **options), count))


def seeded(seed):
    return np.random.default_rng(seed)


def test_same_seed_same_tokens(model):
    one, same, other = (take(40, model, [3, 5], generator=seeded(seed)) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert all(0 <= token < VOCABULARY for token in one)


def test_global_generator_is_left_alone_if_one_is_given(model):
    before = torch.get_rng_state()
    take(5, model, [3], generator=seeded(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_generator_torchs_own_decides(model):
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(take(40, model, [3]))
    assert drawn[0] == drawn[1] != drawn[2]


def test_greedy_is_the_likeliest_after_all_that_was_read(model):
    got = take(8, model, [3, 5], temperature=0.0)
    model.eval()
    text = [3, 5]
    for token in got:
        logits = model.logits(model(torch.tensor(text).unsqueeze(1)).features[-1, 0])
        assert token == logits.argmax()
        text.append(token)


def test_forbidden_tokens_never_come(model):
    forbidden = list(range(1, VOCABULARY))
    assert set(take(20, model, [4], forbidden=forbidden)) == {0}
    assert set(take(20, model, [4], forbidden=forbidden, temperature=0.0)) == {0}


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
        ({"top_k": 0}, "top_k must be a whole number of at least 1, got 0"),
        ({"top_p": 0.0}, r"top_p is a probability and must lie in \(0, 1\], got 0.0"),
    ],
)
def test_bad_arguments_are_told_at_once(model, options, message):
    with pytest.raises(G2Error, match=message):
        generate(model, **{"prompt": [1], **options})
