"""`G2GRU`: its gates, and what a drop-in needs."""

import copy

import pytest
import torch
from torch import nn

from g2lstm import G2GRU, G2Error, record_gates
from tests.nn.layers import (
    GRU_SURFACE,
    LENGTHS,
    B,
    Case,
    H,
    I,
    T,
    assert_same,
    flat,
    make_input,
    make_layer,
    make_noise,
)


def gru(case, dtype=torch.float64, **options):
    return make_layer(case, dtype, G2GRU, **options)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("hidden", [96, 600], ids=["by_sequences", "by_units"])
def test_threads_do_not_change_the_result(threads, hidden):
    before = torch.get_num_threads()
    layer = G2GRU(64, hidden, backend="native", dtype=torch.float64)
    x = torch.randn(3, 24, 64, dtype=torch.float64, requires_grad=True)
    noise = [torch.rand(3, 24, 2 * hidden, dtype=torch.float64).logit()]

    def results():
        out = layer(x, noise=noise)[0]
        return [out, torch.autograd.grad(out.square().sum(), x)[0]]

    expected = results()
    torch.set_num_threads(threads)
    try:
        assert_same(results(), expected, rtol=1e-12, atol=1e-12)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("backend", ["auto", "reference", "stock"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_gates_by_hand(backend, training):
    case = Case("plain")
    layer = gru(case, backend=backend, tau=0.7).train(training)
    x, h0, _ = make_input(case, kind=nn.GRU)
    noise = make_noise(case, "rz") if training else None
    _, _, gates = layer(x, h0, noise=noise, return_gates=True)
    h, tau = h0[0], 0.7 if training else 1.0
    for t in range(T):
        from_x = (x[t] @ layer.weight_ih_l0.t() + layer.bias_ih_l0).chunk(3, -1)
        from_h = (h @ layer.weight_hh_l0.t() + layer.bias_hh_l0).chunk(3, -1)
        n_r, n_z = noise[0][t].chunk(2, -1) if training else (0, 0)
        r, z = ((from_x[0] + from_h[0] + n_r) / tau).sigmoid(), ((from_x[1] + from_h[1] + n_z) / tau).sigmoid()
        n = (from_x[2] + r * from_h[2]).tanh()
        h = (1 - z) * n + z * h
        for name, value in (("reset", r), ("update", z), ("candidate", n)):
            torch.testing.assert_close(getattr(gates, name)[0][t], value, rtol=1e-7, atol=1e-10)
    with pytest.raises(AttributeError, match="these gates are reset, update, candidate; there is no 'forget'"):
        gates.forget  # noqa: B018
    assert list(copy.deepcopy(gates.detach()).named) == ["reset", "update", "candidate"]


@pytest.mark.parametrize("case", GRU_SURFACE, ids=str)
def test_recording_hears_what_is_returned(case):
    model = nn.Sequential(gru(case))
    x, hx, _ = make_input(case, kind=nn.GRU)
    noise = make_noise(case, "rz")
    with record_gates(model) as record:
        _, _, gates = model[0](x, hx, noise=noise, return_gates=True)
    (heard,) = record["0"]
    assert torch.equal(heard.update[-1].nan_to_num(), gates.update[-1].nan_to_num())
    assert heard.update[0].shape == ((max(LENGTHS), B, H) if case.packed else (T, H) if case.unbatched else (T, B, H))


def test_the_gates_of_torch_gru_are_recorded():
    theirs = nn.GRU(I, H, 2, bidirectional=True)
    ours = G2GRU.from_gru(theirs, method="sigmoid")
    x = torch.randn(T, B, I)
    with record_gates(theirs) as record:
        theirs(x)
    expected = ours.eval()(x, return_gates=True)[2]
    for got, wanted in zip(record[""][0].reset, expected.reset, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("options", [{}, {"method": "sharpened"}, {"eval_gate": "tempered", "tau": 0.5}], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_to_and_from_torch_gru_keep_the_output(options, bias):
    theirs, x = nn.GRU(I, H, 2, bias=bias, bidirectional=True).eval(), torch.randn(T, B, I)
    ours = G2GRU.from_gru(theirs, **options)
    torch.testing.assert_close(flat(ours(x)), flat(theirs(x)))
    back = ours.to_gru()
    assert type(back) is nn.GRU
    torch.testing.assert_close(flat(back(x)), flat(theirs(x)))
    with pytest.raises(G2Error, match="G2GRU starts from a torch.nn.GRU, got LSTM"):
        G2GRU.from_gru(nn.LSTM(2, 3))


def test_generator_seed_dropout_and_copies():
    layer = G2GRU(I, H, 2, dropout=0.3, weight_dropout=0.5, bidirectional=True)
    twin, x = copy.deepcopy(layer), torch.randn(T, B, I)
    torch.manual_seed(3)
    first = layer(x)[0]
    torch.manual_seed(3)
    assert torch.equal(twin(x)[0], first)
    assert not torch.equal(twin(x)[0], first)
    plain = G2GRU(I, H)
    one, other = (plain(x, generator=torch.Generator().manual_seed(seed))[0] for seed in (7, 8))
    assert torch.equal(plain(x, generator=torch.Generator().manual_seed(7))[0], one)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("training", [True, False])
def test_autocast_and_state_dict(training):
    layer, theirs, x = G2GRU(I, H, 2).train(training), nn.GRU(I, H, 2), torch.randn(T, B, I)
    assert list(layer.state_dict()) == list(theirs.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, h = layer(x)
    assert out.dtype == h.dtype == torch.bfloat16
    out.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: G2GRU(I, H, gates="if"), "gates must be one of 'rz', got 'if'"),
        (lambda: G2GRU(I, H, gate="rz"), "G2GRU has no option 'gate'; it has method, tau"),
        (lambda: G2GRU(I, H)(torch.randn(T, B, I), torch.zeros(1, B, H + 1)), r"state h must have shape \(1, 5, 7\)"),
        (
            lambda: G2GRU(I, H)(torch.randn(T, B, I), (torch.zeros(1, B, H),) * 2),
            "states must be one tensor, h, got tuple",
        ),
        (lambda: G2GRU(I, H, eval_gate="hard").to_gru(), "keep the G2GRU"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(G2Error, match=message):
        call()
