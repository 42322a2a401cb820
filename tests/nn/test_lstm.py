"""The layer as a drop-in: state dicts, copies, devices and dtypes, compile, export, noise sources, errors."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from g2lstm import G2GRU, G2LSTM, G2Error
from g2lstm.nn.random import draw_drop, drop
from tests.nn.layers import SURFACE, B, H, I, T, flat, make_input, make_layer
from tests.requirements import needs_new_compiler

SMALL = {"num_layers": 2, "bidirectional": True}


@pytest.mark.parametrize("case", SURFACE, ids=str)
def test_state_dict_goes_both_ways(case):
    layer, lstm = G2LSTM(I, H, **case.layer), nn.LSTM(I, H, **case.layer)
    assert list(layer.state_dict()) == list(lstm.state_dict())
    lstm.load_state_dict(layer.state_dict())
    layer.load_state_dict(lstm.state_dict())


def test_has_the_signature_and_attributes_of_torch_lstm():
    layer = G2LSTM(I, H, 2, False, True, 0.5, True, 3)
    lstm = nn.LSTM(I, H, 2, False, True, 0.5, True, 3)
    for name in nn.RNNBase.__constants__:
        assert getattr(layer, name) == getattr(lstm, name)
    assert [[p.shape for p in group] for group in layer.all_weights] == [[p.shape for p in g] for g in lstm.all_weights]
    layer.flatten_parameters()


def test_initial_weights_are_those_of_torch_lstm():
    torch.manual_seed(0)
    layer = G2LSTM(I, H, 2)
    torch.manual_seed(0)
    lstm = nn.LSTM(I, H, 2)
    assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), lstm.parameters(), strict=True))


@pytest.mark.parametrize("training", [True, False])
def test_deepcopy_is_equal_and_independent(training):
    layer = G2LSTM(I, H, **SMALL, weight_dropout=0.3).train(training)
    twin = copy.deepcopy(layer)
    x = torch.randn(T, B, I)
    torch.manual_seed(1)
    expected = layer(x)[0]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    torch.manual_seed(1)
    assert torch.equal(twin(x)[0], expected)
    assert twin.options() == layer.options()


def test_to_changes_dtype_of_everything():
    layer = G2LSTM(I, H, **SMALL).to(torch.float64)
    out, (h, c) = layer(torch.randn(T, B, I, dtype=torch.float64))
    assert out.dtype == h.dtype == c.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("projected", [0, H - 2])
def test_low_precision_trains(dtype, backend, projected):
    if dtype == torch.float16 and backend == "reference":
        pytest.skip("float16 on the CPU is for the native kernel, which computes in float32")
    layer = G2LSTM(I, H, **SMALL, proj_size=projected, backend=backend, dtype=dtype)
    exact = copy.deepcopy(layer).to(torch.float32)
    x = torch.randn(T, B, I, dtype=dtype)
    noise = [torch.rand(T, B, 2 * H).clamp(0.01, 0.99).logit().to(dtype) for _ in range(4)]
    out, _ = layer(x, noise=noise)
    out.float().square().sum().backward()
    expected, _ = exact(x.float(), noise=[n.float() for n in noise])
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.02)  # two layers of 8-bit mantissas
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("backend", ["auto", "stock", "reference"])
def test_autocast_gives_the_dtypes_of_torch_lstm(training, backend):
    layer, lstm = G2LSTM(I, H, **SMALL, backend=backend).train(training), nn.LSTM(I, H, **SMALL).train(training)
    x = torch.randn(T, B, I)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = flat(layer(x))
        # Where oneDNN has no bfloat16, torch's own LSTM cannot be computed so.
        theirs = flat(lstm(x)) if torch.ops.mkldnn._is_mkldnn_bf16_supported() else ours
    assert [t.dtype for t in ours] == [t.dtype for t in theirs] == [torch.bfloat16] * 3
    ours[0].float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())


@pytest.mark.parametrize("kind", [G2LSTM, G2GRU])
@pytest.mark.parametrize("compiles", [pytest.param(True, marks=needs_new_compiler), False])
def test_backward_under_autocast_is_that_outside(kind, compiles):
    layer, x, each = kind(I, H, **SMALL, noise_rate=0.0), torch.randn(T, B, I), []
    run = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiles else layer
    for inside in (True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = run(x)[0].float()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            each.append(torch.autograd.grad(out.square().sum(), list(layer.parameters())))
    assert all(torch.equal(one, other) for one, other in zip(*each, strict=True))


def test_autocast_leaves_float64_alone():
    layer = G2LSTM(I, H, dtype=torch.float64).eval()
    x = torch.randn(T, B, I, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = layer(x)[0]
    assert torch.equal(inside, layer(x)[0])


# By default, cases that have everything between them.
COMPILED = {"bidirectional_two_layers", "projection_no_bias", "unbatched_batch_first"}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name in COMPILED else pytest.mark.slow)
        for case in SURFACE
        if not case.packed
    ],
)
@needs_new_compiler
def test_compiles_in_evaluation_without_a_graph_break(case):
    layer = make_layer(case, torch.float32).eval()
    x, hx, _ = make_input(case, torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        expected, ours = flat(layer(x, hx)), flat(compiled(x, hx))
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "method", ["gumbel", *(pytest.param(name, marks=pytest.mark.slow) for name in ("binary", "sigmoid", "sharpened"))]
)
def test_training_under_compile(method):
    layer = G2LSTM(I, H, 2, method=method, weight_dropout=0.2)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.5)
    x, target = torch.randn(T, B, I), torch.randn(T, B, H).mul(0.3)
    losses = []
    for _ in range(30):
        loss = (compiled(x)[0] - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])


@pytest.mark.parametrize(
    ("kind", "eval_gate", "with_gradients"),
    [
        (G2LSTM, "hard", True),
        (G2GRU, "tempered", False),
        pytest.param(G2LSTM, "hard", False, marks=pytest.mark.slow),
        pytest.param(G2GRU, "tempered", True, marks=pytest.mark.slow),
        *(pytest.param(G2LSTM, "soft", gradients, marks=pytest.mark.slow) for gradients in (True, False)),
    ],
)
@needs_new_compiler
def test_exports_in_evaluation_for_any_length_and_batch(kind, eval_gate, with_gradients):
    layer = kind(I, H, **SMALL, eval_gate=eval_gate).eval()
    sizes = {0: torch.export.Dim("time", min=2, max=99), 1: torch.export.Dim("batch", min=2, max=64)}
    with torch.set_grad_enabled(with_gradients):
        program = torch.export.export(layer, (torch.randn(T, B, I),), dynamic_shapes=(sizes,))
    x = torch.randn(T + 4, 3, I)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x)[0], layer(x)[0])


def test_dropout_between_layers_only():
    layer = G2LSTM(I, H, num_layers=2, dropout=1.0, method="sigmoid")
    silent = copy.deepcopy(layer)
    with torch.no_grad():
        silent.weight_ih_l1.zero_()  # what the second layer sees when all of its input is dropped
    silent.dropout = 0.0
    x = torch.randn(T, B, I)
    torch.testing.assert_close(layer(x)[0], silent(x)[0])
    assert not torch.allclose(layer.eval()(x)[0], silent.eval()(x)[0])


@pytest.mark.parametrize("backend", ["native", "stock", "reference"])
def test_weight_dropout_drops_recurrent_weights_once_per_call(backend, monkeypatch):
    drawn = []

    def spy(probability, generator):
        drawn.append(draw_drop(probability, generator))
        return drawn[-1]

    monkeypatch.setattr("g2lstm.nn.gated.draw_drop", spy)
    layer = G2LSTM(I, H, weight_dropout=0.5, method="sigmoid", backend=backend, dtype=torch.float64)
    x = torch.randn(T, B, I, dtype=torch.float64)
    out, _, gates = layer(x, return_gates=True)
    out.sum().backward()
    assert len(drawn) == 1
    weight = drop(layer.weight_hh_l0.detach(), drawn[0])
    assert 0.2 < (weight == 0).double().mean() < 0.8
    twin = G2LSTM(I, H, method="sigmoid", backend="reference", dtype=torch.float64)
    twin.load_state_dict(layer.state_dict() | {"weight_hh_l0": weight})
    expected, _, expected_gates = twin(x, return_gates=True)
    expected.sum().backward()
    torch.testing.assert_close(out, expected, rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(gates.forget[0], expected_gates.forget[0], rtol=1e-7, atol=1e-10)
    gradient = drop(twin.weight_hh_l0.grad, drawn[0])
    torch.testing.assert_close(layer.weight_hh_l0.grad, gradient, rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(layer.weight_ih_l0.grad, twin.weight_ih_l0.grad, rtol=1e-7, atol=1e-10)
    layer.eval()(x)
    assert len(drawn) == 1


def test_generator_decides_the_noise_whatever_the_backend():
    x = torch.randn(T, B, I, dtype=torch.float64)
    outputs = []
    for backend in ("reference", "stock", "native", "native"):
        torch.manual_seed(5)
        layer = G2LSTM(I, H, **SMALL, backend=backend, dtype=torch.float64)
        outputs.append(layer(x, generator=torch.Generator().manual_seed(7))[0])
    for out in outputs[1:]:
        torch.testing.assert_close(out, outputs[0], rtol=1e-7, atol=1e-10)
    other = layer(x, generator=torch.Generator().manual_seed(8))[0]
    assert not torch.allclose(other, outputs[0])


def test_torch_seed_makes_training_repeatable():
    layer, x = G2LSTM(I, H, **SMALL, weight_dropout=0.5, dropout=0.2), torch.randn(T, B, I)
    torch.manual_seed(3)
    first = layer(x)[0]
    torch.manual_seed(3)
    assert torch.equal(layer(x)[0], first)
    assert not torch.equal(layer(x)[0], first)


def test_empty_batch():
    for training in (True, False):
        out, (h, c) = G2LSTM(I, H).train(training)(torch.randn(T, 0, I))
        assert out.shape == (T, 0, H)
        assert h.shape == c.shape == (1, 0, H)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": 0.0}, "tau.*at least 1e-06, got 0.0"),
        ({"tau": -1}, "tau.*at least 1e-06, got -1"),
        ({"tau": float("nan")}, "tau.*got nan"),
        ({"tau": float("inf")}, "tau.*finite.*got inf"),
        ({"tau": "0.9"}, "tau must be a number, got '0.9'"),
        ({"noise_rate": -0.1}, r"noise_rate.*\[0, 1\], got -0.1"),
        ({"noise_rate": 1.1}, r"noise_rate.*\[0, 1\], got 1.1"),
        ({"noise_rate": float("nan")}, "noise_rate.*got nan"),
        ({"weight_dropout": 1.0}, r"weight_dropout.*\[0, 1\), got 1.0"),
        ({"method": "gumble"}, "method must be one of 'gumbel', 'binary', 'sigmoid', 'sharpened', got 'gumble'"),
        ({"gates": "io"}, "gates must be one of 'if', 'ifo', got 'io'"),
        ({"eval_gate": "binary"}, "eval_gate must be one of 'soft', 'tempered', 'hard', got 'binary'"),
        ({"backend": "cuda"}, "backend must be one of 'auto', 'reference', 'stock', 'native', got 'cuda'"),
        ({"proj_size": 7}, "proj_size must be 0.*smaller than hidden_size=7, got 7"),
        ({"proj_size": -1}, "proj_size must be 0.*got -1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(G2Error, match=message):
        G2LSTM(I, H, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m(torch.randn(T, B, I + 1)), "input_size=4 features in its last dimension, got 5"),
        (lambda m: m(torch.randn(I)), r"3 dimensions.*shape \(4,\)"),
        (lambda m: m(torch.randn(0, B, I)), "at least one step"),
        (lambda m: m(torch.randn(T, B, I).double()), "input is torch.float64, but the weights are torch.float32"),
        (lambda m: m(torch.randn(T, B, I), (torch.zeros(1, B, H + 1), torch.zeros(1, B, H))),
         r"first state h must have shape \(1, 5, 7\).*got \(1, 5, 8\)"),
        (lambda m: m(torch.randn(T, B, I), (torch.zeros(1, B, H), torch.zeros(2, B, H))),
         r"first state c must have shape \(1, 5, 7\).*got \(2, 5, 7\)"),
        (lambda m: m(torch.randn(T, I), (torch.zeros(1, B, H), torch.zeros(1, B, H))),
         r"first state h must have shape \(1, 7\)"),
        (lambda m: m(pack_sequence([torch.randn(3, I + 2)])), "got 6"),
        (lambda m: m(torch.randn(T, B, I), (torch.zeros(1, B, H), torch.zeros(1, B, H, device="meta"))),
         "first state c is on meta, but the input is on cpu; move one of them"),
        (lambda m: m(torch.randn(T, B, I), noise=[torch.zeros(T, B, 2 * H, device="meta")]),
         r"noise\[0\] is on meta, but the input is on cpu"),
        *((lambda m, sizes=sizes: m(PackedSequence(torch.randn(2, I), torch.tensor(sizes, dtype=torch.int64))),
           "batch_sizes that never grow and sum to its 2 rows") for sizes in ([5, -3], [2, 0], [3], [])),
        (lambda m: m(PackedSequence(torch.randn(3, I), torch.tensor([1, 2]))), "batch_sizes that never grow"),
        (lambda m: m(torch.randn(T, B, I), noise=[]), "noise must be 1 tensors, one per layer and direction, got 0"),
        (lambda m: m(torch.randn(T, B, I), noise=[torch.zeros(T, B, H)]),
         r"noise\[0\] must have shape \(6, 5, 14\), got \(6, 5, 7\)"),
        (lambda m: m.eval()(torch.randn(T, B, I), noise=[torch.zeros(T, B, 2 * H)]), "noise.*evaluation mode"),
        (lambda m: G2LSTM(I, H, method="sigmoid")(torch.randn(T, B, I), noise=[torch.zeros(T, B, 2 * H)]),
         "noise.*method 'sigmoid'"),
    ],
)  # fmt: skip
def test_bad_calls(call, message):
    with pytest.raises(G2Error, match=message):
        call(G2LSTM(I, H))


def test_repr_names_what_matters():
    text = repr(G2LSTM(I, H, 2, weight_dropout=0.5, backend="stock"))
    assert text == (
        "G2LSTM(4, 7, num_layers=2, method=gumbel, gates=if, eval_gate=soft, tau=0.9, noise_rate=0.2, "
        "weight_dropout=0.5, backend=stock)"
    )
