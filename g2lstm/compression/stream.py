"""`stream`: a model that reads one sequence as it comes, a step at a time, from packed weights."""

from collections.abc import Sequence
from dataclasses import replace
from operator import index
from typing import overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from g2lstm.compression import kernel
from g2lstm.compression.kernel import open_session
from g2lstm.compression.lstm import CompressedLSTM
from g2lstm.compression.matrix import Dense, Encoded, Grid, GroupInt4, LowRank, RowIntegers
from g2lstm.compression.session import Array, Layer, Session, Softmax, Term
from g2lstm.compression.table import CompressedTable
from g2lstm.errors import G2Error
from g2lstm.nn.convert import why_not
from g2lstm.nn.gate import GateRule
from g2lstm.nn.lstm import G2LSTM
from g2lstm.nn.mode import evaluating, lstms
from g2lstm.tasks.lm.model import LanguageModel


class TokenSession:
    """A language model that reads a text token by token, keeping its state; the first token is read from zero states.

    Attributes:
        vocabulary_size: V.
    """

    def __init__(self, session: Session, embedding: Encoded) -> None:
        self._session, self._rows = session, Rows(embedding)
        self.vocabulary_size = embedding.shape[0]

    def step(self, token: int) -> Array:
        """Reads a token id; returns the log-probabilities (V,) of the next one."""
        return self._session.step(self._rows(np.array([self._checked(token)]))[0])

    def sequence(self, tokens: Sequence[int] | NDArray[np.integer] | Tensor) -> Array:
        """Reads token ids (T,); returns what as many calls of `step` would, (T, V)."""
        ids = [self._checked(token) for token in tokens]
        return self._session.sequence(self._rows(np.array(ids, np.int64)))

    def get_state(self) -> list[tuple[Array, Array]]:
        """Copies of h and c (H,) of each layer."""
        return self._session.get_state()

    def set_state(self, states: Sequence[tuple[ArrayLike | Tensor, ArrayLike | Tensor]]) -> None:
        """Puts h and c (H,) of each layer; the next step goes on from there."""
        self._session.set_state(states)

    def reset(self) -> None:
        """Back to the beginning: all states zero."""
        self._session.reset()

    def _checked(self, token: int | Tensor) -> int:
        try:
            number = index(token)
        except TypeError:
            raise G2Error(f"a token id is a whole number, got {token!r}") from None
        if not 0 <= number < self.vocabulary_size:
            raise G2Error(f"token ids are 0 to {self.vocabulary_size - 1}, got {number}")
        return number


@overload
def stream(model: LanguageModel, threads: int | None = None) -> TokenSession: ...
@overload
def stream(model: nn.LSTM | G2LSTM, threads: int | None = None) -> Session: ...
def stream(model: nn.Module, threads: int | None = None) -> Session | TokenSession:
    """A session that reads one sequence through a model step by step, as the model does in evaluation.

    It has `step`, `sequence`, `get_state`, `set_state` and `reset`, and keeps a packed copy of the weights: what
    happens to the model later does not reach it. It computes in float32, on the CPU, in the compiled kernel where
    there is one.

    Results are those of the model's own forward call but for rounding. With dense weights that is float32's, in sums of
    another order. Codes are multiplied with vectors of 16 bits: an element of a vector v is off by at most
    max|v| / 65278, and so a pre-activation by at most d, that times the sum of its row's |weights|. The slope of a
    sigmoid is at most 1/4 and that of tanh 1: a step puts c off by at most (d_i + |c| d_f) / 4 + d_g, and h by d_o / 4
    more. What earlier steps were off by comes on top, by way of the forget gate and of W_h h. A logit is off as a
    pre-activation is, a log-probability by at most twice as much as the worst logit. Hard gates flip where a
    pre-activation is that close to 0. Over 400 tokens of a trained language model, log-probabilities were off by at
    most 5e-4, and the perplexity by a millionth. Without the compiled kernel everything is float32's.

    Args:
        model: a `LanguageModel`, whose `step` takes a token id and returns log-probabilities, or a `torch.nn.LSTM` or
            `G2LSTM`, whose `step` takes a vector (I,) and returns the last layer's h (H,); compressed or not.
        threads: at most so many; torch's number if not given. They change no result.
    """
    if not isinstance(model, nn.Module):
        raise _cannot_stream(model)
    with evaluating(model):
        if not isinstance(model, LanguageModel):
            layers, hard = _layers(model)
            return open_session(layers, hard, threads)
        parts = [_layers(layer) for layer in model.layers]
        if len({hard for _, hard in parts}) > 1:
            raise G2Error(
                "not all layers of this model have the same hard gates; give all the same eval_gate and gates"
            )
    embedding = _matrix(model.embedding)
    own = model.softmax_weight
    softmax = Softmax(embedding if own is None else _matrix(own), model.softmax_bias.float().numpy(force=True))
    layers = [
        replace(one, residual=model.is_residual(layer))
        for layer, (inside, _) in zip(model.layers, parts, strict=True)
        for one in inside
    ]
    session = open_session(layers, parts[0][1], threads, softmax)
    return TokenSession(session, embedding)


