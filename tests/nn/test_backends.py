"""Every backend against the reference and against torch's layers: values and all gradients, over the whole surface."""

import warnings

import pytest
import torch

from g2lstm import G2GRU, G2LSTM, G2Error
from g2lstm.nn import kernel
from tests.grids import pairwise
from tests.nn.layers import (
    GRU_SURFACE,
    SURFACE,
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
RULES = [
    {"method": "gumbel"},
    {"method": "gumbel", "gates": "ifo", "tau": 0.5},
    {"method": "binary"},
    {"method": "binary", "gates": "ifo"},
    {"method": "binary", "soft_rate": 0.4},
    {"method": "binary", "soft_rate": 0.4, "gates": "ifo", "tau": 0.7},
    {"method": "sharpened"},
    {"method": "sigmoid"},
]
EVALUATED = [
    {"eval_gate": "soft"},
    {"eval_gate": "tempered"},
    {"eval_gate": "hard"},
    {"method": "sharpened"},
    {"eval_gate": "hard", "gates": "ifo"},
]


def test_the_kernel_is_compiled_here():
    found = kernel.find()
    assert found.library is not None, f"the tests compare the compiled kernel, but it is {found.description}"


no_projections = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
each_kind = pytest.mark.parametrize("kind", [G2LSTM, G2GRU], ids=["lstm", "gru"])


def refuses(message, kind, case, training=True, **options):
    layer = make_layer(case, kind=kind, **options, backend="stock").train(training)
    with pytest.raises(G2Error, match=f"fused {kind.stands_for.__name__}s have no {message}"):
        layer(*make_input(case, kind=kind.stands_for)[:2])


def agrees_in_training(kind, backend, rule, case, use):
    if backend == "stock" and rule["method"] == "binary":
        refuses("binary gates.*method='gumbel'", kind, case, **rule)
        return
    call = {}
    if rule["method"] in ("gumbel", "binary"):
        call["noise"] = make_noise(case, rule.get("gates", "if"), soft_rate=rule.get("soft_rate", 0.0))
    expected = values_and_gradients(make_layer(case, kind=kind, **rule, backend="reference"), case, **call)
    ours = values_and_gradients(make_layer(case, kind=kind, **rule, backend=use(backend)), case, **call)
    assert_same(ours, expected)


@no_projections
@pairwise(backend=FAST, rule=RULES, case=SURFACE)
def test_lstms_agree_with_the_reference_in_training(backend, rule, case, use):
    agrees_in_training(G2LSTM, backend, rule, case, use)


@pairwise(backend=FAST, rule=[rule for rule in RULES if "gates" not in rule], case=GRU_SURFACE)
def test_grus_agree_with_the_reference_in_training(backend, rule, case, use):
    agrees_in_training(G2GRU, backend, rule, case, use)


def agrees_in_evaluation(kind, backend, options, case, use):
    if backend == "stock" and options.get("eval_gate") == "hard":
        refuses("hard gates", kind, case, training=False, **options)
        return
    expected = values_and_gradients(make_layer(case, kind=kind, **options, backend="reference").eval(), case)
    ours = values_and_gradients(make_layer(case, kind=kind, **options, backend=use(backend)).eval(), case)
    assert_same(ours, expected)


@no_projections
@pairwise(backend=["auto", *FAST], options=EVALUATED, case=SURFACE)
def test_lstms_agree_with_the_reference_in_evaluation(backend, options, case, use):
    agrees_in_evaluation(G2LSTM, backend, options, case, use)


@pairwise(backend=["auto", *FAST], options=[one for one in EVALUATED if "gates" not in one], case=GRU_SURFACE)
def test_grus_agree_with_the_reference_in_evaluation(backend, options, case, use):
    agrees_in_evaluation(G2GRU, backend, options, case, use)


def is_torchs(kind, backend, training, case, use):
    layer = make_layer(case, kind=kind, tau=1.0, noise_rate=0.0, backend=use(backend)).train(training)
    theirs = kind.stands_for(I, H, **case.layer, dtype=torch.float64)
    theirs.load_state_dict(layer.state_dict())
    assert_same(values_and_gradients(layer, case), values_and_gradients(theirs, case))


@no_projections
@pairwise(backend=["auto", "reference", *FAST], training=[True, False], case=SURFACE)
def test_is_torch_lstm_without_noise_at_temperature_one(backend, training, case, use):
    is_torchs(G2LSTM, backend, training, case, use)


@pairwise(backend=["auto", "reference", *FAST], training=[True, False], case=GRU_SURFACE)
def test_is_torch_gru_without_noise_at_temperature_one(backend, training, case, use):
    is_torchs(G2GRU, backend, training, case, use)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (3, 1, 5, 16), (2, 13, 3, 17), (4, 7, 33, 64), (3, 20, 40, 100)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("kind", "options"),
    [(G2LSTM, {}), (G2LSTM, {"proj_size": 5}), (G2GRU, {}), (G2GRU, {"method": "binary"})],
    ids=["lstm", "projection", "gru", "binary gru"],
)
def test_kernel_at_widths_around_its_vectors(shape, dtype, kind, options):
    steps, batch, features, hidden = shape
    options = {} if options.get("proj_size", 0) >= hidden else options
    torch.manual_seed(0)
    layers = [kind(features, hidden, **options, backend=b, dtype=dtype) for b in ("reference", "native")]
    layers[1].load_state_dict(layers[0].state_dict())
    noise = [torch.rand(steps, batch, 2 * hidden, dtype=dtype).clamp(0.01, 0.99).logit()]
    x = torch.randn(steps, batch, features, dtype=dtype, requires_grad=True)
    results = []
    for layer in layers:
        out, *states = flat(layer(x, noise=noise))
        loss = out.square().sum() + sum(state.sum() for state in states)
        results.append([out, *states, *torch.autograd.grad(loss, [x, *layer.parameters()])])
    exact = {"rtol": 1e-7, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    assert_same(results[1], results[0], **exact)


@pytest.mark.parametrize("build", list(kernel.BUILDS))
def test_every_build_of_the_kernel_agrees(build, monkeypatch):
    """The builds for lesser processors run on a better one, so they can be compared here."""
    monkeypatch.setattr(kernel, "BUILDS", {build: kernel.BUILDS[build]})
    kernel.find.cache_clear()
    try:
        if kernel.find().library is None:
            pytest.skip(f"this processor cannot run the build for {build}")
        packed = Case("packed", {"bidirectional": True}, packed=True)
        for kind, case, method in (
            (G2LSTM, Case("projection", {"proj_size": 3, "bidirectional": True}), "gumbel"),
            (G2GRU, packed, "gumbel"),
            (G2GRU, packed, "binary"),
            (G2LSTM, packed, "binary"),
        ):
            rule = {"method": method, "soft_rate": 0.4 if method == "binary" else 0.0}
            both = [make_layer(case, kind=kind, **rule, backend=one) for one in ("reference", "native")]
            noise = make_noise(case, soft_rate=rule["soft_rate"])
            expected, ours = (values_and_gradients(layer, case, noise=noise) for layer in both)
            assert_same(ours, expected)
    finally:
        kernel.find.cache_clear()


def test_without_the_kernel_training_says_once_that_it_is_slow(use):
    kernel.warn_that_it_is_slow.cache_clear()
    case = Case("one layer", {})
    layer = make_layer(case, backend=use("fallback"))
    with pytest.warns(UserWarning, match="1.5 to 2.5 times as long as with torch.nn.LSTM: taken away"):
        values_and_gradients(layer, case, noise=make_noise(case))
    with warnings.catch_warnings(action="error"):
        values_and_gradients(layer, case, noise=make_noise(case))


def test_a_processor_that_lacks_instructions_gets_the_next_build(monkeypatch):
    asked = []
    monkeypatch.setattr(kernel, "_bind", lambda library: asked.append(library._name) or len(asked) > 1)
    kernel.find.cache_clear()
    try:
        names = list(kernel.BUILDS)
        assert kernel.find().description == f"compiled for {names[1]}"
        assert kernel.BUILDS[names[0]] in asked[0]
    finally:
        kernel.find.cache_clear()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_the_result(threads):
    before = torch.get_num_threads()
    layer = G2LSTM(64, 96, backend="native", dtype=torch.float64)
    x, noise = torch.randn(5, 24, 64, dtype=torch.float64), [torch.rand(5, 24, 192, dtype=torch.float64).logit()]
    expected = layer(x, noise=noise)[0]
    torch.set_num_threads(threads)
    try:
        assert torch.equal(layer(x, noise=noise)[0], expected)
    finally:
        torch.set_num_threads(before)


def test_auto_trains_natively_and_evaluates_with_the_fused_lstm(monkeypatch):
    layer = G2LSTM(I, H)
    calls = []
    monkeypatch.setattr("g2lstm.nn.native._forward", lambda *a: calls.append("native") or _stop())
    with pytest.raises(StopIteration):
        layer(torch.randn(T, B, I))
    layer.eval()(torch.randn(T, B, I))
    assert calls == ["native"]


def _stop():
    raise StopIteration


def test_native_refuses_other_devices():
    layer = G2LSTM(I, H, backend="native", device="meta")
    with pytest.raises(G2Error, match="'native' runs on the CPU, but the input is on 'meta'"):
        layer(torch.randn(T, B, I, device="meta"))


def test_stock_runs_where_tensors_have_no_memory():
    """Stands for devices that are not here: nothing in the stock path needs the CPU."""
    layer = G2LSTM(I, H, 2, bidirectional=True, device="meta", backend="stock")
    out, (h, c) = layer(torch.randn(T, B, I, device="meta"))
    assert out.shape == (T, B, 2 * H)
    assert h.shape == c.shape == (4, B, H)


@each_kind
@pytest.mark.parametrize("backend", ["native", "fallback"])
def test_double_backward_is_refused(backend, kind, use):
    layer = kind(I, H, backend=use(backend))
    x = torch.randn(T, B, I, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)
    with pytest.raises(G2Error, match="no second derivative.*backend='reference'"):
        gradient.sum().backward()


def test_reference_has_second_derivatives():
    layer = G2LSTM(2, 3, backend="reference", dtype=torch.float64)
    noise = [torch.rand(2, 2, 6, dtype=torch.float64).logit()]
    x = torch.randn(2, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: layer(x, noise=noise)[0], x)


@each_kind
@pytest.mark.parametrize("backend", ["native", "fallback"])
def test_gradcheck(backend, kind, use):
    layer = kind(2, 3, backend=use(backend), dtype=torch.float64)
    noise = [torch.rand(3, 2, 6, dtype=torch.float64).logit()]
    x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: tuple(flat(layer(x, noise=noise))), x, atol=1e-7)


