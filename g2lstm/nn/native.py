"""The fast layer for CPU training: one product for the inputs of all steps, then the compiled recurrence.

Registered as torch operators, so that `torch.compile` and `torch.export` know them; called directly otherwise. Where
the kernel was not compiled, `fallback.py` computes the same in torch operations.
"""

from types import ModuleType

import torch
from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.nn import fallback, kernel
from g2lstm.nn.draw import drop, runs_eagerly
from g2lstm.nn.gate import GateRule
from g2lstm.nn.layer import LayerOutput, Weights, in_each_direction, previous_rows, step_rows


def _run_direction(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    weights: Weights,
    rule: GateRule,
    noise: Tensor | None,
    batch_sizes: Tensor | None,
    backwards: bool,
) -> LayerOutput:
    if batch_sizes is None:
        steps = x.size(0)
        x, noise = x.flatten(0, 1), None if noise is None else noise.flatten(0, 1)
    else:
        steps = len(batch_sizes)
    w_x, w_h, _, _, w_r, drop = weights
    stream, probability = (None, 0.0) if drop is None else drop
    settings = (steps, backwards, rule.tau, rule.gates, rule.hard, probability)
    run = _Eager.apply if runs_eagerly() else layer_forward if torch.compiler.is_compiling() else _Functional.apply
    out, h_last, c_last, _, _ = run(x, w_x, w_h, weights.bias, w_r, noise, h, c, batch_sizes, stream, *settings)
    if batch_sizes is None:
        out = out.unflatten(0, (steps, len(h)))
    return LayerOutput(out.to(x.dtype), h_last.to(x.dtype), c_last.to(x.dtype))  # low precision is computed in float32


run_layer = in_each_direction(_run_direction)


def _engine() -> ModuleType:
    return fallback if kernel.find().library is None else kernel


def _working_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


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
    drop_stream: Tensor | None,
    steps: int,
    backwards: bool,
    tau: float,
    gates: str,
    hard: bool,
    drop_probability: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One layer in one direction over rows x (N, I): out (N, R), last h, last c; gates (N, 4H), cells (N, H)."""
    working = _working_dtype(x.dtype)
    rows, offset = step_rows(len(h0), steps, batch_sizes, backwards)
    x, w_x, w_h, h0, c0 = (t.to(working).contiguous() for t in (x, w_x, w_h, h0, c0))
    bias, w_r, noise = (None if t is None else t.to(working).contiguous() for t in (bias, w_r, noise))
    if drop_stream is not None:
        w_h = drop(w_h, drop_stream, drop_probability)
    values = x @ w_x.t() if bias is None else torch.addmm(bias, x, w_x.t())
    rule = GateRule(tau, gates, hard)
    out, cells = _engine().forward(values, noise, w_h, w_r, h0, c0, rows, offset, rule)
    if batch_sizes is None:
        last = slice(0, len(h0)) if backwards else slice(len(out) - len(h0), None)
        h_last, c_last = out[last].clone(), cells[last].clone()
    else:
        _, last_rows = previous_rows(rows, offset, len(h0))
        h_last, c_last = out[last_rows], cells[last_rows]
    return out, h_last, c_last, values, cells


layer_forward = torch.library.custom_op("g2lstm::layer_forward", _forward, mutates_args=())


@layer_forward.register_fake
def _(x, w_x, w_h, bias, w_r, noise, h0, c0, *settings):  # type: ignore[no-untyped-def]
    working = _working_dtype(x.dtype)
    n, hidden = x.size(0), c0.size(1)
    widths = (h0.size(1), 4 * hidden, hidden)
    out, values, cells = (x.new_empty(n, width, dtype=working) for width in widths)
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
    drop_stream: Tensor | None,
    steps: int,
    backwards: bool,
    tau: float,
    gates: str,
    hard: bool,
    drop_probability: float,
    wants_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, W_x, W_h, bias, W_r, h0, c0 (empty where not wanted or not there)."""
    working, batch = values.dtype, len(h0)
    rows, offset = step_rows(batch, steps, batch_sizes, backwards)
    x, w_x, w_h, h0, c0 = (t.to(working).contiguous() for t in (x, w_x, w_h, h0, c0))
    w_r = None if w_r is None else w_r.to(working).contiguous()
    if drop_stream is not None:  # once more: 20 MB of weights need not be kept for it
        w_h = drop(w_h, drop_stream, drop_probability)
    d_h, d_c = (
        torch.zeros_like(like) if grad is None else grad.to(working, memory_format=torch.contiguous_format, copy=True)
        for grad, like in ((d_h_last, h0), (d_c_last, c0))
    )
    if d_out is None:
        d_out = torch.zeros_like(out)
    elif w_r is None:
        d_out = d_out.contiguous()
    else:  # the recurrence turns it into the gradient of h
        d_out = d_out.clone(memory_format=torch.contiguous_format)
    rule = GateRule(tau, gates, hard)
    d_values = _engine().backward(values, cells, w_h, w_r, c0, d_out, d_h, d_c, rows, offset, rule)
    del w_h  # with DropConnect a copy, whose place the gradients take

    if batch_sizes is None:  # h before each step: the outputs moved by one step, with no copy of them
        rest, first = (slice(0, -batch), slice(-batch, None)) if backwards else (slice(batch, None), slice(0, batch))
        moved = slice(batch, None) if backwards else slice(0, len(out) - batch)
        d_w_h = (d_values[rest].t() @ out[moved]).addmm_(d_values[first].t(), h0)
    else:
        before, _ = previous_rows(rows, offset, batch)
        d_w_h = d_values.t() @ torch.cat([h0, out])[before]
    if drop_stream is not None:
        d_w_h = drop(d_w_h, drop_stream, drop_probability)
    d_x = d_values @ w_x if wants_x else x.new_empty(0)
    d_w_r = x.new_empty(0) if w_r is None else d_out.t() @ (values[:, -c0.size(1) :] * torch.tanh(cells))
    return d_x, d_values.t() @ x, d_w_h, d_values.sum(0), d_w_r, d_h, d_c


