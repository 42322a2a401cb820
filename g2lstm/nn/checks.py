"""Checks what callers hand to a layer, and brings every form of input into one: time first, states given."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from g2lstm.errors import G2Error
from g2lstm.nn.gate import EVAL_GATES, LSTM, Gates, GateValues, Kind
from g2lstm.nn.kind import MIN_TAU
from g2lstm.nn.layer import LayerOutput, States

if TYPE_CHECKING:
    from g2lstm.nn.gated import Gated

METHODS = ("gumbel", "binary", "sigmoid", "sharpened")
NOISY_METHODS = ("gumbel", "binary")
BACKENDS = ("auto", "reference", "stock", "native")
OPTIONS = ("method", "tau", "noise_rate", "soft_rate", "gates", "eval_gate", "weight_dropout", "backend")
_CHOICES = {"method": METHODS, "eval_gate": EVAL_GATES, "backend": BACKENDS}


def check_module(model: object, function: str) -> None:
    """Raises unless a caller gave `function` a module."""
    if not isinstance(model, nn.Module):
        raise G2Error(
            f"{function} takes a torch.nn.Module, got {type(model).__name__}; for a run, pass load(run).model"
        )


def checked_option(name: str, value: Any, kind: Kind = LSTM) -> str | float:
    """The value of one of `OPTIONS` for a layer of this kind; raises if it is not allowed."""
    choices = tuple(kind.sampled) if name == "gates" else _CHOICES.get(name)
    if choices is not None:
        if value not in choices:
            names = ", ".join(repr(choice) for choice in choices)
            raise G2Error(f"{name} must be one of {names}, got {value!r}")
        return str(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise G2Error(f"{name} must be a number, got {value!r}")
    number = float(value)
    if name == "tau" and not MIN_TAU <= number < math.inf:
        raise G2Error(
            f"tau, the temperature, must be a finite number of at least {MIN_TAU:g}, got {number}; the paper uses 0.9, "
            "and method 'binary' has gates that are 0 or 1"
        )
    if name == "noise_rate" and not 0 <= number <= 1:
        raise G2Error(f"noise_rate is a probability and must lie in [0, 1], got {number}; the paper uses 0.2")
    if name == "soft_rate" and not 0 <= number <= 1:
        raise G2Error(f"soft_rate is a probability and must lie in [0, 1], got {number}; at 0 all gates are binary")
    if name == "weight_dropout" and not 0 <= number < 1:
        raise G2Error(f"weight_dropout is a probability and must lie in [0, 1), got {number}; AWD-LSTM uses 0.5")
    return number


def check_projection(hidden_size: int, proj_size: int) -> None:
    """Raises unless the projection is narrower than what it projects."""
    if isinstance(proj_size, int) and isinstance(hidden_size, int) and not 0 <= proj_size < max(hidden_size, 1):
        raise G2Error(f"proj_size must be 0 (no projection) or smaller than hidden_size={hidden_size}, got {proj_size}")


@dataclass(frozen=True)
class Arranged:
    """A forward call's input in the one form that backends take, and how to undo the arranging."""

    x: Tensor  # (T, B, I), or (N, I) with batch_sizes
    states: States  # h (L * D, B, R) and c (L * D, B, H)
    batch_sizes: Tensor | None = None
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None
    is_batched: bool = True
    batch_first: bool = False
    is_cell: bool = False

    def restore(self, result: LayerOutput) -> tuple[Tensor | PackedSequence, States]:
        """The output and the last states as the caller expects them."""
        out, states = result
        if self.batch_sizes is not None:
            packed = PackedSequence(out, self.batch_sizes, self.sorted_indices, self.unsorted_indices)
            order = self.unsorted_indices
            return packed, states if order is None else tuple(state.index_select(1, order) for state in states)
        return out.transpose(0, 1) if self.batch_first else self._shaped(out), tuple(map(self._shaped, states))

    def restore_gates(self, kind: Kind, values: Sequence[GateValues], training: bool) -> Gates:
        """The gates of all layers and directions in the shape that callers see."""
        lengths = None

        def shaped(tensor: Tensor) -> Tensor:
            nonlocal lengths
            if self.batch_sizes is None:
                return self._shaped(tensor)
            packed = PackedSequence(tensor, self.batch_sizes, None, self.unsorted_indices)
            tensor, lengths = pad_packed_sequence(packed, padding_value=float("nan"))
            return tensor

        each = {name: tuple(shaped(one[gate]) for one in values) for gate, name in enumerate(kind.gates)}
        return Gates(each, lengths, training)

    def _shaped(self, tensor: Tensor) -> Tensor:
        """Without the batch, and without the step of a cell, if the caller's input had none."""
        tensor = tensor if self.is_batched else tensor.squeeze(1)
        return tensor.squeeze(0) if self.is_cell else tensor


