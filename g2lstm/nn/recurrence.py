"""The recurrence of one layer in one direction: by the compiled kernel, or in torch operations without it.

All tensors are contiguous, on the CPU, of one dtype; but if the kernel `has_bfloat16`, W_h and W_r may be bfloat16
while the others are float32. Its products then multiply rounded numbers, and add up in float32.

Step s has rows[s] sequences, from row offset[s] on. What is kept of a gate is its value; of a binary gate,
sigmoid(a / tau) with the sign of a, which gives both value and gradient; or 2 + sigmoid(a) if it stays soft.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from g2lstm.nn import kernel
from g2lstm.nn.gate import GRU, LSTM, GateRule, hard_gate, sampled_gate

_PLAIN = GateRule()
_SOFT = 1.5  # what is kept of a binary gate that stays soft is above this


def lstm_forward(
    gates: Tensor,
    noise: Tensor | None,
    w_h: Tensor,
    w_r: Tensor | None,
    h0: Tensor,
    c0: Tensor,
    rows: Tensor,
    offset: Tensor,
    rule: GateRule,
) -> tuple[Tensor, Tensor]:
    """Turns `gates` (N, 4H) from W_x x + b into what is kept of them; returns h (N, R) and c (N, H) of all steps."""
    out, cells = gates.new_empty(len(gates), h0.size(1)), gates.new_empty(len(gates), c0.size(1))
    if kernel.find().library is not None:
        tensors = {"gates": gates, "noise": noise, "w_h": w_h, "w_r": w_r, "h": h0, "c": c0, "out": out, "cells": cells}
        _call("g2lstm_forward", tensors, rows, offset, rule)
        return out, cells
    kernel.warn_that_it_is_slow()
    w_h_columns = w_h.t().contiguous()  # three times faster at small batches than the transposed view
    h, c = h0.clone(), c0.clone()
    for n, at in zip(rows.tolist(), offset.tolist(), strict=True):
        here = slice(at, at + n)
        i, f, g, o = gates[here].addmm_(h[:n], w_h_columns).chunk(4, dim=1)
        noises = [None] * 3 if noise is None else [*noise[here].split(c0.size(1), 1), None]
        i, f, o = opened(i, noises[0], rule), opened(f, noises[1], rule), opened(o, noises[2], _output(rule))
        g = torch.tanh(g)
        c[:n] = torch.addcmul(value(i, rule) * g, value(f, rule), c[:n])
        m = value(o, _output(rule)) * torch.tanh(c[:n])
        h[:n] = m if w_r is None else m @ w_r.t()
        gates[here] = torch.cat([i, f, g, o], dim=1)
        out[here], cells[here] = h[:n], c[:n]
    return out, cells


def lstm_backward(
    d_out: Tensor,
    d_h: Tensor,
    d_c: Tensor,
    gates: Tensor,
    cells: Tensor,
    c0: Tensor,
    w_h: Tensor,
    w_r: Tensor | None,
    rows: Tensor,
    offset: Tensor,
    rule: GateRule,
) -> Tensor:
    """Returns the gradient of the pre-activations, (N, 4H).

    Changes d_h (B, R) and d_c (B, H) from the gradients of the last states to those of the first and, where there is a
    projection, d_out (N, R) from the gradient of the output to that of h.
    """
    d_gates = torch.empty_like(gates)
    if kernel.find().library is not None:
        tensors = {"gates": gates, "cells": cells, "c": c0, "w_h": w_h, "w_r": w_r}
        tensors |= {"out": d_out, "d_gates": d_gates, "h": d_h, "d_c": d_c}
        _call("g2lstm_backward", tensors, rows, offset, rule)
        return d_gates
    for here, before, n in _steps_back(rows, offset):
        i, f, g, o = gates[here].chunk(4, dim=1)
        c_before = torch.cat([cells[before], c0[len(cells[before]) : n]])
        d_h[:n] += d_out[here]
        if w_r is not None:
            d_out[here] = d_h[:n]
        d_m = d_h[:n] if w_r is None else d_h[:n] @ w_r
        tanh_c = torch.tanh(cells[here])
        d_cell = d_c[:n] + d_m * value(o, _output(rule)) * (1 - tanh_c * tanh_c)
        d_i, d_f = _through(d_cell * g, i, rule), _through(d_cell * c_before, f, rule)
        d_g, d_o = d_cell * value(i, rule) * (1 - g * g), _through(d_m * tanh_c, o, _output(rule))
        d_gates[here] = torch.cat([d_i, d_f, d_g, d_o], dim=1)
        d_c[:n] = d_cell * value(f, rule)
        d_h[:n] = d_gates[here] @ w_h
    return d_gates


def gru_forward(
    gates: Tensor,
    noise: Tensor | None,
    w_h: Tensor,
    b_n: Tensor | None,
    h0: Tensor,
    rows: Tensor,
    offset: Tensor,
    rule: GateRule,
) -> tuple[Tensor, Tensor]:
    """Turns `gates` (N, 3H) from W_x x + b into what is kept of them; returns h and W_hn h + b_hn of all steps."""
    out, inner = gates.new_empty(len(gates), h0.size(1)), gates.new_empty(len(gates), h0.size(1))
    if kernel.find().library is not None:
        tensors = {"gates": gates, "noise": noise, "w_h": w_h, "b_n": b_n, "h": h0, "out": out, "inner": inner}
        _call("g2lstm_gru_forward", tensors, rows, offset, rule)
        return out, inner
    kernel.warn_that_it_is_slow()
    w_h_columns, h = w_h.t().contiguous(), h0.clone()
    for n, at in zip(rows.tolist(), offset.tolist(), strict=True):
        here = slice(at, at + n)
        x_r, x_z, x_n = gates[here].chunk(3, dim=1)
        h_r, h_z, a = (h[:n] @ w_h_columns).chunk(3, dim=1)
        n_r, n_z = (None, None) if noise is None else noise[here].chunk(2, dim=1)
        r, z = opened(x_r + h_r, n_r, rule), opened(x_z + h_z, n_z, rule)
        a = a if b_n is None else a + b_n
        candidate = torch.tanh(x_n + value(r, rule) * a)
        h[:n] = candidate + value(z, rule) * (h[:n] - candidate)
        gates[here] = torch.cat([r, z, candidate], dim=1)
        out[here], inner[here] = h[:n], a
    return out, inner


def gru_backward(
    d_out: Tensor,
    d_h: Tensor,
    gates: Tensor,
    inner: Tensor,
    out: Tensor,
    h0: Tensor,
    w_h: Tensor,
    rows: Tensor,
    offset: Tensor,
    rule: GateRule,
) -> Tensor:
    """Returns the gradients of r, z, W_hn h + b_hn and n before their functions, (N, 4H); changes d_h as above."""
    d_gates = gates.new_empty(len(gates), 4 * h0.size(1))
    if kernel.find().library is not None:
        tensors = {"gates": gates, "inner": inner, "out": out, "w_h": w_h, "h": h0}
        tensors |= {"d_out": d_out, "d_gates": d_gates, "d_h": d_h}
        _call("g2lstm_gru_backward", tensors, rows, offset, rule)
        return d_gates
    for here, before, n in _steps_back(rows, offset):
        r, z, candidate = gates[here].chunk(3, dim=1)
        h_before = torch.cat([out[before], h0[len(out[before]) : n]])
        d_h[:n] += d_out[here]
        d_n = d_h[:n] * (1 - value(z, rule)) * (1 - candidate * candidate)
        d_r = _through(d_n * inner[here], r, rule)
        d_z = _through(d_h[:n] * (h_before - candidate), z, rule)
        d_gates[here] = torch.cat([d_r, d_z, d_n * value(r, rule), d_n], dim=1)
        d_h[:n] = d_h[:n] * value(z, rule) + d_gates[here, : len(w_h)] @ w_h
    return d_gates


def _steps_back(rows: Tensor, offset: Tensor) -> list[tuple[slice, slice, int]]:
    """For each step from the last on: its rows, those of the step before it, and how many it has.

    A direction that runs backwards meets sequences whose first step this is: before it they have only a first state.
    """
    sizes, starts = rows.tolist(), offset.tolist()
    before = [
        slice(0, 0),
        *(slice(at, at + min(n, next_n)) for n, next_n, at in zip(sizes, sizes[1:], starts, strict=False)),
    ]
    steps = [(slice(at, at + n), old, n) for n, at, old in zip(sizes, starts, before, strict=True)]
    return steps[::-1]


def _output(rule: GateRule) -> GateRule:
    """The rule of an LSTM's output gate."""
    return rule if len(rule.sampled) == 3 else _PLAIN