layer_backward = torch.library.custom_op("g2lstm::layer_backward", _gradients, mutates_args=())


@layer_backward.register_fake
def _(d_out, d_h_last, d_c_last, x, w_x, w_h, w_r, h0, c0, out, values, *settings):  # type: ignore[no-untyped-def]
    wants_x = settings[-1]
    d_x, d_w_x, d_w_h, d_h, d_c = (torch.empty_like(t, dtype=values.dtype) for t in (x, w_x, w_h, h0, c0))
    d_w_r = values.new_empty(0) if w_r is None else torch.empty_like(w_r, dtype=values.dtype)
    return d_x if wants_x else values.new_empty(0), d_w_x, d_w_h, values.new_empty(values.size(1)), d_w_r, d_h, d_c


def _save_for_backward(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, w_x, w_h, bias, w_r, _, h0, c0, batch_sizes, drop_stream, *ctx.settings = inputs
    out, _, _, values, cells = output
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, w_x, w_h, w_r, h0, c0, out, values, cells, batch_sizes, drop_stream)
    ctx.mark_non_differentiable(values, cells)
    ctx.set_materialize_grads(False)


def _backward(ctx, d_out, d_h_last, d_c_last, _values, _cells):  # type: ignore[no-untyped-def]
    x, *others = ctx.saved_tensors
    w_r = others[2]
    gradients = layer_backward if torch.compiler.is_compiling() else _Gradients.apply
    wants_x = ctx.needs_input_grad[0]
    grads = gradients(d_out, d_h_last, d_c_last, x, *others, *ctx.settings, wants_x)
    d_x, d_w_x, d_w_h, d_bias, d_w_r, d_h, d_c = (g.to(x.dtype) for g in grads)
    constants = (None,) * (2 + len(ctx.settings))
    d_bias, d_w_r = d_bias if ctx.has_bias else None, None if w_r is None else d_w_r
    return (d_x if wants_x else None, d_w_x, d_w_h, d_bias, d_w_r, None, d_h, d_c, *constants)


def _refuse_double_backward(ctx, *grads):  # type: ignore[no-untyped-def]
    raise G2Error(
        "the native LSTM kernel has no second derivative; for double backward build the layer with backend='reference'"
    )


layer_forward.register_autograd(_backward, setup_context=_save_for_backward)
layer_backward.register_autograd(_refuse_double_backward)


class _Eager(torch.autograd.Function):
    """The operator without its dispatch, which takes a third of a millisecond: as long as a small layer's product."""

    @staticmethod
    def forward(ctx, *inputs):  # type: ignore[no-untyped-def]
        output = _forward(*inputs)
        _save_for_backward(ctx, inputs, output)
        return output

    backward = staticmethod(_backward)


class _Functional(torch.autograd.Function):
    """The same in the form that the transforms of `torch.func` ask for; binding its arguments takes longer."""

    forward = staticmethod(_forward)
    setup_context = staticmethod(_save_for_backward)
    backward = staticmethod(_backward)


class _Gradients(torch.autograd.Function):
    """The backward pass of both."""

    @staticmethod
    def forward(*inputs):  # type: ignore[no-untyped-def]
        return _gradients(*inputs)

    setup_context = staticmethod(lambda ctx, inputs, output: None)
    backward = staticmethod(_refuse_double_backward)
