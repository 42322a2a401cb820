"""The compiled kernel: threads, denormals, precision, and what it refuses to read."""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

from g2lstm import G2GRU, G2LSTM
from g2lstm.nn import recurrence
from g2lstm.nn.gate import GateRule
from g2lstm.nn.random import draw_drop, draw_stream
from tests.nn.layers import B, H, I, T
from tests.requirements import needs_new_compiler

SPLITS = {
    "by sequences": (96, 24, 0),
    "by sequences, projected": (96, 24, 40),
    "by units": (300, 3, 0),
    "by units, projected": (300, 3, 100),
    "weights beyond the cache": (700, 9, 0),
}
THREADS = [  # by default, a sample: every split packed and not, every number of threads
    pytest.param(count, *split, packed, id=f"{name}-{count}-{packed}", marks=() if is_fast else pytest.mark.slow)
    for k, (name, split) in enumerate(SPLITS.items())
    for count in (2, 3, 5)
    for packed in (False, True)
    for is_fast in [count == (2, 3)[(k + packed) % 2] or (name, count, packed) == ("by units", 5, True)]
]


@pytest.mark.parametrize(("threads", "hidden", "batch", "projection", "packed"), THREADS)
def test_threads_change_neither_values_nor_gradients(threads, hidden, batch, projection, packed):
    layer = G2LSTM(16, hidden, bidirectional=True, proj_size=projection, backend="native", noise_rate=0.5)
    sequences = [torch.randn(7 if k % 2 else 4, 16) for k in range(batch)]
    x = pack_sequence(sequences, enforce_sorted=False) if packed else torch.randn(5, batch, 16)

    def run(count):
        torch.set_num_threads(count)
        layer.zero_grad()
        out, (h, c) = layer(x, generator=torch.Generator().manual_seed(0))
        out = out.data if packed else out
        (out.square().sum() + h.sum() + c.square().sum()).backward()
        return [out.detach(), h.detach(), c.detach(), *(p.grad.clone() for p in layer.parameters())]

    before = torch.get_num_threads()
    try:
        expected = run(1)
        for _ in range(2):  # a race shows now and then only
            for ours, theirs in zip(run(threads), expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(before)


def test_denormal_gradients_are_flushed():
    layer = G2LSTM(I, H, backend="native", method="sigmoid")
    x = torch.randn(T, B, I, requires_grad=True)
    out, _ = layer(x)
    out.backward(torch.full_like(out, 1e-42))
    assert (x.grad == 0).all()


@pytest.mark.parametrize("through", ["out", "h", "c"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_projection_gradients_through_each_output(through, dtype):
    """A gradient that comes through the states alone must find the projection in the kernel's precision and layout."""
    layer = G2LSTM(5, 24, proj_size=10, backend="native", dtype=dtype)
    layer.weight_hr_l0 = nn.Parameter(layer.weight_hr_l0.detach().t().contiguous().t())  # not contiguous
    exact = G2LSTM(5, 24, proj_size=10, backend="reference", dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    x, noise = torch.randn(4, 3, 5, dtype=dtype), [torch.randn(4, 3, 48, dtype=dtype)]

    def gradients(layer, dtype):
        out, (h, c) = layer(x.to(dtype), noise=noise)
        loss = {"out": out, "h": h, "c": c}[through].to(torch.float64).square().sum()
        return [g.double() for g in torch.autograd.grad(loss, list(layer.parameters()))]

    for ours, theirs in zip(gradients(layer, dtype), gradients(exact, torch.float64), strict=True):
        scale = theirs.abs().max()
        bound = 0.03 if dtype == torch.bfloat16 else 1e-5
        assert (ours - theirs).abs().max() <= bound * scale


def test_it_refuses_what_does_not_fit():
    rows, offset = torch.tensor([2, 2]), torch.tensor([0, 2])
    fits = [torch.zeros(4, 12), None, torch.zeros(12, 3), None, torch.zeros(2, 3), torch.zeros(2, 3)]
    recurrence.lstm_forward(*fits, rows, offset, GateRule())
    for index, wrong in [(0, torch.zeros(5, 12)), (2, torch.zeros(3, 12).t()), (4, torch.zeros(2, 3).double())]:
        arguments = [wrong if k == index else value for k, value in enumerate(fits)]
        with pytest.raises(ValueError, match="the kernel needs|the steps have"):
            recurrence.lstm_forward(*arguments, rows, offset, GateRule())
    with pytest.raises(ValueError, match="int64 steps"):
        recurrence.lstm_forward(*fits, rows.int(), offset, GateRule())
    with pytest.raises(ValueError, match="the kernel of LSTMs has the gates if or ifo, got 'rz'"):
        recurrence.lstm_forward(*fits, rows, offset, GateRule(gates="rz"))
    for index in range(2):
        steps = [rows, offset]
        for wrong in ([4, 0], [-2, 6], [0, -1], [0, 3], [2**62, 0], [-(2**63), 2**62]):
            steps[index] = torch.tensor(wrong)
            with pytest.raises(ValueError, match="the kernel needs steps of 0 to as many|the steps have"):
                recurrence.lstm_forward(*fits, *steps, GateRule())


def operator_arguments(batch_sizes, gates="if", dtype=torch.float32):
    """What the operator of a layer with 2 sequences, 5 rows in all, takes."""
    count, is_lstm = (4, True) if gates == "if" else (3, False)
    x, w_x, w_h, bias = (
        torch.randn(shape, dtype=dtype) for shape in ((5, I), (count * H, I), (count * H, H), count * H)
    )
    h, c = torch.randn(2, H, dtype=dtype), torch.randn(2, H, dtype=dtype) if is_lstm else None
    extra = None if is_lstm else torch.randn(H, dtype=dtype)
    settings = (batch_sizes, None, False, 0.9, gates, False, False)
    return (x, w_x, w_h, bias, extra, torch.randn(5, 2 * H, dtype=dtype), h, c, *settings)


@pytest.mark.parametrize("gates", ["if", "rz"])
@pytest.mark.parametrize("sizes", [[1, -2000, 2004], [3, 2], [2, -1, 4], [5], [2**62, -(2**62) + 5], [2, 2]])
def test_the_operator_refuses_steps_that_are_not_there(sizes, gates):
    with pytest.raises(ValueError, match="the kernel needs steps of 0 to as many|the steps have"):
        torch.ops.g2lstm.layer_forward(*operator_arguments(torch.tensor(sizes), gates))


@pytest.mark.parametrize("sizes", [[1, -2000, 2004], pytest.param([2, -1, 4], marks=pytest.mark.slow)])
@needs_new_compiler
def test_compiled_layers_refuse_steps_that_are_not_there(sizes):
    """Under the compiler nothing can be checked before the kernel runs."""
    layer = torch.compile(G2LSTM(I, H), backend="eager")
    torch._dynamo.reset()
    with pytest.raises(ValueError, match="the kernel needs steps of 0 to as many"):
        layer(PackedSequence(torch.randn(5, I), torch.tensor(sizes)))


NON_LEAF = "ignore:The .grad attribute of a Tensor that is not a leaf"  # opcheck itself looks at it since torch 2.15


@pytest.mark.filterwarnings(NON_LEAF)
@pytest.mark.parametrize(("gates", "dtype"), [("if", torch.float64), ("rz", torch.float64), ("if", torch.bfloat16)])
def test_the_operators_keep_torchs_rules(gates, dtype):
    arguments = operator_arguments(torch.tensor([2, 2, 1]), gates, dtype)
    with torch.no_grad():
        out, _, _, values, kept = torch.ops.g2lstm.layer_forward(*arguments)
    x, w_x, w_h, _, extra, _, h, c, *settings = arguments
    states = (torch.ones_like(h), None if c is None else torch.ones_like(c))
    backward = (torch.ones_like(out), *states, x, w_x, w_h, extra, h, c, out, values, kept, *settings, True)
    for tensor in arguments:
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            tensor.requires_grad_()
    torch.library.opcheck(torch.ops.g2lstm.layer_forward.default, arguments)
    torch.library.opcheck(torch.ops.g2lstm.layer_backward.default, tuple(map(detached, backward)))


def detached(value):
    return value.detach() if isinstance(value, Tensor) else value


@pytest.mark.filterwarnings(NON_LEAF)
def test_the_random_operators_keep_torchs_rules():
    weight = torch.randn(3, 5, requires_grad=True)
    torch.library.opcheck(torch.ops.g2lstm.drop.default, (weight, draw_drop(0.3)))
    torch.library.opcheck(torch.ops.g2lstm.logistic_noise.default, (draw_stream(), 7, 0.2, torch.float32))


@pytest.mark.parametrize("make", [G2LSTM, G2GRU], ids=lambda make: make.__name__)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_fake_tensors_have_the_shapes_of_real_ones(make, training):
    options = {"num_layers": 2, "bidirectional": True, "dropout": 0.5, "weight_dropout": 0.5, "backend": "native"}
    real = make(I, H, **options).train(training)(torch.randn(T, B, I))[0]
    with FakeTensorMode():
        out = make(I, H, **options).train(training)(torch.randn(T, B, I))[0]
        out.sum().backward()
    assert (out.shape, out.dtype) == (real.shape, real.dtype)


@pytest.mark.parametrize("options", [{}, {"proj_size": 3}, {"eval_gate": "hard"}], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_nan_stays_in_its_packed_sequence(options, training):
    layer = G2LSTM(I, H, bidirectional=True, **options).train(training)
    sequences = [torch.randn(length, I) for length in (4, 6, 1, 6)]
    sequences[1][2, 0] = float("nan")
    out, (h, _) = layer(pack_sequence(sequences, enforce_sorted=False))
    padded, _ = pad_packed_sequence(out)
    assert padded[:, 1].isnan().any()
    assert not padded[:, [0, 2, 3]].isnan().any()
    assert not h[:, [0, 2, 3]].isnan().any()
