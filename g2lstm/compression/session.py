"""`Session`: layers with encoded weights that read step by step; `TokenSession`: one of them that reads token ids."""

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from g2lstm.compression.encodings import Encoding
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from torch import Tensor


Array: TypeAlias = NDArray[np.floating[Any]]
Vector: TypeAlias = "ArrayLike | Tensor"

HARD = ("", "if", "ifo")  # the gates that can be hard
MOST_UNITS = 2**24 - 1


@dataclass(frozen=True, eq=False)
class Term:
    """One product in the pre-activations of a layer.

    Attributes:
        matrix: (H, columns).
        source: the vector that it is multiplied by: the layer's input, or its last output.
        gate: the gate that it adds to; 0, 1, 2, 3 are i, f, g, o, in a GRU r, z, and the two parts of n from x and h.
        factor: the product is multiplied by this, for example 1 / tau.
    """

    matrix: Encoding
    source: Literal["x", "h"]
    gate: int = 0
    factor: float = 1.0


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer: its terms and its bias add up to the pre-activations of its gates.

    A softmax is a layer with one gate, whose pre-activations are the logits, and without a state.

    Attributes:
        inputs: I, the width of x.
        terms: in any order; a gate without a term has only its bias.
        bias: (gates · H,) float32.
        residual: whether the output is x + h instead of h, which needs I = H.
        gates: 4, or 1 for a softmax.
        is_gru: whether it is a GRU, whose only state is h, and not an LSTM.
    """

    inputs: int
    terms: tuple[Term, ...]
    bias: NDArray[np.float32]
    residual: bool = False
    gates: int = 4
    is_gru: bool = False

    @classmethod
    def softmax(cls, matrix: Encoding, bias: NDArray[np.float32]) -> Self:
        """A softmax with a matrix (V, H of the layer below) and a bias (V,)."""
        return cls(matrix.shape[1], (Term(matrix, "x"),), bias, gates=1)

    @property
    def hidden(self) -> int:
        """The hidden size, H; the number of outcomes of a softmax."""
        return len(self.bias) // self.gates

    def __post_init__(self) -> None:
        if self.bias.ndim != 1 or len(self.bias) % self.gates or self.bias.dtype != np.float32:
            width = "4H" if self.gates == 4 else "V"
            raise G2Error(f"the bias of a layer must be float32 ({width},), got {self.bias.dtype} {self.bias.shape}")
        if not 1 <= min(self.inputs, self.hidden) <= max(self.inputs, self.hidden) <= MOST_UNITS:
            raise G2Error(f"a layer has 1 to {MOST_UNITS} inputs and units, got {self.inputs} and {self.hidden}")
        if self.residual and self.inputs != self.hidden:
            raise G2Error(f"a residual layer has as many inputs as units, got {self.inputs} and {self.hidden}")
        for term in self.terms:
            if term.source not in ("x", "h"):
                raise G2Error(f"a term's source must be 'x' or 'h', got {term.source!r}")
            shape = (self.hidden, self.inputs if term.source == "x" else self.hidden)
            if term.matrix.shape != shape or not 0 <= term.gate < self.gates:
                raise G2Error(
                    f"a term of gates 0 to {self.gates - 1} that reads {term.source} must have the shape {shape}, "
                    f"got {term.matrix.shape} of gate {term.gate}"
                )
            if not np.isfinite(term.factor):
                raise G2Error(f"a term's factor must be finite, got {term.factor}")


class Session(ABC):
    """Reads a sequence through a stack of layers, keeping h and c of each (in a GRU, h alone); they start at zero.

    `sequence` returns exactly what that many calls of `step` would. Threads can share a session; they take turns.

    Args:
        layers: the first reads x, every other one reads the one before.
        hard: the gates that are 1[a >= 0] instead of a sigmoid: "", "if" or "ifo".
        softmax: on top of the last layer; the session then returns log-probabilities. Without layers it returns the
            logits of x: a linear map.

    Attributes:
        inputs: I, the width of x.
        outputs: O, the width of the output.
        units: the hidden size of each layer.
    """

    def __init__(self, layers: Sequence[Layer], hard: str = "", softmax: Layer | None = None) -> None:
        blocks = [*layers, *([] if softmax is None else [softmax])]
        if not blocks:
            raise G2Error("a session needs at least one layer, got none")
        for below, above in itertools.pairwise(blocks):
            if above.inputs != below.hidden:
                what = "softmax" if above is softmax else "layer"
                raise G2Error(f"a {what} of {above.inputs} inputs can't read a layer of {below.hidden} units")
        if hard not in HARD:
            raise G2Error(f"hard gates must be one of {HARD}, got {hard!r}")
        self.inputs, self.units = blocks[0].inputs, [layer.hidden for layer in layers]
        self.outputs, self.hard, self._lock = blocks[-1].hidden, hard, threading.Lock()
        self._counts = [1 if layer.is_gru else 2 for layer in layers]  # of the states of each layer

    def step(self, x: Vector) -> Array:
        """Reads one step x (I,), an array or a tensor; returns a new array (O,)."""
        x = _array(x)
        if np.shape(x) != (self.inputs,):
            raise G2Error(f"a step takes a vector of shape ({self.inputs},), got {np.shape(x)}")
        return self._run(np.asarray(x)[None])[0]

    def sequence(self, x: Vector) -> Array:
        """Reads many steps x (T, I); returns (T, O)."""
        x = _array(x)
        shape = np.shape(x)
        if len(shape) != 2 or shape[1] != self.inputs:
            raise G2Error(f"a sequence has the shape (T, {self.inputs}), got {shape}")
        return self._run(np.asarray(x))

    def get_state(self) -> list[tuple[Array, ...]]:
        """Copies of h and c (H,) of each layer, of h alone in a GRU."""
        return [pair[:count] for pair, count in zip(self._get(), self._counts, strict=True)]

    def stacked_state(self) -> list[Array]:
        """Copies of the states of layers that are all of one kind and width: h (layers, H), and c in LSTMs."""
        return [np.stack(each) for each in zip(*self.get_state(), strict=True)]

    def set_state(self, states: Sequence[tuple[Vector, ...]]) -> None:
        """Sets h and c (H,) of each layer, from which the next step continues."""
        got = [tuple(map(np.shape, each)) for each in states]
        wanted = [((H,),) * count for H, count in zip(self.units, self._counts, strict=True)]
        if got != wanted:
            raise G2Error(f"the states h and c of the layers have the shapes {wanted}, got {got}")
        each = [[np.asarray(_array(one)) for one in one_layer] for one_layer in states]
        self._set([state for one in each for state in (one[0], one[-1])])

    def reset(self) -> None:
        """Sets all states to zero."""
        self.set_state([(np.zeros(H),) * count for H, count in zip(self.units, self._counts, strict=True)])

    @abstractmethod
    def _get(self) -> list[tuple[Array, Array]]: ...

    @abstractmethod
    def _run(self, x: NDArray[Any]) -> Array: ...

    @abstractmethod
    def _set(self, states: list[NDArray[Any]]) -> None: ...


class PlainSession(Session):
    """A session in NumPy, for machines without the compiled kernel; in float64 it is the reference for the kernel.

    Matrices are decoded once; low-rank ones stay two thin ones.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        hard: str = "",
        softmax: Layer | None = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__(layers, hard, softmax)
        self._dtype = np.dtype(dtype)
        self._layers = [_Plain(layer, self._dtype) for layer in layers]
        self._softmax = None if softmax is None else _Plain(softmax, self._dtype)
        self.reset()

    def _get(self) -> list[tuple[Array, Array]]:
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
                if self._softmax is not None:
                    value = (
                        self._softmax.log_softmax(value) if self._layers else self._softmax.activations(value, value)
                    )
                out[t] = value
        return out


