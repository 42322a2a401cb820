"""The fast layer for CPU training: one product for the inputs of all steps, then the recurrence.

Its forward and backward pass are registered as torch operators, so that `torch.compile` and `torch.export` know them;
outside of these they are called directly, which saves the dispatch.
"""

from functools import partial

import torch
from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.nn import recurrence, reference
from g2lstm.nn.gate import GRU, GateRule
from g2lstm.nn.layer import Direction, LayerOutput, in_each_direction, previous_rows, step_rows
from g2lstm.nn.random import drop


def _run(direction: Direction) -> LayerOutput:
    if direction.rule.kind is GRU:
        return reference.run_direction(direction)
    x, (h, c), weights, rule, noise, batch_sizes, backwards = direction
    run = _layer_forward if torch.compiler.is_compiling() else _Layer.apply
    tensors = (x, weights.w_x, weights.w_h, weights.bias(), weights.w_r, noise, h, c, batch_sizes, weights.choice)
    out, h_last, c_last, _, _ = run(*tensors, backwards, rule.tau, rule.gates, rule.hard)
    return LayerOutput(out.to(x.dtype), (h_last.to(x.dtype), c_last.to(x.dtype)))  # low precision: in float32


run_layer = in_each_direction(_run)


def _working_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def _as_rows(tensor: Tensor) -> Tensor:
    """(T, B, features) as (N, features)."""
    return tensor.flatten(0, 1) if tensor.dim() == 3 else tensor


