"""`G2LSTMCell` and `G2GRUCell`: one step at a time, as drop-ins for torch's cells.

A cell is a layer whose sequences have one step: noise and DropConnect are drawn anew at each call.
"""

from typing import Any, Self, Unpack

import torch
from torch import nn

from g2lstm.nn.gate import GRU, LSTM
from g2lstm.nn.gated import Gated, GateOptions, WithParameters


class GatedCell(Gated):
    """A cell with our gates, wherever its weights come from."""

    is_cell = True
    num_layers, batch_first, dropout, bidirectional, proj_size = 1, False, 0.0, False, 0


class _Cell(GatedCell, WithParameters):
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.set_options(**options)

    def to_cell(self) -> Any:
        """Torch's cell with the same output in evaluation; its weights are copies."""
        from g2lstm.nn.convert import to_torch
        from g2lstm.nn.survey import twin_of

        return to_torch(self, twin_of(self))

    @classmethod
    def from_cell(cls, cell: nn.RNNCellBase, **options: Unpack[GateOptions]) -> Self:
        """A cell with the same output in evaluation as torch's `cell`; its weights are copies."""
        from g2lstm.nn.convert import from_torch

        return from_torch(cell, cls, **options)

    @property
    def _all_weights(self) -> list[list[str]]:  # type: ignore[override]
        return [["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if self.bias else [])]]


class G2LSTMCell(_Cell, nn.LSTMCell):
    """One step of a `G2LSTM`; parameters, inputs and outputs are those of `torch.nn.LSTMCell`.

    Args:
        input_size: features of the input.
        hidden_size: units, H.
        bias: whether the gates have biases.
        device: of the parameters.
        dtype: of the parameters.
        **options: those of `G2LSTM`.
    """

    kind = LSTM


class G2GRUCell(_Cell, nn.GRUCell):
    """One step of a `G2GRU`; arguments, parameters, inputs and outputs are those of `torch.nn.GRUCell`.

    Args:
        **options: those of `G2GRU`.
    """

    kind = GRU


torch.serialization.add_safe_globals([G2LSTMCell, G2GRUCell])
