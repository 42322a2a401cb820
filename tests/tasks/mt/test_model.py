import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from g2lstm import G2LSTM
from g2lstm.errors import G2Error
from g2lstm.nn.record import lstms
from g2lstm.tasks.mt.model import TranslationModel

SOURCE, TARGET = 31, 37
DROPOUTS = {"input_dropout", "between_dropout", "output_dropout"}


def small(**options):
    torch.manual_seed(0)
    sizes = {"embedding": 6, "hidden": 8, "encoder_layers": 2, "decoder_layers": 3}
    return TranslationModel(SOURCE, TARGET, **(sizes | options)).double().eval()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    source, inputs = (
        torch.randint(SOURCE, (7, 4), generator=generator),
        torch.randint(TARGET, (6, 4), generator=generator),
    )
    return source, torch.tensor([7, 3, 5, 1]), inputs


def log_probabilities(model, features):
    return F.linear(features, model.output_weight, model.softmax_bias).log_softmax(-1)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_is_the_plain_loop(batch, layers, residual):
    """Every step computed by hand, sentence by sentence, with torch's cells."""
    model = small(encoder_layers=layers, decoder_layers=layers, residual=residual)
    source, lengths, inputs = batch
    features = model(source, lengths, inputs)

    def run(layer, xs, h, direction="", backwards=False):
        cell = nn.LSTMCell(layer.input_size, layer.hidden_size).double()
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(cell, name).data = getattr(layer, f"{name}_l0{direction}").data
        c, out = torch.zeros_like(h), []
        for x in reversed(xs) if backwards else xs:
            h, c = cell(x, (h, c))
            out.append(h)
        return out[::-1] if backwards else out

    for b, length in enumerate(lengths.tolist()):
        zero = torch.zeros(8, dtype=torch.float64)
        xs = [model.source_embedding.weight[token] for token in source[:length, b]]
        forward, backward = run(model.encoder[0], xs, zero), run(model.encoder[0], xs, zero, "_reverse", True)
        xs = [torch.cat(both) for both in zip(forward, backward, strict=True)]
        for index, layer in enumerate(model.encoder[1:], start=1):
            ys = run(layer, xs, zero)
            xs = [x + y for x, y in zip(xs, ys, strict=True)] if residual and index > 1 else ys
        values = torch.stack(xs)
        starts = model.bridge(values.mean(0)).tanh().view(layers, 8)
        ys = run(model.decoder[0], [model.target_embedding.weight[token] for token in inputs[:, b]], starts[0])
        contexts = []
        for y in ys:
            weights = (values @ model.attention.key.weight.T @ y / 8**0.5).softmax(0)
            contexts.append(weights @ values)
        for layer, start in zip(model.decoder[1:], starts[1:], strict=True):
            zs = run(layer, [torch.cat(both) for both in zip(ys, contexts, strict=True)], start)
            ys = [y + z for y, z in zip(ys, zs, strict=True)] if residual else zs
        expected = torch.stack([model.output(torch.cat(both)).tanh() for both in zip(ys, contexts, strict=True)])
        assert torch.allclose(features[:, b], expected, atol=1e-12)


def test_steps_are_the_whole(batch):
    model = small()
    source, lengths, inputs = batch
    expected = log_probabilities(model, model(source, lengths, inputs))
    state = model.start(model.encode(source, lengths))
    for t, tokens in enumerate(inputs):
        out = model.step(tokens.view(4, 1), state)
        state = out.state
        assert torch.allclose(out.log_probabilities[:, 0], expected[t], atol=1e-12)
        assert torch.allclose(out.attention.sum(-1), torch.ones(4, 1).double())


def test_hypotheses_go_on_by_themselves(batch):
    model = small()
    source, lengths, inputs = batch
    state = model.start(model.encode(source, lengths))
    first = model.step(inputs[0].view(4, 1), state)
    sentences, hypotheses = np.array([0, 2, 3]), np.zeros((3, 2), np.int64)
    two = model.step(torch.tensor([[1, 2], [3, 4], [5, 6]]), first.state.select(sentences, hypotheses))
    swapped = model.step(torch.tensor([[7, 7]]), two.state.select(np.array([1]), np.array([[1, 0]])))
    for k, token in enumerate([4, 3]):  # sentence 2 of the four, its second hypothesis before its first
        tokens = torch.tensor([[inputs[0, 2]], [token], [7]])
        features = model(source[:5, 2:3], lengths[2:3], tokens)
        expected = log_probabilities(model, features)[2, 0]
        assert torch.allclose(swapped.log_probabilities[0, k], expected, atol=1e-12)


def test_a_longer_batch_mate_never_changes_a_sentence(batch):
    model = small()
    source, lengths, inputs = batch
    together = model(source, lengths, inputs)
    for b, length in enumerate(lengths.tolist()):
        alone = model(source[:length, b : b + 1], lengths[b : b + 1], inputs[:, b : b + 1])
        assert torch.allclose(together[:, b], alone[:, 0], atol=1e-12)
    junk = source.masked_fill(torch.arange(7).unsqueeze(1) >= lengths, 30)
    assert torch.equal(model(junk, lengths, inputs), together)


def test_the_future_is_not_seen(batch):
    model = small()
    source, lengths, inputs = batch
    changed = inputs.clone()
    changed[4:] = 0
    assert torch.equal(model(source, lengths, changed)[:4], model(source, lengths, inputs)[:4])


def test_training_has_no_loop_over_time(batch, monkeypatch):
    calls = []
    original = G2LSTM.forward
    monkeypatch.setattr(
        G2LSTM, "forward", lambda self, *args, **kw: (calls.append(self), original(self, *args, **kw))[1]
    )
    model = small().train()
    model(*batch)
    assert calls == lstms(model)


@pytest.mark.parametrize("where", sorted(DROPOUTS))
def test_dropout_is_for_training_only(batch, where):
    model = small(method="sigmoid", **{where: 0.5, **dict.fromkeys(DROPOUTS - {where}, 0.0)})
    assert torch.equal(model(*batch), model(*batch))
    model.train()
    assert not torch.equal(model(*batch), model(*batch))


@pytest.mark.parametrize(("tied", "matrices"), [("none", 3), ("output", 2), ("all", 1)])
def test_ties(tied, matrices):
    model = TranslationModel(30, 30, 4, 5, tied=tied)
    named = [name for name, p in model.named_parameters() if 30 in p.shape and p.dim() == 2]
    assert len(named) == matrices
    assert len(model.state_dict()) == len({p.data_ptr() for p in model.parameters()})
    source = torch.randint(30, (3, 2))
    model(source, torch.tensor([3, 2]), source).sum().backward()


def test_loss_is_that_of_the_softmax(batch):
    model = small()
    features, targets = model(*batch)[0], torch.tensor([1, 2, 3, 4])
    expected = F.nll_loss(log_probabilities(model, features), targets, reduction="none")
    assert torch.allclose(model.token_losses(features, targets), expected)


def test_residuals_carry_gradients_through_deep_stacks(batch):
    def gradient(residual):
        model = small(encoder_layers=8, decoder_layers=8, residual=residual)
        features = model(*batch)
        model.token_losses(features.flatten(0, 1), batch[2].flatten()).mean().backward()
        return model.encoder[1].weight_hh_l0.grad.norm()

    assert gradient(residual=True) > 30 * gradient(residual=False)


def test_two_vocabularies_cannot_all_be_tied():
    with pytest.raises(G2Error, match="one vocabulary for both sides, got 31 and 37 tokens"):
        small(tied="all")
