"""What every backend takes and returns: the weights of one layer, its input and states, and how its rows make steps.

G is the number of gates: 4 in an LSTM, 3 in a GRU. The states are h and c in an LSTM, h alone in a GRU.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from g2lstm.nn.gate import GRU, GateRule, GateValues
from g2lstm.nn.random import drop

States = tuple[Tensor, ...]


class Weights(NamedTuple):
    """The weights of one layer in one direction. R is the width of h: the projection's if there is one, else H."""

    w_x: Tensor  # (GH, I)
    w_h: Tensor  # (GH, R)
    b_x: Tensor | None  # (GH,)
    b_h: Tensor | None  # (GH,)
    w_r: Tensor | None  # (R, H), the projection h = W_r (o tanh c)
    choice: Tensor | None = None  # of weights that DropConnect has yet to drop from W_h, see `draw_drop`

    # Methods, not properties: the compilers of older torch versions cannot trace those of a tuple.
    def dropped(self) -> "Weights":
        """With DropConnect applied to W_h."""
        return self if self.choice is None else self._replace(w_h=drop(self.w_h, self.choice), choice=None)

    def bias(self) -> Tensor | None:
        """The sum of the two biases; torch keeps two for cuDNN's sake, and for the GRU, whose n has them apart."""
        return None if self.b_x is None or self.b_h is None else self.b_x + self.b_h

    def gates(self, x: Tensor, h: Tensor, rule: GateRule, noise: Tensor | None) -> GateValues:
        """The gates at one or many steps, of x (..., I) and the output before, h (..., R)."""
        w_h = self.dropped().w_h
        if rule.kind is GRU:
            return rule.gru(product(x, self.w_x, self.b_x), product(h, w_h, self.b_h), noise)
        return rule.lstm(product(x, self.w_x, self.bias()) + product(h, w_h), noise)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Weights":
        """With `function` applied to each tensor."""
        b_x, b_h, w_r = (None if t is None else function(t) for t in (self.b_x, self.b_h, self.w_r))
        return Weights(function(self.w_x), function(self.w_h), b_x, b_h, w_r, self.choice)

    def scaled(self, rows: Tensor) -> "Weights":
        """With the rows of all gates multiplied by `rows`, (GH,)."""
        column = rows.unsqueeze(1)
        b_x, b_h = (None if b is None else b * rows for b in (self.b_x, self.b_h))
        return Weights(self.w_x * column, self.w_h * column, b_x, b_h, self.w_r, self.choice)

    def flat(self) -> list[Tensor]:
        """In the order of torch's fused layers."""
        tensors = (self.w_x, self.w_h, self.b_x, self.b_h, self.w_r)
        return [tensor for tensor in tensors if tensor is not None]


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear`, but low precision on the CPU goes through float32: oneDNN crashes there on some processors."""
    if x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16):
        return linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)
    return linear(x, weight, bias)


class Direction(NamedTuple):
    """One layer in one direction, with all that it computes from."""

    x: Tensor  # (T, B, I), or (N, I) where `batch_sizes` divides its rows into steps, as in a PackedSequence
    states: States  # the first ones: h (B, R) and c (B, H)
    weights: Weights
    rule: GateRule
    noise: Tensor | None  # (T, B, 2H) or (N, 2H); 3H where the output gate is sampled too
    batch_sizes: Tensor | None  # (T,) int64 on the CPU
    backwards: bool  # whether it runs from the last step to the first


class LayerOutput(NamedTuple):
    """The output of every step, shaped like the input, and the last states."""

    out: Tensor
    states: States


# Runs one layer in all its directions, which share x, rule and batch_sizes. The outputs of the directions are joined,
# their states stacked: (T, B, D R) or (N, D R), (D, B, R), (D, B, H).
Backend = Callable[[Sequence[Direction]], LayerOutput]


def in_each_direction(run: Callable[[Direction], LayerOutput]) -> Backend:
    """The backend that runs the directions one after the other."""

    def run_layer(directions: Sequence[Direction]) -> LayerOutput:
        parts = [run(direction) for direction in directions]
        out = parts[0].out if len(parts) == 1 else torch.cat([part.out for part in parts], dim=-1)
        return LayerOutput(out, stacked([part.states for part in parts]))

    return run_layer


def stacked(states: Sequence[States]) -> States:
    """The states of all directions, (D, B, R) and (D, B, H)."""
    return tuple(torch.stack(each) for each in zip(*states, strict=True))


def gate_values(direction: Direction, out: Tensor) -> GateValues:
    """The gates, from what went in and what came out, whichever backend ran it: one product over all steps.

    Args:
        direction: as it was run.
        out: (T, B, R) or (N, R), its output, which holds every h that the gates saw.
    """
    x, (h0, *_), weights, rule, noise, batch_sizes, backwards = direction
    if batch_sizes is not None:
        before, _ = previous_rows(*step_rows(len(h0), len(batch_sizes), batch_sizes, backwards), len(h0))
        h_before = torch.cat([h0, out])[before.to(out.device)]
    elif backwards:
        h_before = torch.cat([out[1:], h0.unsqueeze(0)])
    else:
        h_before = torch.cat([h0.unsqueeze(0), out[:-1]])
    return weights.gates(x, h_before, rule, noise)


def step_rows(batch: int, steps: int, batch_sizes: Tensor | None, backwards: bool) -> tuple[Tensor, Tensor]:
    """How many sequences each step of the recurrence has, and the row where they begin, in the order of the steps."""
    rows = torch.full((steps,), batch, device="cpu") if batch_sizes is None else batch_sizes
    offset = rows.cumsum(0) - rows
    return (rows.flip(0), offset.flip(0)) if backwards else (rows.contiguous(), offset)


def previous_rows(rows: Tensor, offset: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """For packed sequences: which row of cat([h0, out]) each row of `out` came from, and each sequence's last row."""
    last = torch.arange(batch, device="cpu")  # at first the rows of h0, which stand before those of `out`
    before = torch.empty(int(rows.sum()), dtype=torch.int64, device="cpu")
    for n, at in zip(rows.tolist(), offset.tolist(), strict=True):
        before[at : at + n] = last[:n]
        last[:n] = torch.arange(batch + at, batch + at + n, device="cpu")
    return before, last - batch
