"""The gates: how pre-activations become gates in LSTMs and GRUs, and the values that callers see."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from g2lstm.nn.kind import EVAL_GATES as EVAL_GATES
from g2lstm.nn.kind import GRU as GRU
from g2lstm.nn.kind import LSTM as LSTM
from g2lstm.nn.kind import Kind as Kind
from g2lstm.nn.kind import gate_factors, kind_with

GateValues = tuple[Tensor, ...]  # the gates of one or many steps, each (..., H), in torch's order


@dataclass(frozen=True)
class GateRule:
    """How pre-activations become gates during one forward call.

    Attributes:
        tau: the temperature that divides the pre-activations of the gates in `gates`; 1 for plain sigmoids.
        gates: those that are pushed towards 0 or 1: "if" or "ifo" of an LSTM, "rz" of a GRU.
        hard: whether the step function 1[a >= 0] replaces their sigmoid.
        binary: whether it does so only forward: backward they have the gradient of the sigmoid.
    """

    tau: float = 1.0
    gates: str = "if"
    hard: bool = False
    binary: bool = False

    @property
    def kind(self) -> Kind:
        """The kind of layer that has these gates."""
        return kind_with(self.gates)

    @property
    def sampled(self) -> tuple[int, ...]:
        """Which gates have a temperature, and noise where noise is given."""
        return self.kind.sampled[self.gates]

    @property
    def is_plain(self) -> bool:
        """Whether these are the gates of torch's own layers."""
        return self.tau == 1.0 and not self.hard and not self.binary

    def lstm(self, alpha: Tensor, noise: Tensor | None = None) -> GateValues:
        """Equations of G2-LSTM: i, f = G(alpha, tau); o = sigmoid; g = tanh.

        Args:
            alpha: (..., 4H), pre-activations W_x x + W_h h + b in the order i, f, g, o.
            noise: (..., 2H) for i, f or (..., 3H) for i, f, o; None for no noise.
        """
        i, f, g, o = alpha.chunk(4, dim=-1)
        noises = self._noises(noise)
        i, f = self._open(i, noises[0]), self._open(f, noises[1])
        o = self._open(o, noises[2]) if len(noises) == 3 else torch.sigmoid(o)
        return i, f, torch.tanh(g), o

    def gru(self, from_x: Tensor, from_h: Tensor, noise: Tensor | None = None) -> GateValues:
        """The same for torch's GRU: r, z = G(alpha, tau); n = tanh(W_xn x + b_xn + r (W_hn h + b_hn)).

        Args:
            from_x: (..., 3H), W_x x + b_x in the order r, z, n.
            from_h: (..., 3H), W_h h + b_h.
            noise: (..., 2H) for r, z; None for no noise.
        """
        (x_r, x_z, x_n), (h_r, h_z, h_n) = from_x.chunk(3, dim=-1), from_h.chunk(3, dim=-1)
        noises = self._noises(noise)
        r, z = self._open(x_r + h_r, noises[0]), self._open(x_z + h_z, noises[1])
        return r, z, torch.tanh(x_n + r * h_n)

    def _noises(self, noise: Tensor | None) -> tuple[Tensor | None, ...]:
        count = len(self.sampled)
        return (None,) * count if noise is None else noise.chunk(count, dim=-1)

    def _open(self, alpha: Tensor, noise: Tensor | None) -> Tensor:
        if self.hard:
            return hard_gate(alpha)
        return (binary_gate if self.binary else sampled_gate)(alpha, self.tau, noise)

    def row_scale(self, hidden: int, like: Tensor) -> Tensor:
        """The factors of the rows of W_x, W_h and b with which a plain layer follows this rule: (4H,), or (3H,)."""
        factors = torch.tensor(gate_factors(self.gates, self.tau), dtype=like.dtype, device=like.device)
        return factors.repeat_interleave(hidden)


@dataclass(frozen=True)
class Gates:
    """The gates of one forward call: `input`, `forget`, `candidate`, `output`, or `reset`, `update`, `candidate`.

    Each of these attributes holds one (T, B, H) tensor per layer and direction, in the order of torch: l0, l0_reverse,
    l1, ...; (T, H) for an unbatched input, and without T for a cell. The gates of a PackedSequence are NaN after a
    sequence's end.

    Attributes:
        named: the same tensors, by the name of the gate.
        lengths: (B,), of a PackedSequence's sequences; None where all have the full length.
        training: whether they were taken in training mode (noise, temperature) or in evaluation.
    """

    named: Mapping[str, tuple[Tensor, ...]]
    lengths: Tensor | None
    training: bool

    def __getattr__(self, name: str) -> tuple[Tensor, ...]:
        """The gate of this name, of each layer and direction."""
        named = self.__dict__.get("named", {})  # not there yet while a copy is being made
        if name not in named:
            raise AttributeError(f"these gates are {', '.join(named)}; there is no {name!r}")
        return named[name]

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
        named = {name: tuple(map(function, each)) for name, each in self.named.items()}
        return Gates(named, lengths, self.training)


def sampled_gate(alpha: Tensor, tau: float, noise: Tensor | None = None) -> Tensor:
    """G(alpha, tau) = sigmoid((alpha + noise) / tau); without noise the sharpened sigmoid."""
    if noise is not None:
        alpha = alpha + noise
    return torch.sigmoid(alpha if tau == 1.0 else alpha / tau)


def binary_gate(alpha: Tensor, tau: float, noise: Tensor | None = None) -> Tensor:
    """1[alpha + noise >= 0] with the gradient of `sampled_gate`: straight through, as if it were that gate.

    Where the noise is infinite, the gate stays soft: sigmoid(alpha).
    """
    if noise is None:
        soft = sampled_gate(alpha, tau)
        return hard_gate(alpha) + (soft - soft.detach())
    stays_soft = noise == torch.inf
    pushed = alpha + noise.masked_fill(stays_soft, 0.0)
    return torch.where(stays_soft, torch.sigmoid(alpha), binary_gate(pushed, tau))


def hard_gate(alpha: Tensor) -> Tensor:
    """1[alpha >= 0], with no gradient; a NaN stays a NaN."""
    return torch.where(alpha.detach().isnan(), alpha.detach(), (alpha.detach() >= 0).to(alpha.dtype))
