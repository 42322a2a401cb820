"""The fast layer for CPU training: one product for the inputs of all steps, then the recurrence.

With bfloat16 inputs, products multiply bfloat16 and add up in float32 where the processor has instructions for it; all
else, on any processor, is computed in float32.

Its forward and backward pass are registered as torch operators, so that `torch.compile` and `torch.export` know them;
outside of these they are called directly, which saves the dispatch.
"""

import math
from functools import partial

import torch
from torch import Tensor, nn

from g2lstm.errors import G2Error
from g2lstm.nn import kernel, recurrence
from g2lstm.nn.gate import GRU, GateRule
from g2lstm.nn.layer import Direction, LayerOutput, in_each_direction, previous_rows, step_rows
from g2lstm.nn.random import drop


def _run(direction: Direction) -> LayerOutput:
    x, (h, *c), weights, rule, noise, batch_sizes, backwards = direction
    is_plain = type(x) in (Tensor, nn.Parameter)  # a fake tensor or another subclass needs the dispatcher
    run = _Layer.apply if is_plain and not torch.compiler.is_compiling() else _layer_forward
    bias, extra = weights.bias(), weights.w_r
    if rule.kind is GRU and weights.b_x is not None and weights.b_h is not None:  # r multiplies the bias of W_hn h
        start = 2 * h.size(1)
        bias, extra = torch.cat([weights.b_x[:start] + weights.b_h[:start], weights.b_x[start:]]), weights.b_h[start:]
    tensors = (x, weights.w_x, weights.w_h, bias, extra, noise, h, c[0] if c else None, batch_sizes, weights.choice)
    out, *states, _, _ = run(*tensors, backwards, rule.tau, rule.gates, rule.hard, rule.binary)
    return LayerOutput(out.to(x.dtype), tuple(state.to(x.dtype) for state in states[: 1 + len(c)]))


run_layer = in_each_direction(_run)


def _working_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def _factor_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of what products multiply."""
    return dtype if dtype == torch.bfloat16 and kernel.find().has_bfloat16 else _working_dtype(dtype)


def _as_rows(tensor: Tensor) -> Tensor:
    """(T, B, features) as (N, features)."""
    return tensor.flatten(0, 1) if tensor.dim() == 3 else tensor


def _factors(
    inputs: Tensor, w_x: Tensor, w_h: Tensor, extra: Tensor | None, c0: Tensor | None, choice: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """What products multiply, in the type and layout they need; `extra` of a GRU is a bias."""
    working, factor = _working_dtype(inputs.dtype), _factor_dtype(inputs.dtype)
    if choice is not None:
        w_h = drop(w_h.to(working), choice)
    inputs, w_x, w_h = (t.to(factor).contiguous() for t in (inputs, w_x, w_h))
    return inputs, w_x, w_h, None if extra is None else extra.to(working if c0 is None else factor).contiguous()


def _forward(
    x: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    bias: Tensor | None,
    extra: Tensor | None,
    noise: Tensor | None,
    h0: Tensor,
    c0: Tensor | None,
    batch_sizes: Tensor | None,
    choice: Tensor | None,
    backwards: bool,
    tau: float,
    gates: str,
    hard: bool,
    binary: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One layer in one direction: the output, the last h and c (empty for a GRU), and what the backward pass needs.

    That is, of all steps, the gates (N, GH), and (N, H) the cells of an LSTM or W_hn h + b_hn of a GRU. `extra` is the
    projection (R, H) of an LSTM, or the bias b_hn (H,) of a GRU.
    """
    working, batch, rule = _working_dtype(x.dtype), len(h0), GateRule(tau, gates, hard, binary)
    rows, offset = step_rows(batch, len(x if batch_sizes is None else batch_sizes), batch_sizes, backwards)
    inputs, w_x, w_h, extra = _factors(_as_rows(x), w_x, w_h, extra, c0, choice)
    h0 = h0.to(working).contiguous()
    bias, noise, c0 = (None if t is None else t.to(working).contiguous() for t in (bias, noise, c0))
    if inputs.dtype == working:
        values = inputs @ w_x.t() if bias is None else torch.addmm(bias, inputs, w_x.t())
    else:
        values = (inputs @ w_x.t()).to(working)
        values = values if bias is None else values.add_(bias)
    noise = None if noise is None else _as_rows(noise)
    if c0 is None:
        out, kept = recurrence.gru_forward(values, noise, w_h, extra, h0, rows, offset, rule)
    else:
        out, kept = recurrence.lstm_forward(values, noise, w_h, extra, h0, c0, rows, offset, rule)
    if batch_sizes is None:
        last = slice(0, batch) if backwards else slice(len(out) - batch, None)
        h_last, c_last = out[last].clone(), values.new_empty(0) if c0 is None else kept[last].clone()
    else:
        _, last_rows = previous_rows(rows, offset, batch)
        h_last, c_last = out[last_rows], values.new_empty(0) if c0 is None else kept[last_rows]
    return out.view(*x.shape[:-1], out.size(1)), h_last, c_last, values, kept