class _Plain:
    """One layer, as a list of products: the source, the rows of the pre-activations, and the decoded factors."""

    def __init__(self, layer: Layer, dtype: np.dtype[Any]) -> None:
        self.bias, self.residual, self.is_gru = layer.bias.astype(dtype), layer.residual, layer.is_gru
        self.products: list[tuple[str, slice, list[Array]]] = []
        for term in layer.terms:
            rows = slice(term.gate * layer.hidden, (term.gate + 1) * layer.hidden)
            *right, left = (factor.decode().astype(dtype) for factor in term.matrix.factors())
            self.products.append((term.source, rows, [*right, left * term.factor]))

    def activations(self, x: Array, h: Array) -> Array:
        a = self.bias.copy()
        for source, rows, factors in self.products:
            value = x if source == "x" else h
            for factor in factors:
                value = factor @ value
            a[rows] += value
        return a

    def step(self, x: Array, h: Array, c: Array, hard: str) -> tuple[Array, Array]:
        a = self.activations(x, h)
        if not self.is_gru:
            return lstm_cell(a, c, hard)
        r, z, from_x, from_h = np.split(a, 4)
        r, z = _open(r, "i" in hard), _open(z, "f" in hard)
        n = np.tanh(from_x + r * from_h)
        return n + z * (h - n), c

    def logits(self, x: Array) -> Array:
        return self.activations(x, x)

    def log_softmax(self, x: Array) -> Array:
        logits = self.logits(x)
        logits -= logits.max()
        return logits - np.log(np.exp(logits).sum())


