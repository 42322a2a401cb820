"""The paper's equations as a plain loop over time: slow, obviously right, the oracle for every other backend."""

import torch
from torch import Tensor

from g2lstm.nn.layer import Direction, LayerOutput, in_each_direction, product


def _run(direction: Direction) -> LayerOutput:
    x, h, c, weights, rule, noise, batch_sizes, backwards = direction
    weights = weights.dropped()
    steps = x.unbind(0) if batch_sizes is None else x.split(batch_sizes.tolist())
    noises: tuple[Tensor | None, ...] = (None,) * len(steps)
    if noise is not None:
        noises = noise.unbind(0) if batch_sizes is None else noise.split(batch_sizes.tolist())
    outputs: list[Tensor] = [h] * len(steps)
    for t in reversed(range(len(steps))) if backwards else range(len(steps)):
        n = len(steps[t])  # sequences that reach this step; they come first in the batch
        i, f, g, o = rule(weights.from_x(steps[t]) + weights.from_h(h[:n]), noises[t])
        c_now = f * c[:n] + i * g
        h_now = o * torch.tanh(c_now)
        if weights.w_r is not None:
            h_now = product(h_now, weights.w_r)
        outputs[t] = h_now
        h, c = torch.cat([h_now, h[n:]]), torch.cat([c_now, c[n:]])
    out = torch.stack(outputs) if batch_sizes is None else torch.cat(outputs)
    return LayerOutput(out, h, c)


run_layer = in_each_direction(_run)