def opened(alpha: Tensor, noise: Tensor | None, rule: GateRule) -> Tensor:
    """What is kept of a gate."""
    if noise is not None:
        stays_soft = (noise == torch.inf) & rule.binary
        kept = opened(alpha + noise.masked_fill(stays_soft, 0.0), None, rule)
        return torch.where(stays_soft, 2 + torch.sigmoid(alpha), kept)
    if rule.hard:
        return hard_gate(alpha)
    soft = sampled_gate(alpha, rule.tau)
    return torch.where(alpha >= 0, soft, -soft) if rule.binary else soft


def value(kept: Tensor, rule: GateRule) -> Tensor:
    """The gate of which this was kept."""
    if not rule.binary:
        return kept
    return torch.where(kept > _SOFT, kept - 2, torch.where(kept.isnan(), kept, (kept > 0).to(kept.dtype)))


def _through(gradient: Tensor, kept: Tensor, rule: GateRule) -> Tensor:
    """The gradient of a gate's pre-activation, from that of its value."""
    if rule.hard:
        return torch.zeros_like(gradient)
    stays_soft = (kept > _SOFT) & rule.binary
    soft = torch.where(stays_soft, kept - 2, kept.abs())
    slope = soft * (1 - soft)
    return gradient * torch.where(stays_soft, slope, slope * (1 / rule.tau))


