"""Torch's fused LSTM with the noise as extra input columns: runs wherever `torch.nn.LSTM` does (cuDNN, oneDNN, MPS).

(alpha + noise) / tau with alpha = W_x x + W_h h + b is the pre-activation of a plain LSTM whose gate rows are divided
by tau, whose input is [x, noise], and whose input weights are [W_x | 1] on those rows. Autograd does the rest.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.nn.gate import GateRule
from g2lstm.nn.layer import Direction, LayerOutput, Weights


def run_layer(directions: Sequence[Direction]) -> LayerOutput:
    """See `g2lstm.nn.layer.Backend`."""
    x, _, c, _, rule, _, batch_sizes, _ = directions[0]
    weights = fold([one.weights.dropped() for one in directions], rule)
    noise = [one.noise for one in directions if one.noise is not None]
    if noise:
        columns = [_noise_columns(d, len(noise), c.size(-1), rule, x) for d in range(len(noise))]
        weights = [w._replace(w_x=torch.cat([w.w_x, k], dim=1)) for w, k in zip(weights, columns, strict=True)]
        x = torch.cat([x, *noise], dim=-1)
    h, c = torch.stack([one.h for one in directions]), torch.stack([one.c for one in directions])
    return fused(x, h, c, weights, batch_sizes)


def fold(weights: Sequence[Weights], rule: GateRule) -> Sequence[Weights]:
    """The weights with which a plain LSTM computes these gates."""
    if rule.hard:
        raise G2Error(
            "torch's fused LSTMs have no hard gates, so backend 'stock' cannot evaluate them; "
            "use backend='auto', or eval_gate='soft' or 'tempered'"
        )
    if rule.is_plain:
        return weights
    rows = rule.row_scale(weights[0].w_x.size(0) // 4, weights[0].w_x)
    return [w.scaled(rows) for w in weights]


def fused(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Weights], batch_sizes: Tensor | None, layers: int = 1
) -> LayerOutput:
    """Torch's fused LSTM, without dropout; `weights` lists the directions of each layer in turn."""
    if x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16) and torch.is_grad_enabled():
        # oneDNN's backward pass in low precision ends the process with an illegal instruction on some processors.
        weights = [w.map(Tensor.float) for w in weights]
        wide = fused(x.float(), h.float(), c.float(), weights, batch_sizes, layers)
        return LayerOutput(*(tensor.to(x.dtype) for tensor in wide))
    flat = [tensor for w in weights for tensor in w.flat()]
    has_bias, bidirectional = weights[0].b_x is not None, len(weights) == 2 * layers
    train = torch.is_grad_enabled()  # without dropout the output is the same; cuDNN needs it to run backward
    if batch_sizes is None:
        return LayerOutput(*torch.lstm(x, (h, c), flat, has_bias, layers, 0.0, train, bidirectional, False))
    return LayerOutput(*torch.lstm(x, batch_sizes, (h, c), flat, has_bias, layers, 0.0, train, bidirectional))


def _noise_columns(direction: int, directions: int, hidden: int, rule: GateRule, like: Tensor) -> Tensor:
    """Input weights that lead this direction's noise, and no other's, to its gates: (4H, D * 2H) or (4H, D * 3H)."""
    columns = torch.zeros(4, hidden, directions, rule.noisy_gates, hidden, dtype=like.dtype, device=like.device)
    unit = torch.eye(hidden, dtype=like.dtype, device=like.device) / rule.tau
    for position, gate in enumerate((0, 1, 3)[: rule.noisy_gates]):
        columns[gate, :, direction, position] = unit
    return columns.view(4 * hidden, -1)