@pytest.mark.parametrize("backend", ["native", "fallback", "stock", "reference"])
def test_backward_twice_over_one_graph(backend, use):
    layer = G2LSTM(I, H, backend=use(backend), dtype=torch.float64)
    x = torch.randn(T, B, I, dtype=torch.float64, requires_grad=True)
    loss = layer(x)[0].square().sum()
    first, second = (torch.autograd.grad(loss, [x, *layer.parameters()], retain_graph=True) for _ in range(2))
    assert_same(list(first), list(second), rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["native", "fallback", "stock"])
def test_gradient_of_the_last_states_alone(backend, use):
    def gradients(name):
        layer = make_layer(SURFACE[0], backend=name)
        x, hx, leaves = make_input(SURFACE[0])
        _, (_, c) = layer(x, hx, noise=make_noise(SURFACE[0]))
        return list(torch.autograd.grad(c.square().sum(), [*leaves, *layer.parameters()]))

    assert_same(gradients(use(backend)), gradients("reference"))


@pytest.mark.parametrize("backend", ["auto", "reference", *FAST])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@each_kind
def test_nan_stays_in_its_batch_row(backend, training, kind, use):
    layer = kind(I, H, 2, bidirectional=True, backend=use(backend)).train(training)
    x = torch.randn(T, B, I)
    x[2, 1, 0] = float("nan")
    for tensor in flat(layer(x)):
        is_nan = tensor.isnan()
        assert is_nan[:, 1].any()
        assert not is_nan[:, [0, 2, 3, 4]].any()


def test_hard_gates_keep_a_nan():
    layer = G2LSTM(I, H, eval_gate="hard").eval()
    x = torch.randn(T, B, I)
    x[0, 1] = float("nan")
    out, _ = layer(x)
    assert out[:, 1].isnan().all()
    assert not out[:, 0].isnan().any()


def test_extreme_inputs_stay_finite():
    layer = G2LSTM(I, H, backend="native")
    x = torch.tensor([1e30, -1e30, 3e38, -3e38]).repeat(T, B, 1).requires_grad_()
    out, _ = layer(x)
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()


def test_the_callers_denormal_setting_is_restored():
    tiny = torch.tensor([1e-40])
    layer = G2LSTM(I, H, backend="native")
    layer(torch.randn(T, B, I))[0].sum().backward()
    assert (tiny * 1.0).item() != 0
    torch.set_flush_denormal(True)
    try:
        layer(torch.randn(T, B, I))[0].sum().backward()
        assert (tiny * 1.0).item() == 0
    finally:
        torch.set_flush_denormal(False)