_layer_forward = torch.library.custom_op("g2lstm::layer_forward", _forward, mutates_args=(), device_types="cpu")


@_layer_forward.register_fake
def _(x, w_x, w_h, bias, extra, noise, h0, c0, *settings):  # type: ignore[no-untyped-def]
    working = _working_dtype(x.dtype)
    n, hidden = math.prod(x.shape[:-1]), (h0 if c0 is None else c0).size(1)
    out = x.new_empty(*x.shape[:-1], h0.size(1), dtype=working)
    values, kept = (x.new_empty(n, width, dtype=working) for width in (w_x.size(0), hidden))
    c_last = values.new_empty(0) if c0 is None else torch.empty_like(c0, dtype=working)
    return out, torch.empty_like(h0, dtype=working), c_last, values, kept


def _product(a: Tensor, b: Tensor) -> Tensor:
    """The product a b. On AMD, MKL takes less time for float32 if the rows that it writes begin at whole vectors."""
    columns = b.size(1)
    if a.dtype != torch.float32 or columns % 8 == 0:
        return a @ b
    padded = a.new_empty(a.size(0), columns + -columns % 16)
    return torch.mm(a, b, out=padded[:, :columns]).contiguous()


@torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]  # callers may run backward under theirs
def _gradients(
    d_out: Tensor | None,
    d_h_last: Tensor | None,
    d_c_last: Tensor | None,
    x: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    extra: Tensor | None,
    h0: Tensor,
    c0: Tensor | None,
    out: Tensor,
    values: Tensor,
    kept: Tensor,
    batch_sizes: Tensor | None,
    choice: Tensor | None,
    backwards: bool,
    tau: float,
    gates: str,
    hard: bool,
    binary: bool,
    wants_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, W_x, W_h, bias, extra, h0, c0 (empty where not wanted or not there)."""
    working, batch, rule = values.dtype, len(h0), GateRule(tau, gates, hard, binary)
    rows, offset = step_rows(batch, len(x if batch_sizes is None else batch_sizes), batch_sizes, backwards)
    # With DropConnect applied to W_h once more: 20 MB of weights need not be kept for it.
    inputs, w_x, w_h, extra = _factors(_as_rows(x), w_x, w_h, extra, c0, choice)
    h0, c0 = h0.to(working).contiguous(), None if c0 is None else c0.to(working).contiguous()
    out = _as_rows(out)
    d_h, d_c = (
        torch.zeros_like(like) if grad is None else grad.to(working, memory_format=torch.contiguous_format, copy=True)
        for grad, like in ((d_h_last, h0), (d_c_last, values.new_empty(0) if c0 is None else c0))
    )
    w_r = None if c0 is None else extra
    if d_out is None:
        d_out = torch.zeros_like(out)
    elif w_r is None:
        d_out = _as_rows(d_out).contiguous()
    else:  # the recurrence turns it into the gradient of h
        d_out = _as_rows(d_out).clone(memory_format=torch.contiguous_format)
    # The gradients of all gates; those that reach W_h are the first rows, those that reach W_x may skip some.
    if c0 is None:
        d_gates = recurrence.gru_backward(d_out, d_h, values, kept, out, h0, w_h, rows, offset, rule)
    else:
        d_gates = recurrence.lstm_backward(d_out, d_h, d_c, values, kept, c0, w_h, w_r, rows, offset, rule)
    d_bias, d_x, d_extra = d_gates.sum(0), values.new_empty(0), values.new_empty(0)
    d_gates, out, h0 = (t.to(inputs.dtype) for t in (d_gates, out, h0))
    d_from_h = d_gates[:, : len(w_h)]
    del w_h  # with DropConnect a copy, whose place the gradients take

    if batch_sizes is None:  # h before each step: the outputs moved by one step, with no copy of them
        rest, first = (slice(0, -batch), slice(-batch, None)) if backwards else (slice(batch, None), slice(0, batch))
        moved = slice(batch, None) if backwards else slice(0, len(out) - batch)
        d_w_h = _product(d_from_h[rest].t(), out[moved]).addmm_(d_from_h[first].t(), h0)
    else:
        before, _ = previous_rows(rows, offset, batch)
        d_w_h = _product(d_from_h.t(), torch.cat([h0, out])[before])
    if choice is not None:
        d_w_h = drop(d_w_h.to(working), choice)
    if c0 is not None:
        if wants_x:
            d_x = _product(d_gates, w_x).view_as(x)
        if w_r is not None:
            d_extra = d_out.to(w_r.dtype).t() @ (_output(values, rule, c0.size(1)) * torch.tanh(kept)).to(w_r.dtype)
        return d_x, _product(d_gates.t(), inputs), d_w_h, d_bias, d_extra, d_h, d_c
    hidden, gated = h0.size(1), 2 * h0.size(1)  # columns: r, z, then W_hn h + b_hn, which has no part of W_x, then n
    d_w_x = torch.empty_like(w_x)
    torch.mm(d_gates[:, :gated].t(), inputs, out=d_w_x[:gated])
    torch.mm(d_gates[:, -hidden:].t(), inputs, out=d_w_x[gated:])
    if wants_x:
        d_x = (d_gates[:, :gated] @ w_x[:gated]).addmm_(d_gates[:, -hidden:], w_x[gated:]).view_as(x)
    if extra is not None:
        d_extra = d_bias[gated:-hidden].clone()
    return d_x, d_w_x, d_w_h, torch.cat([d_bias[:gated], d_bias[-hidden:]]), d_extra, d_h, d_c


def _output(values: Tensor, rule: GateRule, hidden: int) -> Tensor:
    """The output gate of an LSTM at all steps, from what is kept of it."""
    kept = values[:, -hidden:]
    return recurrence.value(kept, rule) if len(rule.sampled) == 3 else kept


_layer_backward = torch.library.custom_op("g2lstm::layer_backward", _gradients, mutates_args=(), device_types="cpu")


@_layer_backward.register_fake
def _(d_out, d_h_last, d_c_last, x, w_x, w_h, extra, h0, c0, out, values, *settings):  # type: ignore[no-untyped-def]
    choice, wants_x, factor = settings[2], settings[-1], _factor_dtype(x.dtype)
    d_x, d_w_x, d_w_h = (torch.empty_like(t, dtype=factor) for t in (x, w_x, w_h))
    d_x, d_w_h = d_x if wants_x else values.new_empty(0), d_w_h if choice is None else d_w_h.to(values.dtype)
    d_h, d_c, d_extra = (
        values.new_empty(0) if t is None else torch.empty_like(t, dtype=values.dtype) for t in (h0, c0, extra)
    )
    d_extra = d_extra if extra is None or c0 is None else d_extra.to(factor)
    return d_x, d_w_x, d_w_h, values.new_empty(values.size(1)), d_extra, d_h, d_c


def _save_for_backward(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, w_x, w_h, bias, extra, _, h0, c0, batch_sizes, choice, *ctx.settings = inputs
    out, _, _, values, kept = output
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, w_x, w_h, extra, h0, c0, out, values, kept, batch_sizes, choice)
    ctx.mark_non_differentiable(values, kept)
    ctx.set_materialize_grads(False)


def _backward(gradients, ctx, d_out, d_h_last, d_c_last, _values, _kept):  # type: ignore[no-untyped-def]
    x, *others = ctx.saved_tensors
    _, _, extra, _, c0, *_ = others
    wants_x = ctx.needs_input_grad[0]
    grads = gradients(d_out, d_h_last, None if c0 is None else d_c_last, x, *others, *ctx.settings, wants_x)
    d_x, d_w_x, d_w_h, d_bias, d_extra, d_h, d_c = (g.to(x.dtype) for g in grads)
    constants = (None,) * (2 + len(ctx.settings))
    d_bias, d_extra = d_bias if ctx.has_bias else None, None if extra is None else d_extra
    d_x, d_c = d_x if wants_x else None, None if c0 is None else d_c
    return (d_x, d_w_x, d_w_h, d_bias, d_extra, None, d_h, d_c, *constants)


def _refuse_double_backward(ctx, *grads):  # type: ignore[no-untyped-def]
    raise G2Error(
        "the native kernel has no second derivative; for double backward build the layer with backend='reference'"
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
