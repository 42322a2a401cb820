"""The recurrence of one LSTM layer in one direction: by the compiled kernel, or in torch operations without it."""

import torch
from torch import Tensor

from g2lstm.nn import kernel
from g2lstm.nn.gate import GateRule


def forward(
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
    """Turns `gates` (N, 4H) from W_x x + b into the gate values; returns h (N, R) and c (N, H) of all steps.

    All tensors are contiguous, on the CPU, of one dtype. Step s has rows[s] sequences, from row offset[s] on.
    """
    out, cells = gates.new_empty(len(gates), h0.size(1)), gates.new_empty(len(gates), c0.size(1))
    if kernel.find().library is not None:
        tensors = {"gates": gates, "noise": noise, "w_h": w_h, "w_r": w_r, "h": h0, "c": c0, "out": out, "cells": cells}
        _call("g2lstm_forward", tensors, rows, offset, rule)
        return out, cells
    w_h_columns = w_h.t().contiguous()  # three times faster at small batches than the transposed view
    h, c = h0.clone(), c0.clone()
    for n, at in zip(rows.tolist(), offset.tolist(), strict=True):
        here = slice(at, at + n)
        alpha = gates[here].addmm_(h[:n], w_h_columns)
        i, f, g, o = rule.lstm(alpha, None if noise is None else noise[here])
        c[:n] = torch.addcmul(i * g, f, c[:n])
        m = o * torch.tanh(c[:n])
        h[:n] = m if w_r is None else m @ w_r.t()
        gates[here] = torch.cat([i, f, g, o], dim=1)
        out[here], cells[here] = h[:n], c[:n]
    return out, cells


def backward(
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
    sharpness = 0.0 if rule.hard else 1 / rule.tau
    steps = list(zip(rows.tolist(), offset.tolist(), strict=True))
    for s in reversed(range(len(steps))):
        n, at = steps[s]
        here = slice(at, at + n)
        i, f, g, o = gates[here].chunk(4, dim=1)
        n_before, at_before = steps[s - 1] if s else (0, 0)
        # A direction that runs backwards meets sequences whose first step this is: their cell before it is c0.
        c_before = torch.cat([cells[at_before : at_before + min(n, n_before)], c0[min(n, n_before) : n]])
        d_h[:n] += d_out[here]
        if w_r is not None:
            d_out[here] = d_h[:n]
        d_m = d_h[:n] if w_r is None else d_h[:n] @ w_r
        tanh_c = torch.tanh(cells[here])
        d_cell = d_c[:n] + d_m * o * (1 - tanh_c * tanh_c)
        d_i = d_cell * g * i * (1 - i) * sharpness
        d_f = d_cell * c_before * f * (1 - f) * sharpness
        d_g = d_cell * i * (1 - g * g)
        d_o = d_m * tanh_c * o * (1 - o) * (sharpness if len(rule.sampled) == 3 else 1.0)
        d_gates[here] = torch.cat([d_i, d_f, d_g, d_o], dim=1)
        d_c[:n] = d_cell * f
        d_h[:n] = d_gates[here] @ w_h
    return d_gates


def _call(function: str, tensors: dict[str, Tensor | None], rows: Tensor, offset: Tensor, rule: GateRule) -> None:
    """Calls the kernel on tensors in the order of its arguments.

    It reads and writes memory by their shapes, so these are checked once more, whoever calls.
    """
    gates, c, w_r = tensors["gates"], tensors["c"], tensors["w_r"]
    assert gates is not None
    assert c is not None
    (batch, hidden), n = c.shape, len(gates)
    width = hidden if w_r is None else len(w_r)
    shapes = {
        "gates": (n, 4 * hidden), "d_gates": (n, 4 * hidden), "noise": (n, len(rule.sampled) * hidden),
        "w_h": (4 * hidden, width), "w_r": (width, hidden), "h": (batch, width), "c": (batch, hidden),
        "d_c": (batch, hidden), "out": (n, width), "cells": (n, hidden),
    }  # fmt: skip
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        is_right = tuple(tensor.shape) == shapes[name] and tensor.dtype == gates.dtype and tensor.is_contiguous()
        if not is_right or tensor.device.type != "cpu":
            raise ValueError(
                f"the LSTM kernel needs a contiguous {gates.dtype} tensor of shape {shapes[name]} on the CPU, "
                f"got {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
            )
    for steps in (rows, offset):
        if steps.dtype != torch.int64 or not steps.is_contiguous() or len(steps) != len(rows):
            raise ValueError(f"the LSTM kernel needs contiguous int64 steps, got {steps.dtype} {tuple(steps.shape)}")
    if int(rows.sum()) != n:
        raise ValueError(f"the steps have {int(rows.sum())} rows in all, but the tensors have {n}")
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors.values()]
    layer = (len(rows), batch, hidden, 0 if w_r is None else width, rows.data_ptr(), offset.data_ptr())
    options = (rule.tau, len(rule.sampled), *addresses, rule.hard, torch.get_num_threads())
    kernel.call(function, gates.dtype, *layer, *options)
