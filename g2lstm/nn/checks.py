"""Checks what callers hand to a layer, and brings every form of input into one: time first, states given."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from g2lstm.errors import G2Error
from g2lstm.nn.gate import EVAL_GATES, NOISY_GATES, Gates, GateValues
from g2lstm.nn.layer import LayerOutput

if TYPE_CHECKING:
    from g2lstm.nn.lstm import GatedLSTM

METHODS = ("gumbel", "sigmoid", "sharpened")
BACKENDS = ("auto", "reference", "stock", "native")
OPTIONS = ("method", "tau", "noise_rate", "gates", "eval_gate", "weight_dropout", "backend")
_CHOICES = {"method": METHODS, "gates": tuple(NOISY_GATES), "eval_gate": EVAL_GATES, "backend": BACKENDS}


def checked_option(name: str, value: Any) -> str | float:
    """The value of one of `OPTIONS`; raises if it is not allowed."""
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            names = ", ".join(repr(choice) for choice in _CHOICES[name])
            raise G2Error(f"{name} must be one of {names}, got {value!r}")
        return str(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise G2Error(f"{name} must be a number, got {value!r}")
    number = float(value)
    if name == "tau" and not 0 < number < math.inf:
        raise G2Error(f"tau, the temperature, must be a finite number above 0, got {number}; the paper uses 0.9")
    if name == "noise_rate" and not 0 <= number <= 1:
        raise G2Error(f"noise_rate is a probability and must lie in [0, 1], got {number}; the paper uses 0.2")
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
    h: Tensor  # (L * D, B, R)
    c: Tensor  # (L * D, B, H)
    batch_sizes: Tensor | None
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None
    is_batched: bool
    batch_first: bool

    def restore(self, result: LayerOutput) -> tuple[Tensor | PackedSequence, tuple[Tensor, Tensor]]:
        """The output and the last states as the caller expects them."""
        out, h, c = result
        if self.batch_sizes is not None:
            packed = PackedSequence(out, self.batch_sizes, self.sorted_indices, self.unsorted_indices)
            if self.unsorted_indices is not None:
                h, c = h.index_select(1, self.unsorted_indices), c.index_select(1, self.unsorted_indices)
            return packed, (h, c)
        if not self.is_batched:
            return out.squeeze(1), (h.squeeze(1), c.squeeze(1))
        return out.transpose(0, 1) if self.batch_first else out, (h, c)

    def restore_gates(self, values: Sequence[GateValues], training: bool) -> Gates:
        """The gates of all layers and directions in the shape that callers see."""
        lengths = None

        def shaped(tensor: Tensor) -> Tensor:
            nonlocal lengths
            if self.batch_sizes is not None:
                packed = PackedSequence(tensor, self.batch_sizes, None, self.unsorted_indices)
                tensor, lengths = pad_packed_sequence(packed, padding_value=float("nan"))
                return tensor
            return tensor if self.is_batched else tensor.squeeze(1)

        i, f, g, o = (tuple(shaped(value[gate]) for value in values) for gate in range(4))
        return Gates(input=i, forget=f, candidate=g, output=o, lengths=lengths, training=training)


def arrange(layer: "GatedLSTM", input: Tensor | PackedSequence, hx: tuple[Tensor, Tensor] | None) -> Arranged:
    """Checks input and states, and lays them out time first."""
    batch_sizes = sorted_indices = unsorted_indices = None
    is_batched, batch_first = True, False
    if isinstance(input, PackedSequence):
        x, batch_sizes, sorted_indices, unsorted_indices = input
        if batch_sizes.dtype != torch.int64 or not (torch.compiler.is_compiling() or _fit(batch_sizes, len(x))):
            raise G2Error(
                f"a PackedSequence needs int64 batch_sizes that never grow and sum to its {len(x)} rows, got "
                f"{batch_sizes}; make it with torch.nn.utils.rnn.pack_sequence or pack_padded_sequence"
            )
        batch = int(batch_sizes[0])
    else:
        if not isinstance(input, Tensor):
            raise G2Error(f"the input must be a tensor or a PackedSequence, got {type(input).__name__}")
        if input.dim() not in (2, 3):
            raise G2Error(
                "the input must have 3 dimensions, or 2 if unbatched, or be a PackedSequence; "
                f"got shape {tuple(input.shape)}"
            )
        is_batched = input.dim() == 3
        batch_first = layer.batch_first and is_batched
        x = input.unsqueeze(1) if not is_batched else input.transpose(0, 1) if batch_first else input
        if x.size(0) == 0:
            raise G2Error(f"the sequence must have at least one step, got an input of shape {tuple(input.shape)}")
        batch = x.size(1)
    _check_features(layer, x)
    if hx is None:
        h, c = (torch.zeros(_state_shape(layer, name, batch), dtype=x.dtype, device=x.device) for name in "hc")
    else:
        h, c = _checked_states(layer, hx, x, batch if is_batched else None)
        if not is_batched:
            h, c = h.unsqueeze(1), c.unsqueeze(1)
        if sorted_indices is not None:
            h, c = h.index_select(1, sorted_indices), c.index_select(1, sorted_indices)
    return Arranged(x, h, c, batch_sizes, sorted_indices, unsorted_indices, is_batched, batch_first)


def _fit(batch_sizes: Tensor, rows: int) -> bool:
    """Whether steps with this many sequences each, the longest sequences first, make up this many rows."""
    sizes = batch_sizes.tolist()
    return bool(sizes) and sizes == sorted(sizes, reverse=True) and sizes[-1] > 0 and sum(sizes) == rows


def _check_features(layer: "GatedLSTM", x: Tensor) -> None:
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


def _checked_states(layer: "GatedLSTM", hx: Any, x: Tensor, batch: int | None) -> tuple[Tensor, Tensor]:
    """The two first states; `batch` is None if they have no such dimension."""
    if not isinstance(hx, tuple | list) or len(hx) != 2:
        raise G2Error(f"the first states must be two tensors, (h, c), got {type(hx).__name__}")
    for name, state in zip("hc", hx, strict=True):
        if state.dtype != x.dtype and not is_autocast(x):
            raise G2Error(f"the first state {name} is {state.dtype}, but the input is {x.dtype}; convert one of them")
        if state.device != x.device:
            raise G2Error(
                f"the first state {name} is on {state.device}, but the input is on {x.device}; move one of them"
            )
        expected = _state_shape(layer, name, batch)
        if tuple(state.shape) != expected:
            raise G2Error(
                f"the first state {name} must have shape {expected}, that is (layers * directions, "
                f"{'' if batch is None else 'batch, '}features), got {tuple(state.shape)}"
            )
    h, c = hx
    return h, c


def _state_shape(layer: "GatedLSTM", name: str, batch: int | None) -> tuple[int, ...]:
    stacked, width = layer.num_layers * layer.directions, layer.hidden_size
    if name == "h" and layer.proj_size:
        width = layer.proj_size
    return (stacked, width) if batch is None else (stacked, batch, width)


def is_autocast(x: Tensor) -> bool:
    """Whether the caller's autocast wants this computed in its own dtype; as in torch, float64 is left alone."""
    device = x.device.type  # torch raises for "meta", and older ones cannot compile `is_autocast_available`
    return device != "meta" and torch.is_autocast_enabled(device) and x.dtype != torch.float64


