"""Checks what callers hand to a layer, and brings every form of input into one: time first, states given."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from g2lstm.errors import G2Error
from g2lstm.nn.backends import BACKENDS
from g2lstm.nn.gate import EVAL_GATES, NOISY_GATES
from g2lstm.nn.layer import LayerOutput

if TYPE_CHECKING:
    from g2lstm.nn.lstm import G2LSTM

METHODS = ("gumbel", "sigmoid", "sharpened")
_CHOICES = {"method": METHODS, "gates": tuple(NOISY_GATES), "eval_gate": EVAL_GATES, "backend": BACKENDS}


def check_options(options: Mapping[str, Any], hidden_size: int, proj_size: int) -> None:
    """Raises for the first option that cannot be."""
    for name, allowed in _CHOICES.items():
        if options[name] not in allowed:
            names = ", ".join(repr(choice) for choice in allowed)
            raise G2Error(f"{name} must be one of {names}, got {options[name]!r}")
    tau = _number("tau", options["tau"])
    if not 0 < tau < math.inf:
        raise G2Error(f"tau, the temperature, must be a finite number above 0, got {tau}; the paper uses 0.9")
    rate = _number("noise_rate", options["noise_rate"])
    if not 0 <= rate <= 1:
        raise G2Error(f"noise_rate is a probability and must lie in [0, 1], got {rate}; the paper uses 0.2")
    drop = _number("weight_dropout", options["weight_dropout"])
    if not 0 <= drop < 1:
        raise G2Error(f"weight_dropout is a probability and must lie in [0, 1), got {drop}; AWD-LSTM uses 0.5")
    if isinstance(proj_size, int) and isinstance(hidden_size, int) and not 0 <= proj_size < max(hidden_size, 1):
        raise G2Error(f"proj_size must be 0 (no projection) or smaller than hidden_size={hidden_size}, got {proj_size}")


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise G2Error(f"{name} must be a number, got {value!r}")
    return float(value)


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


def arrange(layer: "G2LSTM", input: Tensor | PackedSequence, hx: tuple[Tensor, Tensor] | None) -> Arranged:
    """Checks input and states, and lays them out time first."""
    if isinstance(input, PackedSequence):
        x, batch_sizes, sorted_indices, unsorted_indices = input
        batch, is_batched, batch_first = int(batch_sizes[0]), True, False
    else:
        x, batch_sizes, sorted_indices, unsorted_indices = input, None, None, None
        if x.dim() not in (2, 3):
            raise G2Error(
                "the input must have 3 dimensions, or 2 if unbatched, or be a PackedSequence; "
                f"got one of shape {tuple(x.shape)}"
            )
        is_batched, batch_first = x.dim() == 3, layer.batch_first and x.dim() == 3
        if not is_batched:
            x = x.unsqueeze(1)
        elif batch_first:
            x = x.transpose(0, 1)
        if x.size(0) == 0:
            raise G2Error(f"the sequence must have at least one step, got an input of shape {tuple(input.shape)}")
        batch = x.size(1)
    _check_features(layer, x)
    width = layer.proj_size or layer.hidden_size
    stacked = layer.num_layers * layer.directions
    if hx is None:
        h = torch.zeros(stacked, batch, width, dtype=x.dtype, device=x.device)
        c = torch.zeros(stacked, batch, layer.hidden_size, dtype=x.dtype, device=x.device)
    else:
        h, c = hx
        for name, state, size in (("h", h, width), ("c", c, layer.hidden_size)):
            expected = (stacked, batch, size) if is_batched else (stacked, size)
            if tuple(state.shape) != expected:
                raise G2Error(
                    f"the first state {name} must have shape {expected}, that is (layers * directions, "
                    f"{'batch, ' if is_batched else ''}features), got {tuple(state.shape)}"
                )
        if not is_batched:
            h, c = h.unsqueeze(1), c.unsqueeze(1)
        if sorted_indices is not None:
            h, c = h.index_select(1, sorted_indices), c.index_select(1, sorted_indices)
    return Arranged(x, h, c, batch_sizes, sorted_indices, unsorted_indices, is_batched, batch_first)


def _check_features(layer: "G2LSTM", x: Tensor) -> None:
    if x.size(-1) != layer.input_size:
        raise G2Error(
            f"the input must have input_size={layer.input_size} features in its last dimension, got {x.size(-1)}"
        )
    dtype = layer.weight_ih_l0.dtype
    if x.dtype != dtype and not is_autocast(x):
        raise G2Error(
            f"the input is {x.dtype}, but the weights are {dtype}; "
            f"convert one of them: input.to({dtype}) or layer.to({x.dtype})"
        )


def is_autocast(x: Tensor) -> bool:
    """Whether the caller's autocast wants this computed in its own dtype; as in torch, float64 is left alone."""
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device) and x.dtype != torch.float64


def arrange_noise(layer: "G2LSTM", noise: Sequence[Tensor], arranged: Arranged) -> list[Tensor]:
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
    return [tensor.detach() if arranged.is_batched else tensor.detach().unsqueeze(1) for tensor in noise]
