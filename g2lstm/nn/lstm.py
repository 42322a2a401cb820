"""`G2LSTM`: a drop-in `torch.nn.LSTM` whose input and forget gates learn to be 0 or 1."""

from typing import Unpack

import torch
from torch import nn

from g2lstm.nn.checks import check_projection
from g2lstm.nn.gate import LSTM
from g2lstm.nn.gated import Gated, GateOptions, WithParameters
from g2lstm.nn.stand_in import StandIn, remade


class GatedLSTM(Gated):
    """An LSTM with our gates: `G2LSTM` has parameters, a compressed layer decodes its weights."""

    kind = LSTM

    def to_lstm(self) -> nn.LSTM:
        """A `torch.nn.LSTM` with the same output in evaluation; its weights are copies."""
        raise NotImplementedError


class G2LSTM(WithParameters, GatedLSTM, StandIn, nn.RNNBase):
    """Long short-term memory with Gumbel gates; parameters, inputs and outputs are those of `torch.nn.LSTM`.

    While training, the input and forget gates are sampled: sigmoid((a + noise) / tau) with logistic noise, which pushes
    them towards 0 and 1. In evaluation there is no noise, and by default no temperature: the layer then *is* the
    `torch.nn.LSTM` with the same weights. To `isinstance`, it is one in every mode.

    Args:
        input_size: features of the input.
        hidden_size: units, H.
        num_layers: how many layers are stacked.
        bias: whether the gates have biases.
        batch_first: whether input and output are (B, T, features) instead of (T, B, features); states stay the same.
        dropout: probability of dropout between layers, while training.
        bidirectional: whether a second direction reads from the end; outputs are joined.
        proj_size: width of a projection of h; 0 for no projection.
        device: of the parameters.
        dtype: of the parameters.
        **options: these keyword arguments, which may also be set later, as attributes:

            - `method`: "gumbel" (the default, the paper's G2), "binary" (gates are 0 or 1 in training too, with the
              gradient of "gumbel": `1[a + noise >= 0]`), "sigmoid" (a plain LSTM) or "sharpened" (temperature without
              noise, in training and in evaluation).
            - `tau`: temperature; 0.9 for "gumbel", 0.5 for "binary" and 0.2 for "sharpened" unless given. "sigmoid" has
              none.
            - `noise_rate`: probability that a gate element gets noise, in [0, 1]; 0.2 as in the paper's experiments.
            - `soft_rate`: probability that an element of a "binary" gate stays soft in training, in [0, 1]; 0 unless
              given. `GateSchedule` lets it fall from 1 to 0.
            - `gates`: which gates are pushed towards 0 or 1: "if", or "ifo" to include the output gate.
            - `eval_gate`: in evaluation, "soft" sigmoid(a), "tempered" sigmoid(a / tau) or "hard" 1[a >= 0]; "hard" for
              "binary" and "soft" for others unless given.
            - `weight_dropout`: DropConnect, the probability of dropping a recurrent weight for one forward call.
            - `backend`: "auto", "native" (CPU kernel), "stock" (torch's fused LSTM) or "reference" (a plain loop).
    """

    stands_for = nn.LSTM

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        check_projection(hidden_size, proj_size)
        shape = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        super().__init__("LSTM", *shape, device, dtype)
        self.set_options(**options)

    def to_lstm(self) -> nn.LSTM:
        """A `torch.nn.LSTM` with the same output in evaluation; its weights are copies."""
        from g2lstm.nn.convert import to_torch

        return to_torch(self, nn.LSTM)

    @classmethod
    def from_lstm(cls, lstm: nn.LSTM, **options: Unpack[GateOptions]) -> "G2LSTM":
        """A `G2LSTM` with the same output in evaluation as `lstm`; its weights are copies.

        Args:
            lstm: the layer to start from.
            **options: this class's own arguments: method, tau, noise_rate, ... With eval_gate "hard" the output
                differs, since `torch.nn.LSTM` has no hard gates.
        """
        from g2lstm.nn.convert import from_torch

        return from_torch(lstm, cls, **options)


torch.serialization.add_safe_globals([G2LSTM, remade])
