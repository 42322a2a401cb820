"""`G2GRU`: every backend against the reference and against torch.nn.GRU, its gates, and what a drop-in needs."""

import copy

import pytest
import torch
from torch import nn

from g2lstm import G2GRU, G2Error, record_gates
from g2lstm.nn import kernel
from tests.grids import pairwise
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
    values_and_gradients,
)

FAST = ["stock", "native", "fallback"]


def gru(case, dtype=torch.float64, **options):
    return make_layer(case, dtype, G2GRU, **options)


@pairwise(backend=FAST, method=["gumbel", "binary", "sharpened", "sigmoid"], case=GRU_SURFACE)
def test_agrees_with_the_reference_in_training(backend, method, case, use):
    call = {"noise": make_noise(case, "rz")} if method in ("gumbel", "binary") else {}
    if (backend, method) == ("stock", "binary"):
        with pytest.raises(G2Error, match="fused GRUs have no binary gates"):
            gru(case, method=method, backend="stock")(*make_input(case, kind=nn.GRU)[:2])
        return
    expected = values_and_gradients(gru(case, method=method, backend="reference"), case, **call)
    assert_same(values_and_gradients(gru(case, method=method, backend=use(backend)), case, **call), expected)


@pairwise(
    backend=["auto", *FAST],
    options=[{}, {"eval_gate": "tempered"}, {"eval_gate": "hard"}, {"method": "sharpened"}],
    case=GRU_SURFACE,
)
def test_agrees_with_the_reference_in_evaluation(backend, options, case, use):
    if backend == "stock" and options.get("eval_gate") == "hard":
        with pytest.raises(G2Error, match="fused GRUs have no hard gates"):
            gru(case, **options, backend="stock").eval()(*make_input(case, kind=nn.GRU)[:2])
        return
    expected = values_and_gradients(gru(case, **options, backend="reference").eval(), case)
    assert_same(values_and_gradients(gru(case, **options, backend=use(backend)).eval(), case), expected)


@pairwise(backend=["auto", "reference", *FAST], training=[True, False], case=GRU_SURFACE)
def test_is_torch_gru_without_noise_at_temperature_one(backend, training, case, use):
    layer = gru(case, tau=1.0, noise_rate=0.0, backend=use(backend)).train(training)
    theirs = nn.GRU(I, H, **case.layer, dtype=torch.float64)
    theirs.load_state_dict(layer.state_dict())
    assert_same(values_and_gradients(layer, case), values_and_gradients(theirs, case))


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (3, 1, 5, 16), (2, 13, 3, 17), (4, 7, 33, 64), (3, 20, 40, 100)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("method", ["gumbel", "binary"])
def test_kernel_at_widths_around_its_vectors(shape, dtype, method):
    steps, batch, features, hidden = shape
    torch.manual_seed(0)
    layers = [G2GRU(features, hidden, method=method, backend=b, dtype=dtype) for b in ("reference", "native")]
    layers[1].load_state_dict(layers[0].state_dict())
    noise = [torch.rand(steps, batch, 2 * hidden, dtype=dtype).clamp(0.01, 0.99).logit()]
    x = torch.randn(steps, batch, features, dtype=dtype, requires_grad=True)
    results = []
    for layer in layers:
        out, h = layer(x, noise=noise)
        results.append([out, h, *torch.autograd.grad(out.square().sum() + h.sum(), [x, *layer.parameters()])])
    exact = {} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    assert_same(results[1], results[0], **exact)


@pytest.mark.parametrize("build", list(kernel.BUILDS))
def test_every_build_of_the_kernel_agrees(build, monkeypatch):
    monkeypatch.setattr(kernel, "BUILDS", {build: kernel.BUILDS[build]})
    kernel.find.cache_clear()
    try:
        if kernel.find().library is None:
            pytest.skip(f"this processor cannot run the build for {build}")
        case = Case("packed", {"bidirectional": True}, packed=True)
        for method in ("gumbel", "binary"):
            both = [gru(case, method=method, backend=backend) for backend in ("reference", "native")]
            expected, ours = (values_and_gradients(layer, case, noise=make_noise(case, "rz")) for layer in both)
            assert_same(ours, expected)
    finally:
        kernel.find.cache_clear()


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


@pytest.mark.parametrize("backend", ["native", "fallback"])
def test_derivatives(backend, use):
    layer = G2GRU(2, 3, backend=use(backend), dtype=torch.float64)
    noise = [torch.rand(3, 2, 6, dtype=torch.float64).logit()]
    x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: layer(x, noise=noise), x, atol=1e-7)
    (gradient,) = torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)
    with pytest.raises(G2Error, match="no second derivative.*backend='reference'"):
        gradient.sum().backward()


@pytest.mark.parametrize("backend", ["auto", "reference", *FAST])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_nan_stays_in_its_batch_row(backend, training, use):
    layer = G2GRU(I, H, 2, bidirectional=True, backend=use(backend)).train(training)
    x = torch.randn(T, B, I)
    x[2, 1, 0] = float("nan")
    for tensor in flat(layer(x)):
        is_nan = tensor.isnan()
        assert is_nan[:, 1].any()
        assert not is_nan[:, [0, 2, 3, 4]].any()


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
