"""Random numbers for a layer: logistic noise, DropConnect and dropout, from streams that torch's generator seeds.

Torch's CPU generator yields one number at a time, on one thread; drawing the noise from it alone would cost a tenth of
a small layer's training step. So a call takes two numbers from it, for a seed and an increment, and word k of the
call's stream is mix(seed + (k + 1) * increment), as in Java's SplittableRandom: any thread can compute any part of it.
The compiled kernel (`csrc/random.cpp`) does; without it the same words come from torch operations.

Noise and DropConnect are registered as torch operators, so that `torch.compile` takes them as they are.
"""

import torch
from torch import Tensor, nn

from g2lstm.nn import kernel

_MIX_1, _MIX_2, _WORDS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 2**64
_KERNEL_DTYPES = (torch.float32, torch.float64)


def draw_stream(generator: torch.Generator | None = None) -> Tensor:
    """Two random numbers, (2,) int64 on the CPU: all that a stream needs, see `seed_and_increment`.

    Torch's generator uses only 32 bits of the number it was seeded with. The others are mixed in here, except under
    `torch.compile`, which can't ask for that number.
    """
    stream = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device="cpu", generator=generator)
    if not torch.compiler.is_compiling():
        seed = torch.initial_seed() if generator is None else generator.initial_seed()
        if high := seed % _WORDS >> 32:
            stream[0] ^= _signed(_mixed(high))
    return stream


def seed_and_increment(stream: Tensor) -> tuple[int, int]:
    """What the words of a stream are made of, as signed integers.

    The increment is mixed and odd, so that the stream visits every state. Increments whose neighbouring bits are too
    much alike make poor streams; as in SplittableRandom, those with fewer than 24 changes are replaced.
    """
    seed, number = stream[:2].tolist()
    increment = _mixed(number % _WORDS) | 1
    if (increment ^ (increment >> 1)).bit_count() < 24:
        increment ^= 0xAAAAAAAAAAAAAAAA
    return seed, _signed(increment)


