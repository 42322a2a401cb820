import copy
import math

import pytest
import torch

from g2lstm.tasks.lm.model import LanguageModel
from tests.requirements import needs_new_compiler

QUIET = {
    "words_dropout": 0.0,
    "input_dropout": 0.0,
    "between_dropout": 0.0,
    "output_dropout": 0.0,
    "weight_dropout": 0.0,
}


def small(**options):
    return LanguageModel(23, 6, 9, 3, **options)


def test_sizes_of_the_papers_model():
    with torch.device("meta"):
        model = LanguageModel(10_000)
    shapes = [(layer.input_size, layer.hidden_size) for layer in model.lstms]
    assert shapes == [(400, 1150), (1150, 1150), (1150, 400)]
    assert sum(p.numel() for p in model.parameters()) == 24_221_600


@pytest.mark.parametrize("tied", [True, False])
def test_output_shapes_and_weights(tied):
    model = small(tied=tied)
    features, raw, state = model(torch.randint(23, (5, 4)))
    width = 6 if tied else 9
    assert features.shape == raw.shape == (5, 4, width)
    assert [h.shape for h, _ in state] == [(1, 4, 9), (1, 4, 9), (1, 4, width)]
    assert model.logits(features).shape == (5, 4, 23)
    assert model.output_weight.shape == (23, width)
    assert (model.output_weight is model.embedding.weight) == tied


def test_initialisation():
    model = LanguageModel(500, 16, 25, 2)
    assert 0.099 < model.embedding.weight.abs().max() <= 0.1
    assert not model.softmax_bias.any()
    for layer in model.lstms:
        bound = 1 / math.sqrt(layer.hidden_size)
        assert 0.95 * bound < layer.weight_hh_l0.abs().max() <= bound


def test_frequencies_are_predicted_where_features_say_nothing():
    model = LanguageModel(4, 8, 8, 1)
    model.predict_frequencies(torch.tensor([5, 0, 2, 9]))
    losses = model.token_losses(torch.zeros(4, 8), torch.arange(4))
    torch.testing.assert_close(losses.exp(), 20 / torch.tensor([6.0, 1.0, 3.0, 10.0]))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_equals_stacked_torch_lstms_in_evaluation(residual, tied):
    model = small(residual=residual, tied=tied).double().eval()
    tokens = torch.randint(23, (7, 3))
    x = model.embedding(tokens)
    for layer in model.lstms:
        below = x
        x, _ = layer.to_lstm()(below)
        if residual and x.shape == below.shape:
            x = x + below
    features, raw, _ = model(tokens)
    assert torch.allclose(features, x, atol=1e-12)
    assert torch.equal(features, raw)


def test_residuals_carry_gradients_through_deep_stacks():
    def gradient(residual):
        torch.manual_seed(0)
        model = LanguageModel(23, 6, 9, 8, residual=residual, **QUIET).double()
        tokens = torch.randint(23, (7, 3))
        model.token_losses(model(tokens).features, tokens).mean().backward()
        return model.lstms[0].weight_ih_l0.grad.norm()

    assert gradient(residual=True) > 30 * gradient(residual=False)


@pytest.mark.parametrize("residual", [True, False])
def test_state_is_carried_exactly(residual):
    model = small(residual=residual).double().eval()
    tokens = torch.randint(23, (9, 2))
    whole, _, last = model(tokens)
    first, _, state = model(tokens[:4])
    second, _, state = model(tokens[4:], state)
    assert torch.allclose(torch.cat([first, second]), whole, atol=1e-12)
    assert all(
        torch.allclose(a, b, atol=1e-12) for p, q in zip(state, last, strict=True) for a, b in zip(p, q, strict=True)
    )


def test_initial_state_is_zero_and_the_default():
    model = small().eval()
    tokens = torch.randint(23, (3, 2))
    assert not any(t.any() for pair in model.initial_state(2) for t in pair)
    assert torch.equal(model(tokens).features, model(tokens, model.initial_state(2)).features)


def test_dropout_places():
    tokens = torch.randint(23, (40, 2))
    model = small(**{**QUIET, "output_dropout": 0.5}, method="sigmoid").double()
    features, raw, _ = model(tokens)
    ratio = (features / raw).detach()
    assert torch.allclose(ratio, ratio[:1].expand_as(ratio))
    assert set(ratio.round(decimals=6).unique().tolist()) == {0.0, 2.0}
    assert torch.allclose(raw, copy.deepcopy(model).eval()(tokens).raw)  # nothing else was dropped
    for name in ("words_dropout", "input_dropout", "between_dropout", "weight_dropout"):
        model = small(**{**QUIET, name: 0.5}, method="sigmoid").double()
        features, raw, _ = model(tokens)
        assert torch.equal(features, raw)
        assert not torch.allclose(raw, model(tokens).raw)
        model.eval()
        assert torch.equal(model(tokens).raw, model(tokens).raw)


def test_no_noise_and_no_dropout_makes_training_deterministic():
    model = small(**QUIET, method="sigmoid")
    tokens = torch.randint(23, (4, 2))
    assert torch.equal(model(tokens).raw, model(tokens).raw)
    assert not torch.equal(small(**QUIET)(tokens).raw, small(**QUIET)(tokens).raw)


@pytest.mark.parametrize("tied", [True, False])
def test_state_dict_round_trip_and_deepcopy(tied):
    model, other = small(tied=tied).eval(), small(tied=tied).eval()
    names = set(model.state_dict())
    assert ("softmax_weight" in names) == (not tied)
    other.load_state_dict(model.state_dict())
    tokens = torch.randint(23, (4, 2))
    expected = model.logits(model(tokens).features)
    assert torch.equal(other.logits(other(tokens).features), expected)
    clone = copy.deepcopy(model)
    assert torch.equal(clone.logits(clone(tokens).features), expected)
    assert clone.embedding.weight is not model.embedding.weight
    assert (clone.output_weight is clone.embedding.weight) == tied


def test_all_parameters_get_gradients():
    model = small(tied=False)
    features, raw, _ = model(torch.randint(23, (6, 3)))
    (model.logits(features).square().mean() + raw.sum()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@needs_new_compiler
def test_compiles_in_evaluation():
    model = small().eval()
    tokens = torch.randint(23, (4, 2))
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        expected = model(tokens)
        got = compiled(tokens)
    assert torch.allclose(got.features, expected.features, atol=1e-6)
    torch._dynamo.reset()


def test_token_losses_are_those_of_the_logits():
    model = small().double()
    features, targets = torch.randn(4, 3, 6, dtype=torch.float64), torch.randint(23, (4, 3))
    expected = -model.logits(features).log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(model.token_losses(features, targets), expected, atol=1e-12)
