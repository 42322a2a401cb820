"""`stream`: a model that reads one sequence as it comes, step by step, from packed weights."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import index
from typing import NamedTuple, Protocol, overload, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from g2lstm.compression import kernel
from g2lstm.compression.encodings import Dense, Encoding
from g2lstm.compression.kernel import open_session
from g2lstm.compression.modules import EncodedMatrix
from g2lstm.compression.recurrent import LETTERS, CompressedLSTM
from g2lstm.compression.session import Array, Layer, Session, Term, Vector
from g2lstm.errors import G2Error
from g2lstm.nn.gate import GateRule
from g2lstm.nn.lstm import G2LSTM, GatedLSTM
from g2lstm.nn.record import evaluating, lstms
from g2lstm.nn.survey import why_not


class StreamParts(NamedTuple):
    """How a model of tokens reads: embedding, layers, softmax.

    Attributes:
        embedding: from tokens to vectors.
        layers: each reads the one before.
        residual: for each layer, whether its input is added to its output.
        softmax: the weights (V, E), or a module with such a `weight`.
        bias: (V,), of the softmax.
    """

    embedding: nn.Module
    layers: Sequence[nn.Module]
    residual: Sequence[bool]
    softmax: nn.Module | Tensor
    bias: Tensor


@runtime_checkable
class Streamable(Protocol):
    """A model that reads tokens one after the other, so that `stream` can open a session for it."""

    def stream_parts(self) -> StreamParts:
        """Its parts, in the order in which they compute."""


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

    def sequence(self, tokens: Sequence[int] | NDArray[np.integer] | Tensor) -> Array:
        """Reads token ids (T,); returns what that many calls of `step` would, (T, V)."""
        ids = [self._checked(token) for token in tokens]
        return self._session.sequence(self._rows(np.array(ids, np.int64)))

    def get_state(self) -> list[tuple[Array, Array]]:
        """Copies of h and c (H,) of each layer."""
        return self._session.get_state()

    def set_state(self, states: Sequence[tuple[Vector, Vector]]) -> None:
        """Sets h and c (H,) of each layer, from which the next step continues."""
        self._session.set_state(states)

    def reset(self) -> None:
        """Sets all states to zero."""
        self._session.reset()

    def _checked(self, token: int | Tensor) -> int:
        try:
            number = index(token)
        except TypeError:
            raise G2Error(f"a token id must be an integer, got {token!r}") from None
        if not 0 <= number < self.vocabulary_size:
            raise G2Error(f"token ids go from 0 to {self.vocabulary_size - 1}, got {number}")
        return number


@overload
def stream(model: Streamable, threads: int | None = None) -> TokenSession: ...
@overload
def stream(model: nn.LSTM | GatedLSTM, threads: int | None = None) -> Session: ...
def stream(model: "nn.Module | Streamable", threads: int | None = None) -> Session | TokenSession:
    """Opens a session that reads one sequence through a model step by step, as the model does in evaluation.

    It has `step`, `sequence`, `get_state`, `set_state` and `reset`, and keeps a packed copy of the weights, so later
    changes to the model do not reach it. It computes in float32 on the CPU, in the compiled kernel where there is one.

    Results are those of the model's own forward call up to rounding. With dense weights that is float32's, in sums of
    another order. Codes are multiplied by vectors of 16 bits: an element of a vector v is off by at most
    max|v| / 65278, and so a pre-activation by at most d, that times the sum of its row's |weights|. The slope of a
    sigmoid is at most 1/4 and that of tanh 1, so a step puts c off by at most (d_i + |c| d_f) / 4 + d_g, and h by
    d_o / 4 more. Errors of earlier steps come on top, through the forget gate and W_h h. A logit is off like a
    pre-activation, a log-probability by at most twice as much as the worst logit. Hard gates flip where a
    pre-activation is that close to 0. Over 400 tokens of a trained language model, log-probabilities were off by at
    most 5e-4 and the perplexity by a millionth. Without the compiled kernel all rounding is float32's.

    Args:
        model: a language model, or any `Streamable`, whose session takes token ids and returns log-probabilities; or a
            `torch.nn.LSTM` or `G2LSTM`, whose session takes vectors (I,) and returns the last layer's h (H,).
            Compressed or not.
        threads: at most this many; torch's number if not given. They do not change results.
    """
    if not isinstance(model, nn.Module):
        raise _cannot_stream(model)
    with evaluating(model):
        if not isinstance(model, Streamable):
            layers, hard = session_layers(model)
            return open_session(layers, hard, threads)
        parts = model.stream_parts()
        stacks = [session_layers(layer) for layer in parts.layers]
    if len({hard for _, hard in stacks}) > 1:
        raise G2Error("the layers of this model differ in their hard gates; give all the same eval_gate and gates")
    layers = [
        replace(one, residual=residual)
        for residual, (stack, _) in zip(parts.residual, stacks, strict=True)
        for one in stack
    ]
    embedding = encoding_of(parts.embedding)
    own = embedding if parts.softmax is parts.embedding else encoding_of(parts.softmax)
    softmax = Layer.softmax(own, parts.bias.float().numpy(force=True))
    return TokenSession(open_session(layers, stacks[0][1], threads, softmax), embedding)


def can_replace(model: Streamable) -> bool:
    """Whether a session in the compiled kernel does everything that calls of this model would.

    That needs plain layers in float32 on the CPU, all with the same gates, without hooks or a recording of gates.
    """
    assert isinstance(model, nn.Module)
    for module in model.modules():
        if module._forward_hooks or module._forward_pre_hooks or getattr(module, "_gate_listener", None) is not None:
            return False
    parts = model.stream_parts()
    return (
        kernel.available()
        and parts.bias.device.type == "cpu"
        and parts.bias.dtype == torch.float32
        and all(type(layer) in (G2LSTM, CompressedLSTM) for layer in parts.layers)  # no parametrised ones
        and len({(layer.eval_gate, layer.gates) for layer in lstms(model)}) == 1
    )


def encoding_of(table: nn.Module | Tensor) -> Encoding:
    """The encoded weights of an embedding, a linear layer or a softmax; a dense copy if they are not compressed."""
    if isinstance(encoded := getattr(table, "encoded", table), EncodedMatrix):
        return encoded.encoding
    weight = table if isinstance(table, Tensor) else table.weight
    assert isinstance(weight, Tensor)
    return Dense(weight.detach().to("cpu", torch.float32, copy=True).numpy())


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
    """One layer of an LSTM in one direction, as it computes in evaluation.

    Attributes:
        w_x, w_h: the matrices (H, I) and (H, R) of the gates i, f, g, o.
        b_x, b_h: (4H,), without the factors of the gates; 0 if the layer has none.
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
        return len(self.b_x) // len(LETTERS)

    @property
    def width(self) -> int:
        """The width of the output, R."""
        return self.hidden if self.w_r is None else self.w_r.encoding.shape[0]

    @property
    def row_factors(self) -> NDArray[np.float32]:
        """The factor of each row of all gates, (4H,)."""
        return np.repeat(np.array([weight.factor for weight in self.w_x], np.float32), self.hidden)