def can_replace(model: LanguageModel) -> bool:
    """Whether a session does all that calls of this model would, and in the compiled kernel.

    That is: plain layers in float32 on the CPU, all with the same gates, no hooks, nobody who records gates.
    """
    for module in model.modules():
        if module._forward_hooks or module._forward_pre_hooks or getattr(module, "_gate_listener", None) is not None:
            return False
    bias = model.softmax_bias
    return (
        kernel.available()
        and bias.device.type == "cpu"
        and bias.dtype == torch.float32
        and type(model) is LanguageModel
        and all(type(layer) in (G2LSTM, CompressedLSTM) for layer in model.layers)  # those under a parametrisation not
        and len({(layer.eval_gate, layer.gates) for layer in lstms(model)}) == 1
    )


def _layers(lstm: nn.Module) -> tuple[list[Layer], str]:
    """The layers of a module in evaluation mode, and which of its gates are hard."""
    if not isinstance(lstm, nn.LSTM | G2LSTM):
        raise _cannot_stream(lstm)
    if lstm.bidirectional:
        raise G2Error(
            "a bidirectional LSTM cannot stream: its second direction begins at the end of the sequence; "
            "call the model itself on whole sequences"
        )
    if lstm.proj_size:
        raise G2Error(
            f"an LSTM with a projection (proj_size={lstm.proj_size}) cannot stream; call the model itself, "
            "one step at a time with the states that it returns"
        )
    rule = lstm.gate_rule() if isinstance(lstm, G2LSTM) else GateRule()
    hard = rule.gates if rule.hard else ""
    if isinstance(lstm, CompressedLSTM):
        return lstm.session_layers(rule), hard
    if (why := why_not(lstm, G2LSTM if isinstance(lstm, G2LSTM) else nn.LSTM)) is not None:
        raise G2Error(f"this layer cannot stream: {why}")
    scale = rule.row_scale(lstm.hidden_size, torch.empty(0, dtype=torch.float32, device="cpu"))
    layers = []
    for weights in lstm.all_weights:
        w_x, w_h, *biases = (weight.detach().to("cpu", torch.float32) for weight in weights)
        terms = (Term(Dense(w_x * scale.unsqueeze(1)), "x"), Term(Dense(w_h * scale.unsqueeze(1)), "h"))
        layers.append(
            Layer(w_x.size(1), terms, (sum(biases, torch.zeros(1, dtype=torch.float32, device="cpu")) * scale).numpy())
        )
    return layers, hard


def _cannot_stream(what: object) -> G2Error:
    return G2Error(
        f"a torch.nn.LSTM, a G2LSTM or a LanguageModel can stream, got {type(what).__name__}; "
        "stream the LSTM inside it, and compute the rest from what that returns"
    )


def _matrix(table: nn.Module | Tensor) -> Encoded:
    """The matrix of an embedding or a softmax, or a copy of it if it is dense."""
    if isinstance(table, CompressedTable):
        return table.matrix
    weight = table if isinstance(table, Tensor) else table.weight
    assert isinstance(weight, Tensor)
    return Dense(weight.detach().to("cpu", torch.float32, copy=True))


class Rows:
    """Rows of an encoded matrix: only those asked for are expanded."""

    def __init__(self, matrix: Encoded) -> None:
        self._right = matrix.right.dequantize().numpy() if isinstance(matrix, LowRank) else None
        self._matrix = matrix.left if isinstance(matrix, LowRank) else matrix
        self._tensors = {name: tensor.numpy() for name, tensor in self._matrix.tensors().items()}

    def __call__(self, numbers: NDArray[np.int64]) -> Array:
        """Rows (T, columns) of numbers (T,)."""
        rows = self._expanded(numbers)
        return rows if self._right is None else rows @ self._right

    def _expanded(self, numbers: NDArray[np.int64]) -> Array:
        matrix, tensors = self._matrix, {name: tensor[numbers] for name, tensor in self._tensors.items()}
        match matrix:
            case Dense():
                return tensors["values"].astype(np.float32)
            case Grid():
                return tensors["codes"] * np.float32(matrix.step)
            case RowIntegers():
                return tensors["codes"] * tensors["scales"][:, None]
            case GroupInt4():
                scales = tensors["scales"].astype(np.float32).repeat(matrix.group, axis=1)
                return tensors["codes"] * scales[:, : matrix.shape[1]]
