"""Recurrent layers as sessions and exports read them: the encoded weights of each gate, in one form for all."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from g2lstm.compression.encodings import Dense, Encoding
from g2lstm.compression.recurrent import LETTERS_OF, CompressedRecurrent
from g2lstm.compression.session import Layer, Term
from g2lstm.nn.gate import GateRule
from g2lstm.nn.gated import Gated
from g2lstm.nn.survey import TWINS, kind_of, why_not


class Weight(NamedTuple):
    """A weight matrix of a model.

    Attributes:
        name: in the model.
        encoding: (N, K).
        factor: the matrix is multiplied by this, for example 1 / tau.
    """

    name: str
    encoding: Encoding
    factor: float = 1.0


class LayerWeights(NamedTuple):
    """One recurrent layer in one direction, as it computes in evaluation.

    Attributes:
        w_x, w_h: the matrices (H, I) and (H, R) of the gates i, f, g, o, or r, z, n.
        b_x, b_h: (4H,) or (3H,), without the factors of the gates; 0 if the layer has none.
        w_r: (R, H), the projection.
        hard: the gates that are 1[a >= 0] instead of a sigmoid.
    """

    w_x: list[Weight]
    w_h: list[Weight]
    b_x: NDArray[np.float32]
    b_h: NDArray[np.float32]
    w_r: Weight | None
    hard: str

    @property
    def hidden(self) -> int:
        """The hidden size, H."""
        return len(self.b_x) // len(self.w_x)

    @property
    def width(self) -> int:
        """The width of the output, R."""
        return self.hidden if self.w_r is None else self.w_r.encoding.shape[0]

    @property
    def row_factors(self) -> NDArray[np.float32]:
        """The factor of each row of all gates."""
        return np.repeat(np.array([weight.factor for weight in self.w_x], np.float32), self.hidden)


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
    letters = LETTERS_OF[kind.name]
    factors = rule.row_scale(1, torch.empty(0, dtype=torch.float64, device="cpu")).tolist()

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

    directions = ("", "_reverse") if not is_cell and layer.bidirectional else ("",)
    for end in [""] if is_cell else [f"_l{k}{direction}" for k in range(layer.num_layers) for direction in directions]:
        projection = f"weight_hr{end}"
        yield LayerWeights(
            matrices(f"weight_ih{end}"),
            matrices(f"weight_hh{end}"),
            bias(f"bias_ih{end}"),
            bias(f"bias_hh{end}"),
            Weight(f"{prefix}{projection}", Dense(floats(projection))) if getattr(layer, "proj_size", 0) else None,
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
    layers = []
    for one in layer_weights(layer):
        is_gru = len(one.w_x) == 3
        terms = [Term(weight.encoding, "x", gate, weight.factor) for gate, weight in enumerate(one.w_x)]
        # The candidate of a GRU is the only gate that has its two products apart.
        gates = (0, 1, 3) if is_gru else range(4)
        terms += [Term(weight.encoding, "h", gate, weight.factor) for gate, weight in zip(gates, one.w_h, strict=True)]
        bias = (one.b_x + one.b_h) * one.row_factors
        if is_gru:
            bias = np.concatenate([bias[: 2 * one.hidden], one.b_x[2 * one.hidden :], one.b_h[2 * one.hidden :]])
        layers.append(Layer(one.w_x[0].encoding.shape[1], tuple(terms), bias, is_gru=is_gru))
    return layers, "if" if one.hard == "rz" else one.hard