def arrange(layer: "Gated", input: Tensor | PackedSequence, hx: Any) -> Arranged:
    """Checks input and states, and lays them out time first."""
    if isinstance(input, PackedSequence) and not layer.is_cell:
        return _arrange_packed(layer, input, hx)
    if not isinstance(input, Tensor):
        accepted = "a tensor" if layer.is_cell else "a tensor or a PackedSequence"
        raise G2Error(f"the input must be {accepted}, got {type(input).__name__}")
    dimensions = 2 if layer.is_cell else 3
    if input.dim() not in (dimensions - 1, dimensions):
        raise G2Error(
            f"the input must have {dimensions} dimensions, or {dimensions - 1} if unbatched"
            f"{'' if layer.is_cell else ', or be a PackedSequence'}; got shape {tuple(input.shape)}"
        )
    is_batched = input.dim() == dimensions
    batch_first = layer.batch_first and is_batched
    x = input.unsqueeze(0) if layer.is_cell else input.transpose(0, 1) if batch_first else input
    x = x if is_batched else x.unsqueeze(1)
    if x.size(0) == 0:
        raise G2Error(f"the sequence must have at least one step, got an input of shape {tuple(input.shape)}")
    _check_features(layer, x)
    states = _states(layer, hx, x, x.size(1), is_batched)
    return Arranged(x, states, is_batched=is_batched, batch_first=batch_first, is_cell=layer.is_cell)


def _arrange_packed(layer: "Gated", input: PackedSequence, hx: Any) -> Arranged:
    x, batch_sizes, sorted_indices, unsorted_indices = input
    if batch_sizes.dtype != torch.int64 or not (torch.compiler.is_compiling() or _fit(batch_sizes, len(x))):
        raise G2Error(
            f"a PackedSequence needs int64 batch_sizes that never grow and sum to its {len(x)} rows, got "
            f"{batch_sizes}; make it with torch.nn.utils.rnn.pack_sequence or pack_padded_sequence"
        )
    _check_features(layer, x)
    states = _states(layer, hx, x, int(batch_sizes[0]), is_batched=True)
    if hx is not None and sorted_indices is not None:
        states = tuple(state.index_select(1, sorted_indices) for state in states)
    return Arranged(x, states, batch_sizes, sorted_indices, unsorted_indices)


def _fit(batch_sizes: Tensor, rows: int) -> bool:
    """Whether steps with this many sequences each, the longest sequences first, make up this many rows."""
    sizes = batch_sizes.tolist()
    return bool(sizes) and sizes == sorted(sizes, reverse=True) and sizes[-1] > 0 and sum(sizes) == rows


def _check_features(layer: "Gated", x: Tensor) -> None:
    if x.size(-1) != layer.input_size:
        raise G2Error(
            f"the input must have input_size={layer.input_size} features in its last dimension, got {x.size(-1)}"
        )
    dtype = layer.dtype
    if not x.is_floating_point():
        raise G2Error(f"the input must hold floating-point numbers, got {x.dtype}; convert it: input.to({dtype})")
    if x.dtype != dtype and not is_autocast(x):
        raise G2Error(
            f"the input is {x.dtype}, but the weights are {dtype}; "
            f"convert one of them: input.to({dtype}) or layer.to({x.dtype})"
        )