def _call(function: str, tensors: Mapping[str, Tensor | None], rows: Tensor, offset: Tensor, rule: GateRule) -> None:
    """Calls the kernel on tensors in the order of its arguments.

    It reads and writes memory by their shapes, so these are checked once more, whoever calls.
    """
    gates, h, w_h, w_r = tensors["gates"], tensors["h"], tensors["w_h"], tensors.get("w_r")
    assert gates is not None
    assert h is not None
    assert w_h is not None
    kind = GRU if "gru" in function else LSTM
    if rule.kind is not kind:
        raise ValueError(f"the kernel of {kind.name}s has the gates {' or '.join(kind.sampled)}, got {rule.gates!r}")
    n, count = len(gates), len(kind.gates)
    (batch, width), hidden = h.shape, gates.size(1) // count
    shapes = {
        "gates": (n, count * hidden), "d_gates": (n, 4 * hidden), "noise": (n, len(rule.sampled) * hidden),
        "w_h": (count * hidden, width), "w_r": (width, hidden), "h": (batch, width), "c": (batch, hidden),
        "d_h": (batch, width), "d_c": (batch, hidden), "out": (n, width), "d_out": (n, width), "cells": (n, hidden),
        "inner": (n, hidden), "b_n": (hidden,),
    }  # fmt: skip
    is_half = w_h.dtype == torch.bfloat16 and kernel.find().has_bfloat16
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        dtype = gates.dtype if not is_half else torch.bfloat16 if name in ("w_h", "w_r") else torch.float32
        is_right = tuple(tensor.shape) == shapes[name] and tensor.dtype == dtype and tensor.is_contiguous()
        if not is_right or tensor.device.type != "cpu":
            raise ValueError(
                f"the kernel needs a contiguous {dtype} tensor of shape {shapes[name]} on the CPU, "
                f"got {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
            )
    if width != hidden and w_r is None:
        raise ValueError(f"the kernel needs as many units as outputs, or a projection, got {hidden} and {width}")
    for steps in (rows, offset):
        is_right = steps.dtype == torch.int64 and steps.is_contiguous() and steps.shape == (len(rows),)
        if not is_right or steps.device.type != "cpu":
            raise ValueError(
                f"the kernel needs contiguous int64 steps on the CPU, got {steps.dtype} {tuple(steps.shape)} on "
                f"{steps.device}"
            )
    if int(rows.sum()) != n:
        raise ValueError(f"the steps have {int(rows.sum())} rows in all, but the tensors have {n}")
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors.values()]
    layer = (len(rows), batch, hidden, 0 if w_r is None else width, rows.data_ptr(), offset.data_ptr())
    options = (rule.tau, len(rule.sampled), *addresses, 1 if rule.hard else 2 if rule.binary else 0)
    kernel.call(function, w_h.dtype, *layer, *options, torch.get_num_threads())
