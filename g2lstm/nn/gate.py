"""The gates of the paper: how pre-activations become gates, and the values that callers see."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

NOISY_GATES = {"if": 2, "ifo": 3}  # which gates are pushed towards 0 or 1, and how many these are
EVAL_GATES = ("soft", "tempered", "hard")


class GateValues(NamedTuple):
    """The four gates of one or many steps, each (..., H), in torch's order."""

    i: Tensor
    f: Tensor
    g: Tensor
    o: Tensor


@dataclass(frozen=True)
class GateRule:
    """How pre-activations become gates during one forward call.

    Attributes:
        tau: the temperature that divides the pre-activations of the gates in `gates`; 1 for plain sigmoids.
        gates: "if", or "ifo" where the output gate is treated like the other two.
        hard: whether the step function 1[a >= 0] replaces their sigmoid.
    """

    tau: float = 1.0
    gates: str = "if"
    hard: bool = False

    @property
    def noisy_gates(self) -> int:
        """How many gates have a temperature, and noise where noise is given."""
        return NOISY_GATES[self.gates]

    @property
    def is_plain(self) -> bool:
        """Whether these are the gates of `torch.nn.LSTM`."""
        return self.tau == 1.0 and not self.hard

    def __call__(self, alpha: Tensor, noise: Tensor | None = None) -> GateValues:
        """Equations of G2-LSTM: i, f = G(alpha, tau); o = sigmoid; g = tanh.

        Args:
            alpha: (..., 4H), pre-activations W_x x + W_h h + b in the order i, f, g, o.
            noise: (..., 2H) for i, f or (..., 3H) for i, f, o; None for no noise.
        """
        i, f, g, o = alpha.chunk(4, dim=-1)
        noises = noise.chunk(self.noisy_gates, dim=-1) if noise is not None else (None,) * self.noisy_gates
        i, f = self._open(i, noises[0]), self._open(f, noises[1])
        o = self._open(o, noises[2]) if self.noisy_gates == 3 else torch.sigmoid(o)
        return GateValues(i, f, torch.tanh(g), o)

    def _open(self, alpha: Tensor, noise: Tensor | None) -> Tensor:
        return hard_gate(alpha) if self.hard else sampled_gate(alpha, self.tau, noise)

    def row_scale(self, hidden: int, like: Tensor) -> Tensor:
        """The factors of the rows of W_x, W_h and b with which a plain LSTM follows this rule: (4H,)."""
        sharpness = torch.ones(4, hidden, dtype=like.dtype, device=like.device)
        for gate in (0, 1, 3)[: self.noisy_gates]:
            sharpness[gate] = 1 / self.tau
        return sharpness.flatten()


@dataclass(frozen=True)
class Gates:
    """The gates of one forward call.

    Attributes:
        input, forget, candidate, output: one (T, B, H) tensor per layer and direction, in the order of
            `torch.nn.LSTM`: l0, l0_reverse, l1, ...; (T, H) for an unbatched input. The gates of a PackedSequence are
            NaN after a sequence's end.
        lengths: (B,), of a PackedSequence's sequences; None where all have the full length.
        training: whether they were taken in training mode (noise, temperature) or in evaluation.
    """

    input: tuple[Tensor, ...]
    forget: tuple[Tensor, ...]
    candidate: tuple[Tensor, ...]
    output: tuple[Tensor, ...]
    lengths: Tensor | None
    training: bool

    def detach(self) -> "Gates":
        """The same values, cut off from autograd."""
        return self._map(Tensor.detach, self.lengths)

    def known(self, is_token: Tensor) -> "Gates":
        """The same values, NaN where a batch is only padding; for calls whose sequences were padded, not packed.

        Args:
            is_token: (T, B), truth values.
        """
        padding = is_token.logical_not().unsqueeze(-1)
        return self._map(lambda tensor: tensor.masked_fill(padding, torch.nan), is_token.sum(0))

    def _map(self, function: Callable[[Tensor], Tensor], lengths: Tensor | None) -> "Gates":
        parts = (self.input, self.forget, self.candidate, self.output)
        i, f, g, o = (tuple(map(function, part)) for part in parts)
        return Gates(i, f, g, o, lengths, self.training)


def sampled_gate(alpha: Tensor, tau: float, noise: Tensor | None = None) -> Tensor:
    """G(alpha, tau) = sigmoid((alpha + noise) / tau); without noise the sharpened sigmoid."""
    if noise is not None:
        alpha = alpha + noise
    return torch.sigmoid(alpha if tau == 1.0 else alpha / tau)


def hard_gate(alpha: Tensor) -> Tensor:
    """1[alpha >= 0], with no gradient; a NaN stays a NaN."""
    return torch.where(alpha.detach().isnan(), alpha.detach(), (alpha.detach() >= 0).to(alpha.dtype))
