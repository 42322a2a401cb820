"""Random words for noise and masks: a stream of SplitMix64 per use, seeded from torch's generator.

Torch's CPU generator yields one number at a time, on one thread; drawing the noise from it alone would cost a tenth of
a small layer's training step. So a call takes two numbers from it, a seed and an increment, and word k of the call's
stream is mix(seed + (k + 1) * increment), as in Java's SplittableRandom: any thread can compute any part of it.
"""

import torch
from torch import Tensor

_GOLDEN_GAMMA, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(word: int) -> int:
    """The same 64 bits as a signed integer."""
    return (word + 2**63) % 2**64 - 2**63


def draw_stream(generator: torch.Generator | None = None) -> Tensor:
    """A seed and an odd increment, (2,) int64 on the CPU: all that a stream needs."""
    stream = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device="cpu", generator=generator)
    # Mixed, because increments of few set bits make poor streams; odd, so that the stream visits every state.
    return torch.stack([stream[0], _mix(stream[1] ^ _signed(_GOLDEN_GAMMA)) | 1])


def words_of(stream: Tensor, count: int) -> Tensor:
    """The first `count` words of a stream, as int64, in torch operations."""
    seed, increment = stream.unbind()
    return _mix(torch.arange(1, count + 1, device="cpu") * increment + seed)


def _mix(z: Tensor) -> Tensor:
    """Stafford's variant 13 of the MurmurHash3 finaliser, the output function of SplitMix64."""
    z = (z ^ _shift_right(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift_right(z, 27)) * _signed(_MIX_2)
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical: zeros move in. Torch's shift of signed integers copies the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
