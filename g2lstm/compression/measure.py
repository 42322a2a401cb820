"""What a search measures: the user's metric on batches, or how far a model's outputs deviate."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from g2lstm.errors import G2Error
from g2lstm.nn.record import evaluating


def metric_of(metric: Callable[[nn.Module, Any], Any], batches: Sequence[Any]) -> Callable[[nn.Module], float]:
    """The mean of a metric over batches."""

    @torch.no_grad()
    def measure(model: nn.Module) -> float:
        with evaluating(model):
            values = [metric(model, batch) for batch in batches]
        try:
            return math.fsum(map(float, values)) / len(values)
        except (TypeError, ValueError, RuntimeError):
            raise G2Error(f"the metric must be a number, got {values[0]!r:.200}; lower means better") from None

    return measure


def deviation_from(model: nn.Module, batches: Sequence[Any]) -> Callable[[nn.Module], float]:
    """How far outputs are from those of `model`: the norm of all differences, relative to that of its outputs."""
    with torch.no_grad(), evaluating(model):
        expected = [_outputs(model, batch, number) for number, batch in enumerate(batches)]
    squares = math.fsum(float(one.double().square().sum()) for each in expected for one in each)
    if not math.isfinite(squares):
        raise G2Error("the outputs of the model itself are NaN or infinite, so nothing can be compared with them")
    if squares == 0:
        raise G2Error("the model has no outputs of floating point, or all are 0; give a metric")

    @torch.no_grad()
    def measure(other: nn.Module) -> float:
        total = 0.0
        with evaluating(other):
            for number, (batch, each) in enumerate(zip(batches, expected, strict=True)):
                found = _outputs(other, batch, number)
                total += math.fsum(float((a - b).double().square().sum()) for a, b in zip(found, each, strict=True))
        return math.sqrt(total / squares)

    return measure


def _outputs(model: nn.Module, batch: Any, number: int) -> list[Tensor]:
    """All tensors of floating point in what a model returns."""
    try:
        if isinstance(batch, Mapping):
            result = model(**batch)
        else:
            result = model(*batch) if isinstance(batch, tuple | list) else model(batch)
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
        raise G2Error(
            f"{type(model).__name__} can't take batch {number}, {_described(batch)}: {error}; give batches as its "
            "forward takes them: a tensor, a tuple of arguments or a dict of them"
        ) from error
    return list(_tensors(result))


def _tensors(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        if result.is_floating_point():
            yield result
    elif isinstance(result, PackedSequence):
        yield result.data
    elif isinstance(result, Mapping):
        for one in result.values():
            yield from _tensors(one)
    elif isinstance(result, list | tuple):
        for one in result:
            yield from _tensors(one)
    elif dataclasses.is_dataclass(result):
        for field in dataclasses.fields(result):
            yield from _tensors(getattr(result, field.name))


def _described(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"a tensor {tuple(batch.shape)} of {batch.dtype}"
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key}: {_described(one)}" for key, one in batch.items()) + "}"
    if isinstance(batch, tuple | list):
        return "(" + ", ".join(map(_described, batch)) + ")"
    return type(batch).__name__
