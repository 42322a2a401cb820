"""Draws noise and DropConnect masks: by the compiled kernel where there is one, else in torch operations.

Registered as torch operators, so that `torch.compile` takes them as they are.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from g2lstm.nn import gate, kernel
from g2lstm.nn.random import draw_stream, words_of

_KERNEL_DTYPES = (torch.float32, torch.float64)


def draw_noise(
    shape: tuple[int, ...],
    *,
    rate: float = 1.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Fresh logistic noise: log U - log(1 - U) for each element with probability `rate`, else 0."""
    device, count = torch.device(device), torch.Size(shape).numel()
    if device.type == "cpu":
        draw = _logistic_noise if runs_eagerly() else logistic_noise
        return draw(draw_stream(generator), count, rate, dtype).view(shape)
    # Other devices draw their own words, in parallel.
    size = (count if dtype == torch.float64 else (count + 1) // 2,)
    words = torch.randint(-(2**63), 2**63 - 1, size, dtype=torch.int64, device=device, generator=generator)
    words = words if dtype == torch.float64 else words.view(torch.int32)[:count]
    return gate.logistic_from_words(words, rate, dtype).view(shape)


def runs_eagerly() -> bool:
    """Whether tensors are what they seem: neither the compiler nor a transform of `torch.func` stands in between.

    Then an operator's function may be called directly, which spares its dispatch.
    """
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())


class Drop(NamedTuple):
    """Which weights DropConnect makes zero: not a mask, but all that is needed to compute it, again and again."""

    stream: Tensor
    probability: float


def draw_drop(probability: float) -> Drop:
    """A fresh choice: each weight is zero with this probability, the others grow to keep the mean.

    For weights on the CPU, where `torch.nn.functional.dropout` draws one number at a time, five times as long.
    """
    return Drop(draw_stream(), probability)


def _logistic_noise(stream: Tensor, count: int, rate: float, dtype: torch.dtype) -> Tensor:
    """See `g2lstm.nn.gate.logistic_noise`."""
    if kernel.find().library is None or dtype not in _KERNEL_DTYPES:
        return gate.logistic_noise(stream, count, rate, dtype)
    return kernel.logistic_noise(stream, count, rate, dtype)


logistic_noise = torch.library.custom_op("g2lstm::logistic_noise", _logistic_noise, mutates_args=())


@logistic_noise.register_fake
def _(stream, count, rate, dtype):  # type: ignore[no-untyped-def]
    return stream.new_empty(count, dtype=dtype)


@torch.library.custom_op("g2lstm::drop", mutates_args=())
def drop(weight: Tensor, stream: Tensor, probability: float) -> Tensor:
    """Applies DropConnect: zeros the elements whose 32 bits of the stream fall below `probability`, scales the others.

    It is linear: of a gradient it makes the gradient. The backward pass keeps no mask and no copy of the weights.
    """
    dropped = min(round(probability * 2**32), 2**32 - 1)
    scale = 2**32 / (2**32 - dropped)
    if kernel.find().library is not None and weight.dtype in _KERNEL_DTYPES:
        return kernel.drop(weight.contiguous(), stream, dropped, scale)
    count = weight.numel()
    words = words_of(stream, (count + 1) // 2).view(torch.int32)[:count].to(torch.int64) & (2**32 - 1)
    return torch.where(words.view(weight.shape) < dropped, 0.0, weight * scale)


@drop.register_fake
def _(weight, stream, probability):  # type: ignore[no-untyped-def]
    return torch.empty_like(weight, memory_format=torch.contiguous_format)


def _save_stream(ctx, inputs, output):  # type: ignore[no-untyped-def]
    _, stream, ctx.probability = inputs
    ctx.save_for_backward(stream)


def _drop_gradient(ctx, gradient):  # type: ignore[no-untyped-def]
    (stream,) = ctx.saved_tensors
    return drop(gradient, stream, ctx.probability), None, None


drop.register_autograd(_drop_gradient, setup_context=_save_stream)
