"""A stack of LSTM layers with encoded weights, reading one sequence step by step: what it is made of, and does."""

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from torch import Tensor

from g2lstm.compression.matrix import Encoded, LowRank
from g2lstm.errors import G2Error

Array: TypeAlias = NDArray[np.floating[Any]]

HARD = ("", "if", "ifo")  # which gates may be hard
MOST_UNITS = 2**24 - 1


@dataclass(frozen=True, eq=False)
class Term:
    """One product in the pre-activations of a layer.

    Attributes:
        matrix: (gates · H, columns), the rows of one or several whole gates.
        source: what it is multiplied with, the layer's input or its last output.
        gate: the first gate it adds to: 0, 1, 2, 3 for i, f, g, o.
        factor: multiplies the product, for example 1 / tau.
    """

    matrix: Encoded
    source: Literal["x", "h"]
    gate: int = 0
    factor: float = 1.0


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer: the sum of its terms and the bias are the pre-activations of i, f, g, o.

    Attributes:
        inputs: I, the width of x.
        terms: in any order; a gate without a term sees its bias alone.
        bias: (4H,) float32.
        residual: whether what comes out is x + h instead of h; I and H are equal then.
    """

    inputs: int
    terms: tuple[Term, ...]
    bias: NDArray[np.float32]
    residual: bool = False

    @property
    def hidden(self) -> int:
        """H, the width of h."""
        return len(self.bias) // 4

    def __post_init__(self) -> None:
        if self.bias.ndim != 1 or len(self.bias) % 4 or self.bias.dtype != np.float32:
            raise G2Error(f"the bias of a layer must be float32 (4H,), got {self.bias.dtype} {self.bias.shape}")
        if not 1 <= min(self.inputs, self.hidden) <= max(self.inputs, self.hidden) <= MOST_UNITS:
            raise G2Error(f"a layer has 1 to {MOST_UNITS} inputs and units, got {self.inputs} and {self.hidden}")
        if self.residual and self.inputs != self.hidden:
            raise G2Error(f"a residual layer has as many inputs as units, got {self.inputs} and {self.hidden}")
        for term in self.terms:
            if term.source not in ("x", "h"):
                raise G2Error(f"a term's source must be 'x' or 'h', got {term.source!r}")
            rows, columns = term.matrix.shape
            width = self.inputs if term.source == "x" else self.hidden
            gates, rest = divmod(rows, self.hidden)
            if columns != width or rest or not 0 <= term.gate < term.gate + gates <= 4:
                raise G2Error(
                    f"a term that starts at gate {term.gate} and reads {term.source} must have {width} columns, and "
                    f"{self.hidden} rows for each gate up to the fourth, got {rows} x {columns}"
                )
            if not np.isfinite(term.factor):
                raise G2Error(f"a term's factor must be finite, got {term.factor}")


@dataclass(frozen=True, eq=False)
class Softmax:
    """What may stand on top of the last layer: the logarithms of the probabilities of V outcomes.

    Attributes:
        matrix: (V, H of the last layer).
        bias: (V,) float32.
    """

    matrix: Encoded
    bias: NDArray[np.float32]

    def __post_init__(self) -> None:
        rows = self.matrix.shape[0]
        if self.bias.shape != (rows,) or self.bias.dtype != np.float32:
            raise G2Error(
                f"the bias of a softmax of {rows} rows must be float32 ({rows},), "
                f"got {self.bias.dtype} {self.bias.shape}"
            )
        if rows > MOST_UNITS:
            raise G2Error(f"a softmax has at most {MOST_UNITS} rows, got {rows}")


class Session(ABC):
    """Reads a sequence through a stack of layers, keeping h and c of each; they start at zero.

    `sequence` gives what as many calls of `step` would, exactly. Threads may share a session: one call follows another.

    Args:
        layers: the first reads x, each other the one before it.
        hard: the gates that are 1[a >= 0] instead of a sigmoid: "", "if" or "ifo".
        softmax: on top of the last layer; its log-probabilities are then what comes out, else the output of that layer.

    Attributes:
        inputs: I, the width of x.
        outputs: O, the width of what comes out.
        units: H of each layer.
    """

    def __init__(self, layers: Sequence[Layer], hard: str = "", softmax: Softmax | None = None) -> None:
        if not layers:
            raise G2Error("a session needs at least one layer, got none")
        for below, above in itertools.pairwise(layers):
            if above.inputs != below.hidden:
                raise G2Error(f"a layer of {above.inputs} inputs cannot read one of {below.hidden} units")
        if hard not in HARD:
            raise G2Error(f"hard gates must be one of {HARD}, got {hard!r}")
        self.inputs, self.units = layers[0].inputs, [layer.hidden for layer in layers]
        self.outputs, self.hard, self._lock = self.units[-1], hard, threading.Lock()
        if softmax is not None:
            self.outputs, columns = softmax.matrix.shape
            if columns != self.units[-1]:
                raise G2Error(f"a softmax of {columns} columns cannot read a layer of {self.units[-1]} units")

    def step(self, x: ArrayLike | Tensor) -> Array:
        """One step: x (I,), an array or a tensor, to an array (O,) of its own."""
        x = _array(x)
        if np.shape(x) != (self.inputs,):
            raise G2Error(f"a step takes a vector of shape ({self.inputs},), got {np.shape(x)}")
        return self._run(np.asarray(x)[None])[0]

    def sequence(self, x: ArrayLike | Tensor) -> Array:
        """Many steps: x (T, I) to (T, O)."""
        x = _array(x)
        shape = np.shape(x)
        if len(shape) != 2 or shape[1] != self.inputs:
            raise G2Error(f"a sequence has the shape (T, {self.inputs}), got {shape}")
        return self._run(np.asarray(x))

    def set_state(self, states: Sequence[tuple[ArrayLike | Tensor, ArrayLike | Tensor]]) -> None:
        """Puts h and c (H,) of each layer; the next step goes on from there."""
        got, wanted = [(np.shape(h), np.shape(c)) for h, c in states], [((H,), (H,)) for H in self.units]
        if got != wanted:
            raise G2Error(f"the states h and c of the layers have the shapes {wanted}, got {got}")
        self._set([np.asarray(_array(one)) for pair in states for one in pair])

    def reset(self) -> None:
        """Back to the beginning: all states zero."""
        self.set_state([(np.zeros(H), np.zeros(H)) for H in self.units])

    @abstractmethod
    def get_state(self) -> list[tuple[Array, Array]]:
        """Copies of h and c (H,) of each layer."""

    @abstractmethod
    def _run(self, x: NDArray[Any]) -> Array: ...

    @abstractmethod
    def _set(self, states: list[NDArray[Any]]) -> None: ...


class PlainSession(Session):
    """A session in numpy, for machines without the compiled kernel; in float64 it is what the kernel is tested against.

    Matrices are expanded once, but those of low rank stay two thin ones.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        hard: str = "",
        softmax: Softmax | None = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__(layers, hard, softmax)
        self._dtype = np.dtype(dtype)
        self._layers = [_Plain(layer, self._dtype) for layer in layers]
        self._softmax: tuple[list[Array], Array] | None = None
        if softmax is not None:
            self._softmax = _factors(softmax.matrix, self._dtype), softmax.bias.astype(self._dtype)
        self.reset()

    def get_state(self) -> list[tuple[Array, Array]]:
        """Copies of h and c (H,) of each layer."""
        with self._lock:
            return [(h.copy(), c.copy()) for h, c in self._states]

    def _set(self, states: list[NDArray[Any]]) -> None:
        own = [state.astype(self._dtype) for state in states]
        with self._lock:
            self._states = list(zip(own[::2], own[1::2], strict=True))

    def _run(self, x: NDArray[Any]) -> Array:
        out = np.empty((len(x), self.outputs), dtype=self._dtype)
        with self._lock:
            for t, value in enumerate(x.astype(self._dtype)):
                for k, layer in enumerate(self._layers):
                    self._states[k] = layer.step(value, *self._states[k], self.hard)
                    value = self._states[k][0] + value if layer.residual else self._states[k][0]
                out[t] = value if self._softmax is None else _log_softmax(*self._softmax, value)
        return out