def words_of(stream: Tensor, count: int) -> Tensor:
    """The first `count` words of a stream, as int64, in torch operations."""
    seed, increment = seed_and_increment(stream)
    z = torch.arange(1, count + 1, device="cpu") * increment + seed
    z = (z ^ _shift_right(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift_right(z, 27)) * _signed(_MIX_2)
    return z ^ _shift_right(z, 31)


def _half_words_of(stream: Tensor, count: int) -> Tensor:
    """The first `count` halves of words, as int32: a word serves two elements."""
    return words_of(stream, (count + 1) // 2).view(torch.int32)[:count]


def _mixed(z: int) -> int:
    """Stafford's variant 13 of the MurmurHash3 finaliser, the output function of SplitMix64."""
    z = (z ^ (z >> 30)) * _MIX_1 % _WORDS
    z = (z ^ (z >> 27)) * _MIX_2 % _WORDS
    return z ^ (z >> 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Shifts zeros in; torch's own shift of signed integers copies the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The same 64 bits as a signed integer."""
    return (word + 2**63) % 2**64 - 2**63


def draw_noise(
    shape: tuple[int, ...],
    *,
    rate: float = 1.0,
    soft_rate: float = 0.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Fresh logistic noise: log U - log(1 - U) for each element with probability `rate`, else 0.

    With probability `soft_rate` it is infinite instead, by which a binary gate knows that it stays soft. One random
    word decides on both, so noise gives way if they add up to more than 1.
    """
    device, count = torch.device(device), torch.Size(shape).numel()
    if device.type == "cpu":
        return logistic_noise(draw_stream(generator), count, rate, dtype, soft_rate).view(shape)
    # Other devices draw their own words, in parallel.
    size = (count if dtype == torch.float64 else (count + 1) // 2,)
    words = torch.randint(-(2**63), 2**63 - 1, size, dtype=torch.int64, device=device, generator=generator)
    words = words if dtype == torch.float64 else words.view(torch.int32)[:count]
    return logistic_from_words(words, rate, dtype, soft_rate).view(shape)


@torch.library.custom_op("g2lstm::logistic_noise", mutates_args=(), device_types="cpu")
def logistic_noise(stream: Tensor, count: int, rate: float, dtype: torch.dtype, soft_rate: float = 0.0) -> Tensor:
    """Noise for `count` elements, as in `draw_noise`; the same stream gives the same noise.

    It is exact to the resolution of the words: 32 random bits per element (62 for float64), so tails reach +-22.9
    (+-43.7).
    """
    if kernel.find().library is None:
        words = words_of(stream, count) if dtype == torch.float64 else _half_words_of(stream, count)
        return logistic_from_words(words, rate, dtype, soft_rate)
    last, finite = _last_noisy_word(rate, dtype), _last_finite_word(soft_rate, dtype)
    if last < 0 and soft_rate == 0:
        return torch.zeros(count, dtype=dtype, device="cpu")
    noise = torch.empty(count, dtype=_exact(dtype), device="cpu")
    call = (noise.data_ptr(), count, last, finite, torch.get_num_threads())
    kernel.call("g2lstm_noise", noise.dtype, *seed_and_increment(stream), *call)
    return noise.to(dtype)


@logistic_noise.register_fake
def _(stream, count, rate, dtype, soft_rate=0.0):  # type: ignore[no-untyped-def]
    return stream.new_empty(count, dtype=dtype)


def logistic_from_words(words: Tensor, rate: float, dtype: torch.dtype, soft_rate: float = 0.0) -> Tensor:
    """Standard logistic noise with probability `rate`, else 0, from words of random bits; the last are infinite.

    Of the M = 2^32 values of a word w the first K = rate M carry noise. Such a word stands for the middle of its cell
    of the unit interval, u = (w + 1/2) / K, and log(u / (1 - u)) = log((w + 1/2) / ((K - 1 - w) + 1/2)). Both halves
    of the fraction are at least 1/2, so every word gives a finite value, and the values are symmetric: no epsilon.

    Args:
        words: int64 for float64 noise, of which 62 bits are used, so that integers do not overflow; else int32.
        rate: probability of noise, in [0, 1].
        dtype: of the result; bfloat16 and float16 are computed in float32 and rounded once.
        soft_rate: probability of an infinity, in [0, 1].
    """
    exact = _exact(dtype)
    words = words.to(torch.int64).bitwise_and(2 ** _bits_used(dtype) - 1)
    last = _last_noisy_word(rate, dtype)
    odds = (words.to(exact) + 0.5) / ((last - words).to(exact) + 0.5)
    noise = torch.where(words <= last, odds.clamp_min(0.0).log(), 0.0)
    return noise.masked_fill(words > _last_finite_word(soft_rate, dtype), torch.inf).to(dtype)


def _exact(dtype: torch.dtype) -> torch.dtype:
    """The type in which the noise of a type is computed."""
    return dtype if dtype == torch.float64 else torch.float32


def _bits_used(dtype: torch.dtype) -> int:
    """How many bits of a word decide on one element of noise."""
    return 62 if dtype == torch.float64 else 32


def _last_noisy_word(rate: float, dtype: torch.dtype) -> int:
    """The last value of a word that carries noise at this rate; -1 if none does."""
    return round(rate * 2 ** _bits_used(dtype)) - 1


def _last_finite_word(soft_rate: float, dtype: torch.dtype) -> int:
    """The last value of a word that carries finite noise; -1 if none does."""
    return 2 ** _bits_used(dtype) - 1 - round(soft_rate * 2 ** _bits_used(dtype))


def dropout(x: Tensor, probability: float, generator: torch.Generator | None = None) -> Tensor:
    """`torch.nn.functional.dropout` while training, which takes no generator."""
    if generator is None or probability == 1:
        return nn.functional.dropout(x, probability)
    if x.device.type == "cpu":
        return drop(x, draw_drop(probability, generator))
    keep = 1 - probability
    return x * torch.empty_like(x).bernoulli_(keep, generator=generator).div_(keep)


def draw_drop(probability: float, generator: torch.Generator | None = None) -> Tensor:
    """A fresh choice of weights to drop, each with this probability: all that `drop` needs, again and again.

    For weights on the CPU, where `torch.nn.functional.dropout` draws one number at a time and takes five times as long.

    Returns:
        (3,) int64: a stream, and how many of the 2^32 values of a half word drop a weight.
    """
    dropped = torch.tensor([min(round(probability * 2**32), 2**32 - 1)], device="cpu")
    return torch.cat([draw_stream(generator), dropped])


@torch.library.custom_op("g2lstm::drop", mutates_args=(), device_types="cpu")
def drop(weight: Tensor, choice: Tensor) -> Tensor:
    """Applies DropConnect: zeros the elements that `choice` drops, and scales the others up to keep the mean.

    It is linear, so it also maps the gradient. The backward pass keeps no mask and no copy of the weights.
    """
    dropped = int(choice[2])
    scale = 2**32 / (2**32 - dropped)
    count = weight.numel()
    if kernel.find().library is None or weight.dtype not in _KERNEL_DTYPES:
        words = _half_words_of(choice, count).to(torch.int64) & (2**32 - 1)
        return torch.where(words.view(weight.shape) < dropped, 0.0, weight * scale)
    weight = weight.contiguous()
    result = torch.empty_like(weight)
    addresses, threads = (weight.data_ptr(), result.data_ptr()), torch.get_num_threads()
    kernel.call("g2lstm_drop", weight.dtype, *seed_and_increment(choice), *addresses, count, dropped, scale, threads)
    return result


@drop.register_fake
def _(weight, choice):  # type: ignore[no-untyped-def]
    return torch.empty_like(weight, memory_format=torch.contiguous_format)


def _save_choice(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(inputs[1])


def _drop_gradient(ctx, gradient):  # type: ignore[no-untyped-def]
    return drop(gradient, *ctx.saved_tensors), None


drop.register_autograd(_drop_gradient, setup_context=_save_choice)