def layer_weights(lstm: nn.LSTM | GatedLSTM, prefix: str = "") -> Iterator[LayerWeights]:
    """The layers of an LSTM in its present mode, each direction by itself; dense matrices are copied in float32.

    Args:
        lstm: in evaluation mode.
        prefix: goes before the names of its weights.
    """
    rule = lstm.gate_rule() if isinstance(lstm, GatedLSTM) else GateRule()
    factors = rule.row_scale(1, torch.empty(0, dtype=torch.float64, device="cpu")).tolist()

    def floats(name: str) -> NDArray[np.float32]:
        values: NDArray[np.float32] = getattr(lstm, name).detach().to("cpu", torch.float32, copy=True).numpy()
        return values

    def bias(name: str) -> NDArray[np.float32]:
        return floats(name) if lstm.bias else np.zeros(4 * lstm.hidden_size, np.float32)

    def matrices(name: str) -> list[Weight]:
        gates: list[Encoding]
        if isinstance(lstm, CompressedLSTM):
            gates = lstm.encodings(name)
        else:
            gates = [Dense(rows) for rows in np.split(floats(name), len(LETTERS))]
        each = zip(LETTERS, gates, factors, strict=True)
        return [Weight(f"{prefix}{name}.{letter}", one, factor) for letter, one, factor in each]

    for layer in range(lstm.num_layers):
        for end in (f"_l{layer}", f"_l{layer}_reverse")[: 2 if lstm.bidirectional else 1]:
            projection = f"weight_hr{end}"
            yield LayerWeights(
                matrices(f"weight_ih{end}"),
                matrices(f"weight_hh{end}"),
                bias(f"bias_ih{end}"),
                bias(f"bias_hh{end}"),
                Weight(f"{prefix}{projection}", Dense(floats(projection))) if lstm.proj_size else None,
                rule.gates if rule.hard else "",
            )


def session_layers(lstm: nn.Module) -> tuple[list[Layer], str]:
    """The layers of an LSTM in evaluation mode as a session takes them, and its hard gates."""
    if not isinstance(lstm, nn.LSTM | GatedLSTM):
        raise _cannot_stream(lstm)
    if lstm.bidirectional:
        raise G2Error(
            "a bidirectional LSTM can't stream: its second direction begins at the end of the sequence; "
            "call the model itself on whole sequences"
        )
    if lstm.proj_size:
        raise G2Error(
            f"an LSTM with a projection (proj_size={lstm.proj_size}) can't stream; call the model itself, "
            "one step at a time with the states that it returns"
        )
    kind = next((kind for kind in (nn.LSTM, G2LSTM) if isinstance(lstm, kind)), None)
    if kind is not None and (why := why_not(lstm)) is not None:
        raise G2Error(f"this layer can't stream: {why}")
    layers = []
    for one in layer_weights(lstm):
        terms = [Term(weight.encoding, "x", gate, weight.factor) for gate, weight in enumerate(one.w_x)]
        terms += [Term(weight.encoding, "h", gate, weight.factor) for gate, weight in enumerate(one.w_h)]
        bias = (one.b_x + one.b_h) * one.row_factors
        layers.append(Layer(one.w_x[0].encoding.shape[1], tuple(terms), bias))
    return layers, one.hard


def _cannot_stream(what: object) -> G2Error:
    return G2Error(
        "only a torch.nn.LSTM, a G2LSTM and models with stream_parts(), such as a LanguageModel, can stream, "
        f"got {type(what).__name__}; stream the LSTM inside it, and compute the rest from what that returns"
    )