def _forward(
    x: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    bias: Tensor | None,
    w_r: Tensor | None,
    noise: Tensor | None,
    h0: Tensor,
    c0: Tensor,
    batch_sizes: Tensor | None,
    choice: Tensor | None,
    backwards: bool,
    tau: float,
    gates: str,
    hard: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One layer in one direction: the output, the last h and c; gates (N, 4H) and cells (N, H) of all steps."""
    working, batch = _working_dtype(x.dtype), len(h0)
    rows, offset = step_rows(batch, len(x if batch_sizes is None else batch_sizes), batch_sizes, backwards)
    inputs, w_x, w_h, h0, c0 = (t.to(working).contiguous() for t in (_as_rows(x), w_x, w_h, h0, c0))
    bias, w_r, noise = (None if t is None else t.to(working).contiguous() for t in (bias, w_r, noise))
    if choice is not None:
        w_h = drop(w_h, choice)
    values = inputs @ w_x.t() if bias is None else torch.addmm(bias, inputs, w_x.t())
    noise = None if noise is None else _as_rows(noise)
    out, cells = recurrence.forward(values, noise, w_h, w_r, h0, c0, rows, offset, GateRule(tau, gates, hard))
    if batch_sizes is None:
        last = slice(0, batch) if backwards else slice(len(out) - batch, None)
        h_last, c_last = out[last].clone(), cells[last].clone()
    else:
        _, last_rows = previous_rows(rows, offset, batch)
        h_last, c_last = out[last_rows], cells[last_rows]
    return out.view(*x.shape[:-1], out.size(1)), h_last, c_last, values, cells


_layer_forward = torch.library.custom_op("g2lstm::layer_forward", _forward, mutates_args=())


@_layer_forward.register_fake
def _(x, w_x, w_h, bias, w_r, noise, h0, c0, *settings):  # type: ignore[no-untyped-def]
    working = _working_dtype(x.dtype)
    n, hidden = x.shape[:-1].numel(), c0.size(1)
    out = x.new_empty(*x.shape[:-1], h0.size(1), dtype=working)
    values, cells = (x.new_empty(n, width, dtype=working) for width in (4 * hidden, hidden))
    return out, torch.empty_like(h0, dtype=working), torch.empty_like(c0, dtype=working), values, cells


def _gradients(
    d_out: Tensor | None,
    d_h_last: Tensor | None,
    d_c_last: Tensor | None,
    x: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    w_r: Tensor | None,
    h0: Tensor,
    c0: Tensor,
    out: Tensor,
    values: Tensor,
    cells: Tensor,
    batch_sizes: Tensor | None,
    choice: Tensor | None,
    backwards: bool,
    tau: float,
    gates: str,
    hard: bool,
    wants_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, W_x, W_h, bias, W_r, h0, c0 (empty where not wanted or not there)."""
    working, batch = values.dtype, len(h0)
    rows, offset = step_rows(batch, len(x if batch_sizes is None else batch_sizes), batch_sizes, backwards)
    inputs, w_x, w_h, h0, c0 = (t.to(working).contiguous() for t in (_as_rows(x), w_x, w_h, h0, c0))
    w_r = None if w_r is None else w_r.to(working).contiguous()
    out = _as_rows(out)
    if choice is not None:  # once more: 20 MB of weights need not be kept for it
        w_h = drop(w_h, choice)
    d_h, d_c = (
        torch.zeros_like(like) if grad is None else grad.to(working, memory_format=torch.contiguous_format, copy=True)
        for grad, like in ((d_h_last, h0), (d_c_last, c0))
    )
    if d_out is None:
        d_out = torch.zeros_like(out)
    elif w_r is None:
        d_out = _as_rows(d_out).contiguous()
    else:  # the recurrence turns it into the gradient of h
        d_out = _as_rows(d_out).clone(memory_format=torch.contiguous_format)
    rule = GateRule(tau, gates, hard)
    d_values = recurrence.backward(d_out, d_h, d_c, values, cells, c0, w_h, w_r, rows, offset, rule)
    del w_h  # with DropConnect a copy, whose place the gradients take

    if batch_sizes is None:  # h before each step: the outputs moved by one step, with no copy of them
        rest, first = (slice(0, -batch), slice(-batch, None)) if backwards else (slice(batch, None), slice(0, batch))
        moved = slice(batch, None) if backwards else slice(0, len(out) - batch)
        d_w_h = (d_values[rest].t() @ out[moved]).addmm_(d_values[first].t(), h0)
    else:
        before, _ = previous_rows(rows, offset, batch)
        d_w_h = d_values.t() @ torch.cat([h0, out])[before]
    if choice is not None:
        d_w_h = drop(d_w_h, choice)
    d_x = (d_values @ w_x).view_as(x) if wants_x else values.new_empty(0)
    d_w_r = values.new_empty(0) if w_r is None else d_out.t() @ (values[:, -c0.size(1) :] * torch.tanh(cells))
    return d_x, d_values.t() @ inputs, d_w_h, d_values.sum(0), d_w_r, d_h, d_c


_layer_backward = torch.library.custom_op("g2lstm::layer_backward", _gradients, mutates_args=())


@_layer_backward.register_fake
def _(d_out, d_h_last, d_c_last, x, w_x, w_h, w_r, h0, c0, out, values, *settings):  # type: ignore[no-untyped-def]
    wants_x = settings[-1]
    d_x, d_w_x, d_w_h, d_h, d_c = (torch.empty_like(t, dtype=values.dtype) for t in (x, w_x, w_h, h0, c0))
    d_w_r = values.new_empty(0) if w_r is None else torch.empty_like(w_r, dtype=values.dtype)
    return d_x if wants_x else values.new_empty(0), d_w_x, d_w_h, values.new_empty(values.size(1)), d_w_r, d_h, d_c


def _save_for_backward(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, w_x, w_h, bias, w_r, _, h0, c0, batch_sizes, choice, *ctx.settings = inputs
    out, _, _, values, cells = output
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, w_x, w_h, w_r, h0, c0, out, values, cells, batch_sizes, choice)
    ctx.mark_non_differentiable(values, cells)
    ctx.set_materialize_grads(False)


def _backward(gradients, ctx, d_out, d_h_last, d_c_last, _values, _cells):  # type: ignore[no-untyped-def]
    x, *others = ctx.saved_tensors
    has_projection, wants_x = others[2] is not None, ctx.needs_input_grad[0]
    grads = gradients(d_out, d_h_last, d_c_last, x, *others, *ctx.settings, wants_x)
    d_x, d_w_x, d_w_h, d_bias, d_w_r, d_h, d_c = (g.to(x.dtype) for g in grads)
    constants = (None,) * (2 + len(ctx.settings))
    d_bias, d_w_r = d_bias if ctx.has_bias else None, d_w_r if has_projection else None
    return (d_x if wants_x else None, d_w_x, d_w_h, d_bias, d_w_r, None, d_h, d_c, *constants)


def _refuse_double_backward(ctx, *grads):  # type: ignore[no-untyped-def]
    raise G2Error(
        "the native LSTM kernel has no second derivative; for double backward build the layer with backend='reference'"
    )


_layer_forward.register_autograd(partial(_backward, _layer_backward), setup_context=_save_for_backward)
_layer_backward.register_autograd(_refuse_double_backward)


# The operators without their dispatch, which takes a third of a millisecond: as long as a small layer's product. They
# have the form that the transforms of `torch.func` ask for, too. Torch binds the arguments to the signature of
# `forward` at each call, so that has a single, starred one.
class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(*inputs):  # type: ignore[no-untyped-def]
        return _forward(*inputs)

    setup_context = staticmethod(_save_for_backward)

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]
        return _backward(_Gradients.apply, ctx, *grads)


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(*inputs):  # type: ignore[no-untyped-def]
        return _gradients(*inputs)

    setup_context = staticmethod(lambda ctx, inputs, output: None)
    backward = staticmethod(_refuse_double_backward)
