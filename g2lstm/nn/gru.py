"""`G2GRU`: a drop-in `torch.nn.GRU` whose reset and update gates learn to be 0 or 1."""

from typing import Unpack

import torch
from torch import nn

from g2lstm.nn.gate import GRU
from g2lstm.nn.gated import GateOptions, WithParameters
from g2lstm.nn.stand_in import StandIn, remade


class G2GRU(WithParameters, StandIn, nn.RNNBase):
    """A gated recurrent unit with Gumbel gates; parameters, inputs and outputs are those of `torch.nn.GRU`.

    It is to `torch.nn.GRU` what `G2LSTM` is to `torch.nn.LSTM`; its reset and update gates are sampled. It has the
    arguments of `torch.nn.GRU`, and the options of `G2LSTM`, of which `gates` can only be "rz".
    """

    kind = GRU
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
