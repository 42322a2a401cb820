"""`G2GRU`: a drop-in `torch.nn.GRU` whose reset and update gates learn to be 0 or 1."""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from g2lstm.nn.gate import GRU
from g2lstm.nn.gated import Gated, GateOptions, WithParameters
from g2lstm.nn.stand_in import StandIn, remade


class GatedGRU(Gated):
    """A GRU with our gates, wherever its weights come from."""

    kind = GRU

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: Tensor | None = None,
        *,
        return_gates: bool = False,
        noise: Sequence[Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Any:
        """Runs the layer as `torch.nn.GRU` does.

        Args:
            input: (T, B, I), (B, T, I) if batch_first, (T, I) unbatched, or a PackedSequence.
            hx: the first state (L * D, B, H), without B if unbatched; zero if not given.
            return_gates: also return the gate values.
            noise: the noise to use, one tensor per layer and direction, rate already applied: (T, B, 2H), or (N, 2H)
                for a PackedSequence; r then z. Only in training.
            generator: source of noise, DropConnect and dropout; torch's default generator if not given.

        Returns:
            output, h, and with `return_gates` also `Gates`.
        """
        output, (h,), gates = self._call(input, hx, return_gates, noise, generator)
        return (output, h, gates) if return_gates else (output, h)


class G2GRU(WithParameters, GatedGRU, StandIn, nn.RNNBase):
    """A gated recurrent unit with Gumbel gates; parameters, inputs and outputs are those of `torch.nn.GRU`.

    It is to `torch.nn.GRU` what `G2LSTM` is to `torch.nn.LSTM`; its reset and update gates are sampled.

    Args:
        input_size: features of the input.
        hidden_size: units, H.
        num_layers: how many layers are stacked.
        bias: whether the gates have biases.
        batch_first: whether input and output are (B, T, features) instead of (T, B, features); states stay the same.
        dropout: probability of dropout between layers, while training.
        bidirectional: whether a second direction reads from the end; outputs are joined.
        device: of the parameters.
        dtype: of the parameters.
        **options: those of `G2LSTM`; `gates` can only be "rz".
    """

    stands_for = nn.GRU

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        shape = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0)
        super().__init__("GRU", *shape, device, dtype)
        self.set_options(**options)

    def to_gru(self) -> nn.GRU:
        """A `torch.nn.GRU` with the same output in evaluation; its weights are copies."""
        from g2lstm.nn.convert import to_torch

        return to_torch(self, nn.GRU)

    @classmethod
    def from_gru(cls, gru: nn.GRU, **options: Unpack[GateOptions]) -> "G2GRU":
        """A `G2GRU` with the same output in evaluation as `gru`; its weights are copies."""
        from g2lstm.nn.convert import from_torch

        return from_torch(gru, cls, **options)


torch.serialization.add_safe_globals([G2GRU, remade])
