"""What is random in a layer, where it comes from, and that nothing of it is used twice."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from g2lstm import G2GRU, G2LSTM, G2Error, G2LSTMCell
from g2lstm.nn.random import _mixed, draw_drop, draw_noise, draw_stream, drop, dropout, seed_and_increment
from tests.nn.layers import B, H, I, T, flat

SMALL = {"num_layers": 2, "bidirectional": True}


def test_every_call_layer_and_direction_drops_other_weights(monkeypatch):
    drawn = []

    def spy(probability, generator):
        drawn.append(draw_drop(probability, generator))
        return drawn[-1]

    monkeypatch.setattr("g2lstm.nn.gated.draw_drop", spy)
    layer = G2LSTM(H, H, **SMALL, weight_dropout=0.5)
    layer(torch.randn(T, B, H))
    layer(torch.randn(T, B, H))
    masks = {tuple(drop(torch.ones(4 * H, H), one).flatten().tolist()) for one in drawn}
    assert len(masks) == len(drawn) == 8


def test_a_generator_decides_the_noise_of_all_layers_and_torchs_own_none():
    layer, x = G2LSTM(I, H, **SMALL, dtype=torch.float64), torch.randn(T, B, I, dtype=torch.float64)
    outputs = []
    for seed, backend in enumerate(("reference", "stock", "native")):
        torch.manual_seed(seed)
        layer.backend = backend
        outputs.append(layer(x, generator=torch.Generator().manual_seed(7))[0])
    for out in outputs[1:]:
        torch.testing.assert_close(out, outputs[0], rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("make", [G2LSTM, G2GRU], ids=lambda make: make.__name__)
@pytest.mark.parametrize("backend", ["reference", "stock", "native"])
def test_a_generator_decides_dropout_and_dropconnect_too(make, backend):
    layer = make(I, H, **SMALL, dropout=0.5, weight_dropout=0.5, backend=backend)
    x = torch.randn(T, B, I)

    def run(seed, global_seed):
        torch.manual_seed(global_seed)
        return layer(x, generator=torch.Generator().manual_seed(seed))[0]

    assert torch.equal(run(7, 0), run(7, 1))
    assert not torch.equal(run(7, 0), run(8, 0))
    layer.method = "sigmoid"
    assert not torch.equal(run(7, 0), run(8, 0))


def test_a_cell_takes_dropconnect_from_the_generator():
    cell, x = G2LSTMCell(I, H, weight_dropout=0.5, method="sigmoid"), torch.randn(B, I)
    h = torch.randn(B, H), torch.zeros(B, H)
    first, same, other = (cell(x, h, generator=torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_dropout_with_a_generator_keeps_the_mean(probability):
    x = torch.ones(1000, 1000, requires_grad=True)
    dropped = dropout(x, probability, torch.Generator().manual_seed(0))
    share = (dropped == 0).double().mean().item()
    assert abs(share - probability) < 5 * math.sqrt(probability * (1 - probability) / 1e6) + 1e-12
    dropped.sum().backward()
    assert torch.equal(x.grad, dropped.detach())


def test_all_64_bits_of_a_seed_count():
    """Torch's generator alone would make the same noise for seeds that agree in their last 32 bits."""
    seeds = [3, 2**32 + 3, 2**40 + 3, 2**63 + 3, -(2**33) + 3]
    noises = [draw_noise((8,), generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    assert len({tuple(noise.tolist()) for noise in noises}) == len(seeds)
    for seed in seeds:
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        first = draw_noise((8,))
        torch.manual_seed(1)
        torch.set_rng_state(state)
        assert torch.equal(draw_noise((8,)), first)


def test_dropout_between_layers_of_a_packed_sequence():
    layer = G2LSTM(I, H, num_layers=2, dropout=0.9, method="sigmoid")
    x = pack_sequence([torch.randn(5, I), torch.randn(3, I)])
    assert not torch.equal(layer(x)[0].data, layer(x)[0].data)
    assert torch.equal(layer.eval()(x)[0].data, layer(x)[0].data)


def test_given_noise_gets_no_gradient():
    noise = torch.randn(T, B, 2 * H, requires_grad=True)
    for backend in ("native", "stock", "reference"):
        G2LSTM(I, H, backend=backend)(torch.randn(T, B, I), noise=[noise])[0].sum().backward()
    assert noise.grad is None


def test_low_precision_noise_has_the_rate():
    noise = draw_noise((100_000,), rate=0.2, dtype=torch.bfloat16)
    assert abs((noise != 0).float().mean().item() - 0.2) < 0.01


@pytest.mark.parametrize("backend", ["auto", "stock"])
def test_autocast_computes_what_evaluation_computes(backend):
    layer, x = G2LSTM(I, H, **SMALL, backend=backend).eval(), torch.randn(T, B, I)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = flat(layer(x))
    for a, b in zip(inside, flat(layer(x)), strict=True):
        torch.testing.assert_close(a.float(), b, rtol=0.05, atol=0.02)
    inside[0].float().square().sum().backward()
    ours = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    layer(x)[0].square().sum().backward()
    for a, p in zip(ours, layer.parameters(), strict=True):
        assert (a - p.grad).abs().max() <= 0.05 * p.grad.abs().max()


def test_low_precision_gradients_are_those_of_float32():
    layer = G2LSTM(I, H, backend="native", method="sigmoid", dtype=torch.bfloat16)
    exact = G2LSTM(I, H, backend="reference", method="sigmoid")
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(T, B, I, dtype=torch.bfloat16)
    layer(x)[0].float().square().sum().backward()
    exact(x.float())[0].square().sum().backward()
    for ours, theirs in zip(layer.parameters(), exact.parameters(), strict=True):
        assert (ours.grad.float() - theirs.grad).abs().max() <= 0.05 * theirs.grad.abs().max()


def test_options_are_checked_whenever_they_are_set():
    layer = G2LSTM(I, H)
    layer.tau = 2
    assert layer.tau == 2.0
    assert G2LSTM(I, H, tau=np.float32(0.5)).tau == 0.5
    for name, value in (
        ("tau", -1.0),
        ("tau", 1e-300),
        ("noise_rate", 7),
        ("eval_gate", "hrad"),
        ("backend", "cuda"),
        ("method", "x"),
    ):
        before = getattr(layer, name)
        with pytest.raises(G2Error, match=name):
            setattr(layer, name, value)
        assert getattr(layer, name) == before


def test_a_default_device_does_not_matter():
    layer, x = G2LSTM(I, H, weight_dropout=0.5), torch.randn(T, B, I)
    with torch.device("meta"):
        out, _ = layer(x, (torch.zeros(1, B, H, device="cpu"), torch.zeros(1, B, H, device="cpu")))
    assert out.device.type == "cpu"


def test_weight_dropout_next_to_one():
    assert G2LSTM(I, H, weight_dropout=0.99999999999)(torch.randn(T, B, I))[0].isfinite().all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m(PackedSequence(torch.randn(6, I), torch.tensor([3, 2, 1]).int())), "int64 batch_sizes"),
        (lambda m: m(PackedSequence(torch.randn(7, I), torch.tensor([3, 2, 1]))), "sum to its 7 rows"),
        (lambda m: m(torch.randn(T, B, I).numpy()), "must be a tensor or a PackedSequence, got ndarray"),
        (lambda m: m(torch.zeros(T, B, I, dtype=torch.int64)), "floating-point numbers, got torch.int64"),
        (lambda m: m(torch.randn(T, B, I), torch.zeros(1, B, H)), r"two tensors, \(h, c\), got Tensor"),
        (
            lambda m: m(torch.randn(T, B, I), (torch.zeros(1, B, H).double(), torch.zeros(1, B, H))),
            "first state h is torch.float64, but the input is torch.float32",
        ),
        (lambda m: m(torch.randn(T, B, I), noise=[torch.full((T, B, 2 * H), -torch.inf)]), "must be finite"),
    ],
)
def test_calls_that_cannot_be(call, message):
    with pytest.raises(G2Error, match=message):
        call(G2LSTM(I, H))


def test_increments_of_streams_change_often_from_bit_to_bit():
    """The rule of SplittableRandom: at least 24 changes. Only those that break it are replaced."""
    generator = torch.Generator().manual_seed(0)
    streams = [draw_stream(generator) for _ in range(5000)]
    found = [seed_and_increment(stream)[1] % 2**64 for stream in streams]
    drawn = [_mixed(stream[1].item() % 2**64) | 1 for stream in streams]

    def changes(increment):
        return sum(a != b for a, b in itertools.pairwise(f"0{increment:064b}"))

    assert all(increment % 2 for increment in found)
    assert min(map(changes, found)) >= 24
    poor = [changes(increment) < 24 for increment in drawn]
    assert 50 < sum(poor) < 200  # about one in fifty, or the test would say nothing
    assert [ours != theirs for ours, theirs in zip(found, drawn, strict=True)] == poor
    assert len(set(found)) == len(found)
