"""The recurrence in torch operations, for machines without the compiled kernel: same contract as `kernel.py`."""

import torch
from torch import Tensor

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
    """See `g2lstm.nn.kernel.forward`."""
    hidden = c0.size(1)
    out, cells = gates.new_empty(len(gates), h0.size(1)), gates.new_empty(len(gates), hidden)
    w_h_columns = w_h.t().contiguous()  # three times faster at small batches than the transposed view
    h, c = h0.clone(), c0.clone()
    for n, at in zip(rows.tolist(), offset.tolist(), strict=True):
        here = slice(at, at + n)
        alpha = gates[here].addmm_(h[:n], w_h_columns)
        values = rule(alpha, None if noise is None else noise[here])
        c[:n] = torch.addcmul(values.i * values.g, values.f, c[:n])
        m = values.o * torch.tanh(c[:n])
        h[:n] = m if w_r is None else m @ w_r.t()
        gates[here] = torch.cat(values, dim=1)
        out[here], cells[here] = h[:n], c[:n]
    return out, cells


def backward(
    gates: Tensor,
    cells: Tensor,
    w_h: Tensor,
    w_r: Tensor | None,
    c0: Tensor,
    d_out: Tensor,
    d_h: Tensor,
    d_c: Tensor,
    rows: Tensor,
    offset: Tensor,
    rule: GateRule,
) -> Tensor:
    """See `g2lstm.nn.kernel.backward`."""
    d_gates = torch.empty_like(gates)
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
        d_o = d_m * tanh_c * o * (1 - o) * (sharpness if rule.noisy_gates == 3 else 1.0)
        d_gates[here] = torch.cat([d_i, d_f, d_g, d_o], dim=1)
        d_c[:n] = d_cell * f
        d_h[:n] = d_gates[here] @ w_h
    return d_gates
