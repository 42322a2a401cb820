"""`LayerWeights`: the encoded weights of a recurrent layer, gate by gate, in one form for sessions and exports."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression.encodings import Encoding
from g2lstm.compression.session import Layer, Term


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

    def terms(self) -> tuple[list[Term], NDArray[np.float32]]:
        """The products and the bias (4H,) that the pre-activations are made of."""
        is_gru = len(self.w_x) == 3
        terms = [Term(weight.encoding, "x", gate, weight.factor) for gate, weight in enumerate(self.w_x)]
        # The candidate of a GRU is the only gate that has its two products apart.
        gates = (0, 1, 3) if is_gru else range(4)
        terms += [Term(weight.encoding, "h", gate, weight.factor) for gate, weight in zip(gates, self.w_h, strict=True)]
        with np.errstate(over="ignore"):  # whoever computes with infinity says so
            bias = (self.b_x + self.b_h) * self.row_factors
        if is_gru:
            bias = np.concatenate([bias[: 2 * self.hidden], self.b_x[2 * self.hidden :], self.b_h[2 * self.hidden :]])
        return terms, bias

    def session_layer(self, residual: bool = False) -> Layer:
        """The layer as a session takes it."""
        terms, bias = self.terms()
        return Layer(self.w_x[0].encoding.shape[1], tuple(terms), bias, residual, is_gru=len(self.w_x) == 3)

    @property
    def session_hard(self) -> str:
        """The hard gates as a session calls them, which has i and f for the r and z of a GRU."""
        return "if" if self.hard == "rz" else self.hard
