import copy

import pytest
import torch

from g2lstm.errors import G2Error
from g2lstm.tasks.lm.dynamic import DynamicSettings, dynamic_perplexity, gradient_mean_squares
from g2lstm.tasks.lm.evaluate import perplexity
from g2lstm.tasks.lm.model import LanguageModel, detach_state

VOCABULARY = 11


@pytest.fixture
def model():
    return LanguageModel(VOCABULARY, 5, 7, 2).double()


def by_hand(model, tokens, settings, roots):
    """The stream with the updates written out, on a copy."""
    model = copy.deepcopy(model).eval()
    trained = [p.detach().clone() for p in model.parameters()]
    mean = torch.cat([root.flatten() for root in roots]).mean()
    state, nats = model.initial_state(1), 0.0
    for at in range(0, len(tokens) - 1, settings.segment):
        x, y = tokens[at : at + settings.segment], tokens[at + 1 : at + settings.segment + 1]
        features, _, state = model(x[: len(y)].unsqueeze(1), state)
        losses = torch.nn.functional.cross_entropy(model.logits(features[:, 0]), y, reduction="none")
        nats += losses.sum().item()
        model.zero_grad()
        losses.mean().backward()
        state = detach_state(state)
        with torch.no_grad():
            for k, p in enumerate(model.parameters()):
                pull = (settings.decay * roots[k] / mean).clamp(max=1)
                p += pull * (trained[k] - p) - settings.learning_rate * p.grad / (roots[k] + settings.epsilon)
    return nats


def squares_of(model):
    return [torch.full_like(p, 0.01) for p in model.parameters()]


@pytest.mark.parametrize("settings", [DynamicSettings(segment=4, learning_rate=0.01, decay=0.1), DynamicSettings()])
def test_equals_the_updates_by_hand(model, settings):
    tokens = torch.randint(VOCABULARY, (43,))
    squares = gradient_mean_squares(model, tokens, batch=2, updates=3)
    given = None if settings == DynamicSettings() else settings
    got = dynamic_perplexity(model, tokens, squares, given)
    assert got.tokens == 42
    expected = by_hand(model, tokens, settings, [square.sqrt() for square in squares])
    assert got.nats == pytest.approx(expected, rel=1e-10)
    assert got.nats != pytest.approx(perplexity(model, tokens).nats, rel=1e-6)


def test_no_learning_is_plain_evaluation(model):
    tokens = torch.randint(VOCABULARY, (43,))
    got = dynamic_perplexity(model, tokens, squares_of(model), DynamicSettings(learning_rate=0.0))
    assert got.nats == pytest.approx(perplexity(model, tokens).nats)


def test_a_repeating_stream_is_learnt(model):
    tokens = torch.tensor([3, 8]).repeat(60)
    settings = DynamicSettings(learning_rate=0.05, decay=0.0)
    got = dynamic_perplexity(model, tokens, squares_of(model), settings)
    assert got.perplexity < 0.8 * perplexity(model, tokens).perplexity


def test_mean_squares_by_hand(model):
    tokens = torch.randint(VOCABULARY, (21,))
    got = gradient_mean_squares(model, tokens, batch=2, segment=5, updates=9)
    columns = torch.stack([tokens[:10], tokens[10:20]], dim=1)
    targets = torch.stack([tokens[1:11], tokens[11:21]], dim=1)
    expected = [torch.zeros_like(p) for p in model.parameters()]
    state = model.eval().initial_state(2)
    for at in (0, 5):
        features, _, state = model(columns[at : at + 5], state)
        state = detach_state(state)
        logits = model.logits(features).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, targets[at : at + 5].flatten())
        for total, gradient in zip(expected, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            total += gradient**2 / 2
    assert all(torch.allclose(a, b, atol=1e-14) for a, b in zip(got, expected, strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_weights_and_mode_are_put_back_also_by_an_exception(model):
    before = copy.deepcopy(model.state_dict())
    tokens = torch.randint(VOCABULARY, (60,))

    def stop(done, total):
        if done >= 20:
            raise KeyboardInterrupt

    squares, settings = squares_of(model), DynamicSettings(learning_rate=0.1)
    dynamic_perplexity(model, tokens, squares, settings)
    with pytest.raises(KeyboardInterrupt):
        dynamic_perplexity(model, tokens, squares, settings, progress=stop)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_bad_arguments(model):
    tokens = torch.randint(VOCABULARY, (20,))
    with pytest.raises(G2Error, match="hard gates have no gradient"):
        dynamic_perplexity(model, tokens, squares_of(model), eval_gate="hard")
    with pytest.raises(G2Error, match="mean_squares must hold one tensor for each parameter"):
        dynamic_perplexity(model, tokens, [])
    with pytest.raises(G2Error, match="20 tokens are too few for 20 columns of 5"):
        gradient_mean_squares(model, tokens)