def arrange_noise(layer: "GatedLSTM", noise: Sequence[Tensor], arranged: Arranged) -> list[Tensor]:
    """Checks noise that the caller gave, and brings it into the form of the arranged input; it gets no gradient."""
    if not layer.training:
        raise G2Error("noise was given to a layer in evaluation mode, where gates have none; call layer.train() first")
    if layer.method != "gumbel":
        raise G2Error(f"noise was given to a layer with method {layer.method!r}; only 'gumbel' has noise")
    expected_count = layer.num_layers * layer.directions
    if len(noise) != expected_count:
        raise G2Error(f"noise must be {expected_count} tensors, one per layer and direction, got {len(noise)}")
    steps = arranged.x.shape[:-1] if arranged.is_batched else arranged.x.shape[:1]
    expected = (*steps, NOISY_GATES[layer.gates] * layer.hidden_size)
    for index, tensor in enumerate(noise):
        if tuple(tensor.shape) != expected:
            raise G2Error(f"noise[{index}] must have shape {expected}, got {tuple(tensor.shape)}")
        if tensor.device != arranged.x.device:
            raise G2Error(
                f"noise[{index}] is on {tensor.device}, but the input is on {arranged.x.device}; move one of them"
            )
        if not tensor.isfinite().all():
            raise G2Error(f"noise[{index}] must be finite; torch.rand(...).logit() can return -inf: draw it again")
    return [tensor.detach() if arranged.is_batched else tensor.detach().unsqueeze(1) for tensor in noise]
