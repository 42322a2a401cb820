"""What every backend is given and gives back: the weights of one layer, its steps, and the call they share."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from g2lstm.nn.draw import Drop, drop
from g2lstm.nn.gate import GateRule


class Weights(NamedTuple):
    """The weights of one layer in one direction. R is the width of h: the projection's if there is one, else H."""

    w_x: Tensor  # (4H, I)
    w_h: Tensor  # (4H, R)
    b_x: Tensor | None  # (4H,)
    b_h: Tensor | None  # (4H,)
    w_r: Tensor | None  # (R, H), the projection h = W_r (o tanh c)
    drop: Drop | None = None  # DropConnect that W_h is still to be put through, the same whenever it is applied

    @property
    def dropped(self) -> "Weights":
        """With DropConnect applied to W_h."""
        if self.drop is None:
            return self
        return self._replace(w_h=drop(self.w_h, self.drop.stream, self.drop.probability), drop=None)

    @property
    def bias(self) -> Tensor | None:
        """The sum of the two biases; torch keeps two for cuDNN's sake."""
        return None if self.b_x is None or self.b_h is None else self.b_x + self.b_h

    def from_x(self, x: Tensor) -> Tensor:
        """What the input gives to the pre-activations, W_x x + b: (..., 4H) of x (..., I)."""
        return product(x, self.w_x, self.bias)

    def from_h(self, h: Tensor) -> Tensor:
        """What the last output gives to them, W_h h with DropConnect: (..., 4H) of h (..., R)."""
        return product(h, self.dropped.w_h)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Weights":
        """With `function` applied to each tensor that is there."""
        b_x, b_h, w_r = (None if t is None else function(t) for t in (self.b_x, self.b_h, self.w_r))
        return Weights(function(self.w_x), function(self.w_h), b_x, b_h, w_r, self.drop)

    def scaled(self, rows: Tensor) -> "Weights":
        """With the rows of all four gates multiplied by `rows`, (4H,)."""
        column = rows.unsqueeze(1)
        b_x, b_h = (None if b is None else b * rows for b in (self.b_x, self.b_h))
        return Weights(self.w_x * column, self.w_h * column, b_x, b_h, self.w_r, self.drop)

    def flat(self) -> list[Tensor]:
        """In the order of torch's fused LSTM."""
        tensors = (self.w_x, self.w_h, self.b_x, self.b_h, self.w_r)
        return [tensor for tensor in tensors if tensor is not None]


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear`, but low precision on the CPU goes through float32: oneDNN ends the process there on some processors."""
    if x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16):
        return linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)
    return linear(x, weight, bias)


class LayerOutput(NamedTuple):
    """The output of every step, shaped like the input, and the last states."""

    out: Tensor
    h: Tensor
    c: Tensor


class Backend(Protocol):
    """Runs one layer, all its directions.

    Args:
        x: (T, B, I), or (N, I) where `batch_sizes` tells how its rows fall into steps, as in a PackedSequence.
        h, c: (D, B, R) and (D, B, H), the first states of D directions.
        weights: one for each direction.
        rule: how pre-activations become gates.
        noise: (T, B, 2H) or (N, 2H) for each direction (3H where the output gate is sampled too), or None.
        batch_sizes: (T,) int64 on the CPU, or None.
    """

    def __call__(
        self,
        x: Tensor,
        h: Tensor,
        c: Tensor,
        weights: Sequence[Weights],
        rule: GateRule,
        noise: Sequence[Tensor] | None,
        batch_sizes: Tensor | None,
    ) -> LayerOutput:
        """See the class."""


# One direction: x (T, B, I) or (N, I), h (B, R), c (B, H), its weights, its noise, and whether it runs backwards.
Direction = Callable[[Tensor, Tensor, Tensor, Weights, GateRule, Tensor | None, Tensor | None, bool], LayerOutput]


def in_each_direction(direction: Direction) -> Backend:
    """The backend that runs `direction` forwards and, for a bidirectional layer, backwards, and joins the outputs."""

    def run(
        x: Tensor,
        h: Tensor,
        c: Tensor,
        weights: Sequence[Weights],
        rule: GateRule,
        noise: Sequence[Tensor] | None,
        batch_sizes: Tensor | None,
    ) -> LayerOutput:
        parts = [
            direction(x, h[d], c[d], weights[d], rule, None if noise is None else noise[d], batch_sizes, d == 1)
            for d in range(len(weights))
        ]
        out = parts[0].out if len(parts) == 1 else torch.cat([part.out for part in parts], dim=-1)
        return LayerOutput(out, torch.stack([part.h for part in parts]), torch.stack([part.c for part in parts]))

    return run


def step_rows(batch: int, steps: int, batch_sizes: Tensor | None, backwards: bool) -> tuple[Tensor, Tensor]:
    """How many sequences each step of the recurrence has, and the row where they begin, in the order of the steps."""
    rows = torch.full((steps,), batch, device="cpu") if batch_sizes is None else batch_sizes
    offset = rows.cumsum(0) - rows
    return (rows.flip(0), offset.flip(0)) if backwards else (rows.contiguous(), offset)


def previous_rows(rows: Tensor, offset: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """For packed sequences: which row of cat([h0, out]) each row of `out` came from, and each sequence's last row."""
    last = torch.arange(batch, device="cpu")  # first the rows of h0, which stand before those of `out`
    before = torch.empty(int(rows.sum()), dtype=torch.int64, device="cpu")
    for n, at in zip(rows.tolist(), offset.tolist(), strict=True):
        before[at : at + n] = last[:n]
        last[:n] = torch.arange(batch + at, batch + at + n, device="cpu")
    return before, last - batch
