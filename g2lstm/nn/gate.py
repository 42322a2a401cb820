"""The gate of the paper as pure functions: logistic noise, temperature, sampling, evaluation, the Proposition."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.nn.random import words_of

NOISY_GATES = {"if": 2, "ifo": 3}  # which gates are pushed to 0 or 1, and how many they are
EVAL_GATES = ("soft", "tempered", "hard")


class GateValues(NamedTuple):
    """The four gates of one step or of many, each (..., H), in torch's order."""

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
        hard: replace their sigmoid by the step function 1[a >= 0].
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
            noise: (..., 2H) for i, f or (..., 3H) for i, f, o; None for none.
        """
        i, f, g, o = alpha.chunk(4, dim=-1)
        noises = noise.chunk(self.noisy_gates, dim=-1) if noise is not None else (None,) * self.noisy_gates
        i, f = self._open(i, noises[0]), self._open(f, noises[1])
        o = self._open(o, noises[2]) if self.noisy_gates == 3 else torch.sigmoid(o)
        return GateValues(i, f, torch.tanh(g), o)

    def _open(self, alpha: Tensor, noise: Tensor | None) -> Tensor:
        return hard_gate(alpha) if self.hard else sampled_gate(alpha, self.tau, noise)

    def row_scale(self, hidden: int, like: Tensor) -> Tensor:
        """What the rows of W_x, W_h and b are multiplied by to make this rule a plain LSTM's: (4H,)."""
        sharpness = torch.ones(4, hidden, dtype=like.dtype, device=like.device)
        for gate in (0, 1, 3)[: self.noisy_gates]:
            sharpness[gate] = 1 / self.tau
        return sharpness.flatten()


def sampled_gate(alpha: Tensor, tau: float, noise: Tensor | None = None) -> Tensor:
    """G(alpha, tau) = sigmoid((alpha + noise) / tau); without noise the sharpened sigmoid."""
    if noise is not None:
        alpha = alpha + noise
    return torch.sigmoid(alpha if tau == 1.0 else alpha / tau)


def hard_gate(alpha: Tensor) -> Tensor:
    """1[alpha >= 0], with no gradient; a NaN stays a NaN."""
    return torch.where(alpha.detach().isnan(), alpha.detach(), (alpha.detach() >= 0).to(alpha.dtype))


def logistic_from_words(words: Tensor, rate: float, dtype: torch.dtype) -> Tensor:
    """Standard logistic noise with probability `rate`, else 0, from words of random bits.

    Of the M = 2^32 values of a word w the first K = rate M carry noise. Such a word stands for the middle of its cell
    of the unit interval, u = (w + 1/2) / K, and log(u / (1 - u)) = log((w + 1/2) / ((K - 1 - w) + 1/2)). Both halves
    of the fraction are at least 1/2, so every word gives a finite value, and the values are symmetric: no epsilon.

    Args:
        words: int64 for float64 noise, of which 62 bits are used, so that integers do not overflow; else int32.
        rate: probability of noise, in [0, 1].
        dtype: of the result; bfloat16 and float16 are computed in float32 and rounded once.
    """
    exact = dtype if dtype == torch.float64 else torch.float32
    words = words.to(torch.int64).bitwise_and(2 ** bits_used(dtype) - 1)
    last = last_noisy_word(rate, dtype)
    odds = (words.to(exact) + 0.5) / ((last - words).to(exact) + 0.5)
    return torch.where(words <= last, odds.clamp_min(0.0).log(), 0.0).to(dtype)


def bits_used(dtype: torch.dtype) -> int:
    """How many bits of a word decide on one element of noise."""
    return 62 if dtype == torch.float64 else 32


def last_noisy_word(rate: float, dtype: torch.dtype) -> int:
    """The last value of a word that carries noise at this rate; -1 if none does."""
    return round(rate * 2 ** bits_used(dtype)) - 1


def logistic_noise(stream: Tensor, count: int, rate: float, dtype: torch.dtype) -> Tensor:
    """Log U - log(1 - U), U uniform, for each of `count` elements with probability `rate`, else 0.

    Exact to the resolution of the words: 32 random bits an element (62 for float64), tails out to +-22.9 (+-43.7).

    Args:
        stream: from `g2lstm.nn.random.draw_stream`; the same stream gives the same noise.
        count: elements.
        rate: probability of noise.
        dtype: of the noise.
    """
    if dtype == torch.float64:
        return logistic_from_words(words_of(stream, count), rate, dtype)
    words = words_of(stream, (count + 1) // 2).view(torch.int32)[:count]  # a 64-bit word serves two elements
    return logistic_from_words(words, rate, dtype)


def saturation_probability(alpha: Tensor, tau: float, epsilon: float) -> Tensor:
    """The Proposition's closed form, P(G(alpha, tau) >= 1 - epsilon); of -alpha it is P(G(alpha, tau) <= epsilon)."""
    return torch.sigmoid(alpha - tau * _log_odds(epsilon))


def saturation_bounds(alpha: Tensor, tau: float, epsilon: float) -> tuple[Tensor, Tensor]:
    """The Proposition's bounds: P(D=1) - (tau/4) log(1/epsilon) <= P(G >= 1 - epsilon) <= P(D=1)."""
    _log_odds(epsilon)
    above = torch.sigmoid(alpha)
    return above - tau / 4 * math.log(1 / epsilon), above


def _log_odds(epsilon: float) -> float:
    if not 0 < epsilon < 0.5:
        raise G2Error(f"epsilon must lie strictly between 0 and 1/2 for the Proposition to hold, got {epsilon}")
    return math.log(1 / epsilon - 1)
