"""The cells: one step of the layers, drop-ins for torch's cells."""

import copy

import pytest
import torch
from torch import nn

from g2lstm import G2GRU, G2LSTM, G2Error, G2GRUCell, G2LSTMCell, record_gates
from tests.nn.layers import B, H, I, T
from tests.requirements import needs_new_compiler

CELLS = [(G2LSTMCell, nn.LSTMCell, G2LSTM), (G2GRUCell, nn.GRUCell, G2GRU)]
BACKENDS = ["auto", "reference", "stock", "native"]


def tensors(state):
    return [state] if isinstance(state, torch.Tensor) else list(state)


def run(cell, x, noise=None):
    """Every h of the cell in a loop, and the gradients of all that took part."""
    x = x.clone().requires_grad_()
    state, outputs = None, []
    for t in range(len(x)):
        state = cell(x[t], state, **({} if noise is None else {"noise": noise[t]}))
        outputs.append(tensors(state)[0])
    out = torch.stack(outputs)
    return [out, *tensors(state), *torch.autograd.grad(out.square().sum(), [x, *cell.parameters()])]


@pytest.mark.parametrize(("ours", "theirs", "layer_kind"), CELLS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(T, B, I), (T, I)], ids=["batched", "unbatched"])
def test_a_loop_of_cells_is_the_layer(ours, theirs, layer_kind, backend, bias, shape):
    torch.manual_seed(0)
    cell = ours(I, H, bias, backend=backend, dtype=torch.float64)
    layer = layer_kind(I, H, bias=bias, backend="reference", dtype=torch.float64)
    layer.load_state_dict({f"{name}_l0": value for name, value in cell.state_dict().items()})
    x, noise = torch.randn(shape, dtype=torch.float64), torch.rand(*shape[:-1], 2 * H, dtype=torch.float64).logit()
    expected_x = x.clone().requires_grad_()
    out, state = layer(expected_x, noise=[noise])
    expected = torch.autograd.grad(out.square().sum(), [expected_x, *layer.parameters()])
    for got, wanted in zip(run(cell, x, noise), [out, *(s[0] for s in tensors(state)), *expected], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(("ours", "theirs", "_"), CELLS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("training", [True, False])
def test_is_torch_cell_without_noise_at_temperature_one(ours, theirs, _, backend, training):
    cell = ours(I, H, tau=1.0, noise_rate=0.0, backend=backend, dtype=torch.float64).train(training)
    twin = theirs(I, H, dtype=torch.float64)
    assert list(cell.state_dict()) == list(twin.state_dict())
    twin.load_state_dict(cell.state_dict())
    x = torch.randn(T, B, I, dtype=torch.float64)
    for got, wanted in zip(run(cell, x), run(twin, x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(("ours", "theirs", "_"), CELLS)
@pytest.mark.parametrize("options", [{}, {"method": "sharpened"}, {"eval_gate": "tempered", "tau": 0.5}], ids=str)
def test_to_and_from_torch_cell_keep_the_output(ours, theirs, _, options):
    twin, x = theirs(I, H).eval(), torch.randn(B, I)
    cell = ours.from_cell(twin, **options)
    assert isinstance(cell, theirs)
    torch.testing.assert_close(cell(x), twin(x))
    assert type(cell.to_cell()) is theirs
    torch.testing.assert_close(cell.to_cell()(x), twin(x))


@pytest.mark.parametrize(("ours", "theirs", "_"), CELLS)
def test_gates_are_returned_and_recorded(ours, theirs, _):
    cell, x = ours(I, H), torch.randn(B, I)
    with record_gates(cell) as record:
        _state, gates = cell(x, return_gates=True)
    torch.manual_seed(1)
    expected = cell(x)
    torch.manual_seed(1)
    again, _ = cell(x, return_gates=True)
    torch.testing.assert_close(again, expected)
    name = next(iter(gates.named))
    assert gates.named[name][0].shape == (B, H)
    assert torch.equal(record[""][0].named[name][0], gates.named[name][0])
    assert cell(x[0], return_gates=True)[1].named[name][0].shape == (H,)
    plain = theirs(I, H)
    with record_gates(plain) as record:
        plain(x)
    torch.testing.assert_close(record[""][0].named, ours.from_cell(plain).eval()(x, return_gates=True)[1].named)


@pytest.mark.parametrize(("ours", "theirs", "_"), CELLS)
def test_noise_and_dropconnect_are_drawn_at_each_call(ours, theirs, _):
    x = torch.randn(B, I)
    for options in ({}, {"method": "sigmoid", "weight_dropout": 0.5}):
        cell = ours(I, H, **options)
        state = tuple(torch.randn(B, H) for _ in range(2)) if ours is G2LSTMCell else torch.randn(B, H)
        assert not torch.equal(tensors(cell(x, state))[0], tensors(cell(x, state))[0])
        assert torch.equal(tensors(cell.eval()(x, state))[0], tensors(copy.deepcopy(cell)(x, state))[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(one.dtype == torch.bfloat16 for one in tensors(cell(x)))


@pytest.mark.parametrize("with_gradients", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("ours", "theirs", "_"), CELLS)
@needs_new_compiler
def test_exports_for_any_batch(ours, theirs, _, with_gradients):
    cell, sizes = ours(I, H).eval(), {0: torch.export.Dim("batch", min=2, max=64)}
    with torch.set_grad_enabled(with_gradients):
        program = torch.export.export(cell, (torch.randn(B, I),), dynamic_shapes=(sizes,))
    x = torch.randn(B + 4, I)
    torch.testing.assert_close(program.module()(x), cell(x))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: G2LSTMCell(I, H)(torch.randn(T, B, I)), "must have 2 dimensions, or 1 if unbatched; got shape"),
        (lambda: G2LSTMCell(I, H)([1.0]), "the input must be a tensor, got list"),
        (lambda: G2LSTMCell(I, H)(torch.randn(B, I), torch.zeros(B, H)), r"must be two tensors, \(h, c\), got Tensor"),
        (
            lambda: G2GRUCell(I, H)(torch.randn(B, I), torch.zeros(1, B, H)),
            r"shape \(5, 7\), that is \(batch, features\)",
        ),
        (lambda: G2GRUCell(I, H)(torch.randn(I), torch.zeros(B, H)), r"shape \(7,\), that is \(features\)"),
        (lambda: G2GRUCell(I, H)(torch.randn(B, I), noise=torch.zeros(B, H)), r"noise\[0\] must have shape \(5, 14\)"),
        (lambda: G2GRUCell.from_cell(nn.LSTMCell(2, 3)), "starts from a torch.nn.GRUCell, got LSTMCell"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(G2Error, match=message):
        call()
