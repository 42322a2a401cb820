"""Recurrent layers of torch, ours and compressed ones, as sessions and exports read them: gate by gate."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from g2lstm.compression.encodings import Dense, Encoding
from g2lstm.compression.gate_weights import LayerWeights as LayerWeights
from g2lstm.compression.gate_weights import Weight as Weight
from g2lstm.compression.recurrent import CompressedRecurrent
from g2lstm.compression.session import Layer
from g2lstm.nn.gate import GateRule
from g2lstm.nn.gated import Gated
from g2lstm.nn.kind import gate_factors
from g2lstm.nn.survey import TWINS, kind_of, why_not


def layer_weights(layer: Any, prefix: str = "") -> Iterator[LayerWeights]:
    """The layers of an LSTM, a GRU or a cell in its present mode, each direction by itself.

    Dense matrices are copied in float32.

    Args:
        layer: torch's, ours or compressed; in evaluation mode.
        prefix: goes before the names of its weights.
    """
    is_cell = isinstance(layer, nn.RNNCellBase)
    kind = kind_of(layer)
    rule = layer.gate_rule() if isinstance(layer, Gated) else GateRule(gates=next(iter(kind.sampled)))
    letters = kind.letters
    factors = gate_factors(rule.gates, rule.tau)

    def floats(name: str) -> NDArray[np.float32]:
        values: NDArray[np.float32] = getattr(layer, name).detach().to("cpu", torch.float32, copy=True).numpy()
        return values

    def bias(name: str) -> NDArray[np.float32]:
        return floats(name) if layer.bias else np.zeros(len(letters) * layer.hidden_size, np.float32)

    def matrices(name: str) -> list[Weight]:
        gates: list[Encoding]
        if isinstance(layer, CompressedRecurrent):
            gates = layer.encodings(name)
        else:
            gates = [Dense(rows) for rows in np.split(floats(name), len(letters))]
        each = zip(letters, gates, factors, strict=True)
        return [Weight(f"{prefix}{name}.{letter}", one, factor) for letter, one, factor in each]

    def project(name: str) -> Encoding:
        is_encoded = isinstance(layer, CompressedRecurrent) and name not in layer._parameters
        return layer.encodings(name)[0] if is_encoded else Dense(floats(name))

    directions = ("", "_reverse") if not is_cell and layer.bidirectional else ("",)
    for end in [""] if is_cell else [f"_l{k}{direction}" for k in range(layer.num_layers) for direction in directions]:
        projection = f"weight_hr{end}"
        yield LayerWeights(
            matrices(f"weight_ih{end}"),
            matrices(f"weight_hh{end}"),
            bias(f"bias_ih{end}"),
            bias(f"bias_hh{end}"),
            Weight(f"{prefix}{projection}", project(projection)) if getattr(layer, "proj_size", 0) else None,
            rule.gates if rule.hard else "",
        )


def why_no_session(layer: nn.Module) -> str | None:
    """Why a session can't read a layer from packed weights; None if it can."""
    if not isinstance(layer, tuple(TWINS)):
        return f"only LSTMs, GRUs and cells have packed weights, got {type(layer).__name__}"
    if getattr(layer, "bidirectional", False):
        return "its second direction begins at the end of the sequence"
    if getattr(layer, "proj_size", 0):
        return "it has a projection"
    return why_not(layer)


def session_layers(layer: nn.Module) -> tuple[list[Layer], str]:
    """The layers of an LSTM, a GRU or a cell in evaluation mode as a session takes them, and its hard gates."""
    each = list(layer_weights(layer))
    return [one.session_layer() for one in each], each[0].session_hard
