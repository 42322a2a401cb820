"""Gate values for people to look at: computed from a layer's input and output, whichever backend ran it."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from g2lstm.nn.gate import GateRule, GateValues
from g2lstm.nn.layer import Weights, previous_rows, step_rows


@dataclass(frozen=True)
class Gates:
    """The gates of one forward call.

    Attributes:
        input, forget, candidate, output: one (T, B, H) tensor per layer and direction, in the order of
            `torch.nn.LSTM`: l0, l0_reverse, l1, ...; (T, H) for an unbatched input. The gates of a PackedSequence are
            NaN after a sequence's end.
        lengths: (B,) of a PackedSequence's sequences; None where all have the full length.
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
        parts = (self.input, self.forget, self.candidate, self.output)
        i, f, g, o = (tuple(tensor.detach() for tensor in part) for part in parts)
        return Gates(i, f, g, o, self.lengths, self.training)

    def known(self, is_token: Tensor) -> "Gates":
        """The same values, NaN where a batch is only padding; for calls whose sequences were padded, not packed.

        Args:
            is_token: (T, B), truth values.
        """
        padding = is_token.logical_not().unsqueeze(-1)
        parts = (self.input, self.forget, self.candidate, self.output)
        i, f, g, o = (tuple(tensor.masked_fill(padding, torch.nan) for tensor in part) for part in parts)
        return Gates(i, f, g, o, is_token.sum(0), self.training)


def gate_values(
    x: Tensor,
    out: Tensor,
    h0: Tensor,
    weights: Weights,
    rule: GateRule,
    noise: Tensor | None,
    batch_sizes: Tensor | None,
    backwards: bool,
) -> GateValues:
    """The gates of one layer in one direction, from what went in and what came out: a product over all steps.

    Args:
        x: (T, B, I) or (N, I).
        out: (T, B, R) or (N, R), this direction's output, which holds every h that the gates saw.
        h0: (B, R).
        weights: as they were used, DropConnect included.
        rule: as it was used.
        noise: as it was used.
        batch_sizes: of a packed input.
        backwards: whether this direction runs from the last step to the first.
    """
    if batch_sizes is not None:
        before, _ = previous_rows(*step_rows(len(h0), len(batch_sizes), batch_sizes, backwards), len(h0))
        h_before = torch.cat([h0, out])[before.to(out.device)]
    elif backwards:
        h_before = torch.cat([out[1:], h0.unsqueeze(0)])
    else:
        h_before = torch.cat([h0.unsqueeze(0), out[:-1]])
    return rule(weights.from_x(x) + weights.from_h(h_before), noise)


def collect(
    values: list[GateValues],
    batch_sizes: Tensor | None,
    unsorted_indices: Tensor | None,
    is_batched: bool,
    training: bool,
) -> Gates:
    """Brings the gates of all layers and directions into the shape that callers see."""
    lengths = None

    def shaped(tensor: Tensor) -> Tensor:
        nonlocal lengths
        if batch_sizes is not None:
            packed = PackedSequence(tensor, batch_sizes, None, unsorted_indices)
            tensor, lengths = pad_packed_sequence(packed, padding_value=float("nan"))
            return tensor
        return tensor if is_batched else tensor.squeeze(1)

    parts = [tuple(shaped(value[gate]) for value in values) for gate in range(4)]
    i, f, g, o = parts
    return Gates(input=i, forget=f, candidate=g, output=o, lengths=lengths, training=training)
