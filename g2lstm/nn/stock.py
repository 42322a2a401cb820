"""Torch's fused layers with the noise as extra input columns: run wherever torch's own do (cuDNN, oneDNN, MPS).

(alpha + noise) / tau with alpha = W_x x + W_h h + b is the pre-activation of a plain LSTM or GRU whose gate rows are
divided by tau, whose input is [x, noise], and whose input weights are [W_x | 1] on those rows. Autograd does the rest.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.nn.gate import GRU, GateRule
from g2lstm.nn.layer import Direction, LayerOutput, States, Weights, stacked


def run_layer(directions: Sequence[Direction]) -> LayerOutput:
    """See `g2lstm.nn.layer.Backend`."""
    x, states, _, rule, _, batch_sizes, _ = directions[0]
    weights = fold([one.weights.dropped() for one in directions], rule)
    noise = [one.noise for one in directions if one.noise is not None]
    if noise:
        columns = [_noise_columns(d, len(noise), states[-1].size(-1), rule, x) for d in range(len(noise))]
        weights = [w._replace(w_x=torch.cat([w.w_x, k], dim=1)) for w, k in zip(weights, columns, strict=True)]
        x = torch.cat([x, *noise], dim=-1)
    return fused(x, stacked([one.states for one in directions]), weights, rule, batch_sizes)


def fold(weights: Sequence[Weights], rule: GateRule) -> Sequence[Weights]:
    """The weights with which a plain layer computes these gates."""
    if rule.hard:
        raise G2Error(
            f"torch's fused {rule.kind.name}s have no hard gates, so backend 'stock' cannot evaluate them; "
            "use backend='auto', or eval_gate='soft' or 'tempered'"
        )
    if rule.binary:
        raise G2Error(
            f"torch's fused {rule.kind.name}s have no binary gates, so backend 'stock' cannot train them; "
            "use backend='auto', or method='gumbel'"
        )
    if rule.is_plain:
        return weights
    rows = rule.row_scale(weights[0].w_x.size(0) // len(rule.kind.gates), weights[0].w_x)
    return [w.scaled(rows) for w in weights]


def fused(
    x: Tensor, states: States, weights: Sequence[Weights], rule: GateRule, batch_sizes: Tensor | None, layers: int = 1
) -> LayerOutput:
    """Torch's fused layer, without dropout; `weights`, folded, lists the directions of each layer in turn."""
    if x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16) and torch.is_grad_enabled():
        # oneDNN's backward pass in low precision ends the process with an illegal instruction on some processors.
        weights, wide = [w.map(Tensor.float) for w in weights], tuple(state.float() for state in states)
        out, states = fused(x.float(), wide, weights, rule, batch_sizes, layers)
        return LayerOutput(out.to(x.dtype), tuple(state.to(x.dtype) for state in states))
    flat = [tensor for w in weights for tensor in w.flat()]
    has_bias, bidirectional = weights[0].b_x is not None, len(weights) == 2 * layers
    train = torch.is_grad_enabled()  # without dropout the output is the same; cuDNN needs it to run backward
    function: Any
    function, hx = (torch.gru, states[0]) if rule.kind is GRU else (torch.lstm, states)
    if batch_sizes is None:
        out, *states_after = function(x, hx, flat, has_bias, layers, 0.0, train, bidirectional, False)
    else:
        out, *states_after = function(x, batch_sizes, hx, flat, has_bias, layers, 0.0, train, bidirectional)
    return LayerOutput(out, tuple(states_after))


def _noise_columns(direction: int, directions: int, hidden: int, rule: GateRule, like: Tensor) -> Tensor:
    """Input weights that lead this direction's noise, and no other's, to its gates: (GH, D * 2H) or (4H, D * 3H)."""
    shape = (len(rule.kind.gates), hidden, directions, len(rule.sampled), hidden)
    columns = torch.zeros(shape, dtype=like.dtype, device=like.device)
    unit = torch.eye(hidden, dtype=like.dtype, device=like.device) / rule.tau
    for position, gate in enumerate(rule.sampled):
        columns[gate, :, direction, position] = unit
    return columns.view(shape[0] * hidden, -1)