class _Plain:
    """One layer: what each term is multiplied by, and the rows of the pre-activations that it adds to."""

    def __init__(self, layer: Layer, dtype: np.dtype[Any]) -> None:
        self.bias, self.residual = layer.bias.astype(dtype), layer.residual
        self.products: list[tuple[str, slice, list[Array]]] = []
        for term in layer.terms:
            first = term.gate * layer.hidden
            *right, left = _factors(term.matrix, dtype)
            rows = slice(first, first + len(left))
            self.products.append((term.source, rows, [*right, left * term.factor]))

    def step(self, x: Array, h: Array, c: Array, hard: str) -> tuple[Array, Array]:
        a = self.bias.copy()
        for source, rows, factors in self.products:
            a[rows] += _multiply(factors, x if source == "x" else h)
        i, f, g, o = a.reshape(4, -1)
        i, f, o = _open(i, "i" in hard), _open(f, "f" in hard), _open(o, "o" in hard)
        c = f * c + i * np.tanh(g)
        return o * np.tanh(c), c


def _array(x: ArrayLike | Tensor) -> ArrayLike:
    return x.numpy(force=True) if isinstance(x, Tensor) else x


def _factors(matrix: Encoded, dtype: np.dtype[Any]) -> list[Array]:
    """What a vector is multiplied with, one after the other: the matrix, or if it is of low rank its thin ones."""
    parts = [matrix.right, matrix.left] if isinstance(matrix, LowRank) else [matrix]
    return [part.dequantize().numpy(force=True).astype(dtype) for part in parts]


def _multiply(factors: list[Array], x: Array) -> Array:
    for factor in factors:
        x = factor @ x
    return x


def _log_softmax(factors: list[Array], bias: Array, x: Array) -> Array:
    logits: Array = _multiply(factors, x) + bias
    logits -= logits.max()
    return logits - np.log(np.exp(logits).sum())


def _open(a: Array, hard: bool) -> Array:
    if hard:
        return np.where(np.isnan(a), a, np.heaviside(a, 1).astype(a.dtype))
    return (1 + np.tanh(a / 2)) / 2  # without the overflow that exp has
