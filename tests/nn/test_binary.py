"""The method "binary": gates that are 0 or 1 in training, with the gradient of the sampled gate."""

import pytest
import torch
from torch import nn

from g2lstm import G2GRU, G2LSTM, G2Error, G2GRUCell, G2LSTMCell, convert_
from g2lstm.nn.gate import binary_gate, sampled_gate
from tests.nn.layers import B, H, I, T

LAYERS = [G2LSTM, G2GRU, G2LSTMCell, G2GRUCell]


def make_input(kind):
    return torch.randn(T, B, I) if kind in (G2LSTM, G2GRU) else torch.randn(B, I)


def test_values_are_steps_and_gradients_those_of_the_sampled_gate():
    alpha = torch.tensor([-30.0, -0.1, -1e-9, 0.0, 0.2, 30.0, torch.nan], dtype=torch.float64, requires_grad=True)
    noise = torch.tensor([0.0, 0.3, 0.0, 0.0, -0.5, 0.0, 0.0], dtype=torch.float64)
    hard, soft = binary_gate(alpha, 0.5, noise), sampled_gate(alpha, 0.5, noise)
    torch.testing.assert_close(
        hard, torch.tensor([0.0, 1, 0, 1, 0, 1, torch.nan]).double(), rtol=0, atol=0, equal_nan=True
    )
    ours, theirs = (torch.autograd.grad(gate[:-1].sum(), alpha)[0][:-1] for gate in (hard, soft))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert (theirs[1:5] > 0.1).all()


def test_infinite_noise_leaves_a_gate_soft():
    alpha = torch.tensor([-3.0, -0.1, 0.0, 0.2, 40.0], dtype=torch.float64, requires_grad=True)
    noise = torch.tensor([torch.inf, torch.inf, torch.inf, -0.5, torch.inf], dtype=torch.float64)
    gate, soft = binary_gate(alpha, 0.5, noise), torch.sigmoid(alpha)
    assert gate.tolist() == [*soft.tolist()[:3], 0.0, soft[4].item()]
    ours, theirs = (torch.autograd.grad(one[[0, 1, 2, 4]].sum(), alpha)[0] for one in (gate, soft))
    assert torch.equal(ours, theirs)  # the temperature is for gates of 0 or 1 alone


@pytest.mark.parametrize("kind", LAYERS)
def test_the_soft_rate_is_the_share_of_soft_gates(kind):
    torch.manual_seed(0)
    layer = kind(I, 400, method="binary", soft_rate=0.3, noise_rate=0.0)
    *_, gates = layer(make_input(kind), return_gates=True)
    for name in list(gates.named)[:2]:
        values = gates.named[name][0]
        share = ((values > 0) & (values < 1)).double().mean().item()
        assert abs(share - 0.3) < 5 * (0.3 * 0.7 / values.numel()) ** 0.5
    assert "soft_rate=0.3" in repr(layer)
    layer.eval()
    *_, gates = layer(make_input(kind), return_gates=True)
    assert set(gates.named[next(iter(gates.named))][0].unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("kind", LAYERS)
def test_binary_gates_that_all_stay_soft_are_torchs_own(kind):
    layer, x = kind(I, H, method="binary", soft_rate=1.0, noise_rate=1.0), make_input(kind)
    ours, plain = layer(x), kind(I, H, method="sigmoid")
    plain.load_state_dict(layer.state_dict())
    for a, b in zip(_tensors(ours), _tensors(plain(x)), strict=True):
        torch.testing.assert_close(a, b)


def _tensors(output):
    return [output] if isinstance(output, torch.Tensor) else [one for part in output for one in _tensors(part)]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_sampled_gates_are_binary(kind, training):
    layer, x = kind(I, H, method="binary", noise_rate=0.7).train(training), make_input(kind)
    *_, gates = layer(x, return_gates=True)
    names = list(gates.named)
    for name in names[:2]:
        assert set(gates.named[name][0].unique().tolist()) == {0.0, 1.0}
    assert len(gates.named[names[2]][0].unique()) > 2
    if training:
        *_, other = layer(x, return_gates=True)
        assert not torch.equal(gates.named[names[0]][0], other.named[names[0]][0])


@pytest.mark.parametrize("kind", LAYERS)
def test_temperature_and_evaluation_follow_the_method_unless_given(kind):
    layer = kind(I, H, method="binary")
    assert (layer.tau, layer.eval_gate) == (0.5, "hard")
    layer.method = "gumbel"
    assert (layer.tau, layer.eval_gate) == (0.9, "soft")
    layer.tau, layer.eval_gate, layer.method = 0.7, "tempered", "binary"
    assert (layer.tau, layer.eval_gate) == (0.7, "tempered")
    assert layer.options() == kind(I, H, **layer.options()).options()
    layer.tau = layer.eval_gate = None
    assert (layer.tau, layer.eval_gate) == (0.5, "hard")
    assert "method=binary" in repr(layer)
    assert "eval_gate=hard, tau=0.5, noise_rate=0.2" in repr(layer)
    assert kind(I, H, method="binary", eval_gate="soft").eval_gate == "soft"


def test_a_step_at_the_boundary_is_the_same_in_the_kernel():
    """Where a + noise is so near to 0 that its sigmoid rounds to a half, the sign still decides."""
    for bias in (-1e-9, 0.0, 1e-9):
        outputs = []
        for backend in ("reference", "native"):
            layer = G2LSTM(1, 1, method="binary", noise_rate=0.0, backend=backend)
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter.zero_()
                layer.bias_ih_l0.copy_(torch.tensor([bias, bias, 1.0, 1.0]))
            outputs.append(layer(torch.zeros(3, 1, 1))[0])
        torch.testing.assert_close(*outputs)
        assert outputs[0].abs().sum() == 0 if bias < 0 else outputs[0].abs().sum() > 0.5


def test_converted_models_say_that_hard_gates_change_the_output():
    with pytest.warns(UserWarning, match="hard gates change the output"):
        model = convert_(nn.Sequential(nn.LSTM(I, H)), method="binary")
    assert model[0].eval_gate == "hard"
    with pytest.raises(G2Error, match="evaluates hard gates"):
        model[0].to_lstm()


@pytest.mark.parametrize("kind", LAYERS[:2])
def test_other_devices_train_in_the_plain_loop(kind):
    out, _ = kind(I, H, method="binary", device="meta")(torch.randn(T, B, I, device="meta"))
    assert out.shape == (T, B, H)


@pytest.mark.parametrize("kind", LAYERS[:2])
def test_it_learns(kind):
    """Gates that pass no gradient could not tell the two halves of the inputs apart."""
    torch.manual_seed(0)
    layer, head = kind(2, 16, method="binary", noise_rate=0.0), nn.Linear(16, 1)
    optimiser = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=0.02)
    x = torch.randn(8, 64, 2)
    target = (x[0, :, 0] > 0).float()
    losses = []
    for _ in range(60):
        loss = nn.functional.binary_cross_entropy_with_logits(head(layer(x)[0][-1])[:, 0], target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