def lstm_cell(a: Array, c: Array, hard: str = "") -> tuple[Array, Array]:
    """One step of an LSTM from pre-activations (..., 4H) in the order i, f, g, o and c (..., H): the new h and c."""
    i, f, g, o = np.split(a, 4, axis=-1)
    i, f, o = _open(i, "i" in hard), _open(f, "f" in hard), _open(o, "o" in hard)
    c = f * c + i * np.tanh(g)
    return o * np.tanh(c), c


def _array(x: Any) -> ArrayLike:
    """A tensor as an array; known by its method, since sessions also work without torch."""
    array: ArrayLike = x.numpy(force=True) if hasattr(x, "numpy") else x
    return array


def _open(a: Array, hard: bool) -> Array:
    if hard:
        return np.where(np.isnan(a), a, np.heaviside(a, 1).astype(a.dtype))
    return (1 + np.tanh(a / 2)) / 2  # without the overflow that exp has


class TokenSession:
    """A model that reads token by token and keeps its state, which is zero before the first token.

    Attributes:
        vocabulary_size: V.
    """

    def __init__(self, session: Session, embedding: Encoding) -> None:
        self._session, self._rows = session, embedding.rows
        self.vocabulary_size = embedding.shape[0]

    def step(self, token: int) -> Array:
        """Reads a token id; returns the log-probabilities (V,) of the next one."""
        return self._session.step(self._rows(np.array([self._checked(token)]))[0])

    def sequence(self, tokens: "Sequence[int] | NDArray[np.integer] | Tensor") -> Array:
        """Reads token ids (T,); returns what that many calls of `step` would, (T, V)."""
        ids = [self._checked(token) for token in tokens]
        return self._session.sequence(self._rows(np.array(ids, np.int64)))

    def read(self, tokens: Sequence[int]) -> Array:
        """Reads at least one token id; returns the log-probabilities (V,) after the last of them."""
        return self.step(tokens[0]) if len(tokens) == 1 else self.sequence(tokens)[-1]

    def get_state(self) -> list[tuple[Array, ...]]:
        """Copies of h and c (H,) of each layer."""
        return self._session.get_state()

    def set_state(self, states: Sequence[tuple[Vector, ...]]) -> None:
        """Sets h and c (H,) of each layer, from which the next step continues."""
        self._session.set_state(states)

    def reset(self) -> None:
        """Sets all states to zero."""
        self._session.reset()

    def _checked(self, token: "int | Tensor") -> int:
        try:
            number = index(token)
        except TypeError:
            raise G2Error(f"a token id must be an integer, got {token!r}") from None
        if not 0 <= number < self.vocabulary_size:
            raise G2Error(f"token ids go from 0 to {self.vocabulary_size - 1}, got {number}")
        return number
