"""The equations as a plain loop over time: slow, obviously right, the oracle for every other backend."""

import torch
from torch import Tensor

from g2lstm.nn.gate import GRU, GateRule
from g2lstm.nn.layer import Direction, LayerOutput, States, Weights, in_each_direction, product


def _step(x: Tensor, states: States, weights: Weights, rule: GateRule, noise: Tensor | None) -> States:
    """The states after one step."""
    if rule.kind is GRU:
        (h,) = states
        _, z, n = weights.gates(x, h, rule, noise)
        return ((1 - z) * n + z * h,)
    h, c = states
    i, f, g, o = weights.gates(x, h, rule, noise)
    c = f * c + i * g
    h = o * torch.tanh(c)
    return h if weights.w_r is None else product(h, weights.w_r), c


def _run(direction: Direction) -> LayerOutput:
    x, states, weights, rule, noise, batch_sizes, backwards = direction
    weights = weights.dropped()
    steps = x.unbind(0) if batch_sizes is None else x.split(batch_sizes.tolist())
    noises: tuple[Tensor | None, ...] = (None,) * len(steps)
    if noise is not None:
        noises = noise.unbind(0) if batch_sizes is None else noise.split(batch_sizes.tolist())
    outputs: list[Tensor] = list(steps)
    for t in reversed(range(len(steps))) if backwards else range(len(steps)):
        n = steps[t].size(0)  # sequences that reach this step; they come first in the batch (`len` would fix exports)
        is_whole = n == states[0].size(0)
        now = _step(steps[t], states if is_whole else tuple(s[:n] for s in states), weights, rule, noises[t])
        outputs[t] = now[0]
        states = now if is_whole else tuple(torch.cat([new, s[n:]]) for new, s in zip(now, states, strict=True))
    return LayerOutput(torch.stack(outputs) if batch_sizes is None else torch.cat(outputs), states)


run_layer = in_each_direction(_run)
