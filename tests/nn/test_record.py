"""Gates for people: equal to a direct calculation, without changing what the model does."""

import copy

import pytest
import torch
from torch import nn

from g2lstm import G2LSTM, G2Error, convert_, record_gates
from tests.nn.layers import LENGTHS, SURFACE, B, Case, H, I, T, flat, make_input, make_layer, make_noise

GATES = ("input", "forget", "candidate", "output")


def direct_gates(layer, x, hx, noise):
    """The gates of a one-layer, one-direction, batched call, by the paper's equations."""
    rule = layer.gate_rule()
    h, c = (state[0] for state in hx)
    steps = []
    for t in range(len(x)):
        alpha = x[t] @ layer.weight_ih_l0.t() + layer.bias_ih_l0 + h @ layer.weight_hh_l0.t() + layer.bias_hh_l0
        i, f, g, o = rule.lstm(alpha, None if noise is None else noise[0][t])
        c = f * c + i * g
        h = o * c.tanh()
        steps.append((i, f, g, o))
    return [torch.stack(gate) for gate in zip(*steps, strict=True)]


@pytest.mark.parametrize("backend", ["auto", "reference", "stock", "native"])
@pytest.mark.parametrize("mode", ["training", "soft", "tempered", "hard"])
def test_gates_by_hand(backend, mode):
    if (backend, mode) == ("stock", "hard"):
        pytest.skip("torch's fused LSTM has no hard gates")
    case = Case("plain")
    layer = make_layer(case, backend=backend, eval_gate="soft" if mode == "training" else mode)
    layer.train(mode == "training")
    x, hx, _ = make_input(case)
    noise = make_noise(case) if mode == "training" else None
    _, _, gates = layer(x, hx, noise=noise, return_gates=True)
    for name, expected in zip(GATES, direct_gates(layer, x, hx, noise), strict=True):
        (value,) = getattr(gates, name)
        torch.testing.assert_close(value, expected, rtol=1e-7, atol=1e-10)
    assert gates.training == (mode == "training")
    assert gates.lengths is None


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("case", SURFACE, ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_shapes_order_and_unchanged_output(case, training):
    layer = make_layer(case).train(training)
    x, hx, _ = make_input(case)
    call = {"noise": make_noise(case)} if training else {}
    plain = flat(layer(x, hx, **call))
    out, states, gates = layer(x, hx, **call, return_gates=True)
    for a, b in zip(flat((out, states)), plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    layers = layer.num_layers * layer.directions
    shape = (T, H) if case.unbatched else (T, B, H)
    assert all(len(getattr(gates, name)) == layers for name in GATES)
    assert all(value.shape == shape for name in GATES for value in getattr(gates, name))


def test_gates_of_packed_sequences_are_those_of_each_sequence_alone():
    case = Case("packed", {"bidirectional": True, "num_layers": 2}, packed=True, states=False)
    layer = make_layer(case).eval()
    x, _, sequences = make_input(case)
    _, _, gates = layer(x, return_gates=True)
    assert gates.lengths.tolist() == LENGTHS
    for row, sequence in enumerate(sequences):
        _, _, alone = layer(sequence, return_gates=True)
        for name in GATES:
            for together, single in zip(getattr(gates, name), getattr(alone, name), strict=True):
                torch.testing.assert_close(together[: len(sequence), row], single, rtol=1e-7, atol=1e-10)
                assert together[len(sequence) :, row].isnan().all()


def test_gates_have_gradients():
    layer = G2LSTM(I, H, backend="native", dtype=torch.float64)
    x, noise = torch.randn(T, B, I, dtype=torch.float64), make_noise(Case("plain"))

    def gradient(backend):
        twin = copy.deepcopy(layer)
        twin.backend = backend
        _, _, gates = twin(x, noise=noise, return_gates=True)
        return torch.autograd.grad(gates.forget[0].square().sum(), twin.weight_hh_l0)[0]

    torch.testing.assert_close(gradient("native"), gradient("reference"), rtol=1e-7, atol=1e-10)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lower = G2LSTM(I, H)
        self.upper = nn.LSTM(H, H, 2)

    def forward(self, x):
        return self.upper(self.lower(x)[0])[0]


def test_record_gates_of_every_lstm_in_a_model():
    model, x = Model().eval(), torch.randn(T, B, I)
    with record_gates(model) as record:
        out = model(x)
        model(x[:2])
    assert torch.equal(out, model(x))
    assert list(record) == ["lower", "upper"]
    assert [len(calls) for calls in record.values()] == [2, 2]
    low, (_, _, expected) = record["lower"][0], model.lower(x, return_gates=True)
    assert torch.equal(low.forget[0], expected.forget[0])
    assert not low.forget[0].requires_grad
    assert [value.shape for value in record["upper"][1].input] == [(2, B, H), (2, B, H)]
    converted = convert_(copy.deepcopy(model))
    _, _, expected = converted.upper(model.lower(x)[0], return_gates=True)
    torch.testing.assert_close(record["upper"][0].output[1], expected.output[1])
    model(x)
    assert len(record["lower"]) == len(record["upper"]) == 2


def test_recording_changes_neither_training_nor_random_numbers():
    model = nn.ModuleList([G2LSTM(I, H, 2, dropout=0.5, weight_dropout=0.2)])
    x = torch.randn(T, B, I)

    def run():
        torch.manual_seed(3)
        model.zero_grad()
        out = model[0](x)[0]
        out.sum().backward()
        return [out, *(p.grad.clone() for p in model.parameters()), torch.rand(3)]

    expected = run()
    with record_gates(model) as record:
        ours = run()
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))
    assert record["0"][0].training


def test_the_end_of_the_block_ends_recording_also_after_an_error():
    layer = G2LSTM(I, H)
    with pytest.raises(ZeroDivisionError), record_gates(layer):
        raise ZeroDivisionError
    with record_gates(layer) as record:
        layer(torch.randn(T, B, I))
    assert len(record[""]) == 1


def test_what_cannot_be_recorded():
    with pytest.raises(G2Error, match="found no LSTM, GRU or cell inside Linear"), record_gates(nn.Linear(1, 1)):
        pass
    layer = G2LSTM(I, H)
    with record_gates(layer), pytest.raises(G2Error, match="already being recorded"), record_gates(layer):
        pass
    lstm = nn.LSTM(I, H, 2, dropout=0.5)
    with record_gates(lstm), pytest.raises(G2Error, match="dropout between its layers.*model.eval"):
        lstm(torch.randn(T, B, I))