def _states(layer: "Gated", hx: Any, x: Tensor, batch: int, is_batched: bool) -> States:
    """The first states, (L * D, B, features); zero if none are given."""
    letters, stacked = layer.kind.states, layer.num_layers * layer.directions
    widths = (layer.proj_size or layer.hidden_size, layer.hidden_size)
    if hx is None:
        shapes = [(stacked, batch, width) for _, width in zip(letters, widths, strict=False)]
        return tuple(torch.zeros(shape, dtype=x.dtype, device=x.device) for shape in shapes)
    given = (hx,) if len(letters) == 1 else hx
    if not isinstance(given, tuple | list) or len(given) != len(letters) or not isinstance(given[0], Tensor):
        expected = "two tensors, (h, c)" if len(letters) == 2 else "one tensor, h"
        raise G2Error(f"the first states must be {expected}, got {type(hx).__name__}")
    for name, state, width in zip(letters, given, widths, strict=False):
        if state.dtype != x.dtype and not is_autocast(x):
            raise G2Error(f"the first state {name} is {state.dtype}, but the input is {x.dtype}; convert one of them")
        if state.device != x.device:
            raise G2Error(
                f"the first state {name} is on {state.device}, but the input is on {x.device}; move one of them"
            )
        sizes = [("layers * directions", stacked)] * (not layer.is_cell) + [("batch", batch)] * is_batched
        sizes.append(("features", width))
        expected_shape = tuple(size for _, size in sizes)
        if tuple(state.shape) != expected_shape:
            raise G2Error(
                f"the first state {name} must have shape {expected_shape}, that is "
                f"({', '.join(what for what, _ in sizes)}), got {tuple(state.shape)}"
            )
    states = tuple(state.unsqueeze(0) for state in given) if layer.is_cell else tuple(given)
    return states if is_batched else tuple(state.unsqueeze(1) for state in states)


def is_autocast(x: Tensor) -> bool:
    """Whether the caller's autocast wants this computed in its own dtype; as in torch, float64 is left alone."""
    device = x.device.type  # torch raises for "meta", and older ones cannot compile `is_autocast_available`
    return device != "meta" and torch.is_autocast_enabled(device) and x.dtype != torch.float64


def arrange_noise(layer: "Gated", noise: Sequence[Tensor], arranged: Arranged) -> list[Tensor]:
    """Checks noise that the caller gave, and brings it into the form of the arranged input; it gets no gradient."""
    if not layer.training:
        raise G2Error("noise was given to a layer in evaluation mode, where gates have none; call layer.train() first")
    if layer.method not in NOISY_METHODS:
        raise G2Error(f"noise was given to a layer with method {layer.method!r}; only 'gumbel' and 'binary' have noise")
    expected_count = layer.num_layers * layer.directions
    if len(noise) != expected_count:
        raise G2Error(f"noise must be {expected_count} tensors, one per layer and direction, got {len(noise)}")
    arranged_shape = (*arranged.x.shape[:-1], len(layer.kind.sampled[layer.gates]) * layer.hidden_size)
    expected = arranged_shape[1:] if arranged.is_cell else arranged_shape
    expected = expected if arranged.is_batched else (*expected[:-2], expected[-1])
    for index, tensor in enumerate(noise):
        if tuple(tensor.shape) != expected:
            raise G2Error(f"noise[{index}] must have shape {expected}, got {tuple(tensor.shape)}")
        if tensor.device != arranged.x.device:
            raise G2Error(
                f"noise[{index}] is on {tensor.device}, but the input is on {arranged.x.device}; move one of them"
            )
        may_be_soft = layer.method == "binary" and layer.soft_rate > 0  # where it is infinite
        if not (tensor.isfinite() | (tensor.isposinf() & may_be_soft)).all():
            raise G2Error(f"noise[{index}] must be finite; torch.rand(...).logit() can return -inf: draw it again")
    return [tensor.detach().reshape(arranged_shape) for tensor in noise]
