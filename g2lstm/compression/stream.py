"""`stream`: a model that reads one sequence as it comes, step by step, from packed weights."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, overload, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from g2lstm.compression import kernel
from g2lstm.compression.causal import ModelSession
from g2lstm.compression.encodings import Dense, Encoding
from g2lstm.compression.kernel import open_session
from g2lstm.compression.modules import EncodedMatrix
from g2lstm.compression.recurrent import CompressedGRU, CompressedLSTM, session_layers, why_no_session
from g2lstm.compression.session import Layer, Session
from g2lstm.compression.session import TokenSession as TokenSession
from g2lstm.errors import G2Error
from g2lstm.nn.gru import G2GRU
from g2lstm.nn.lstm import G2LSTM, GatedLSTM
from g2lstm.nn.record import evaluating, lstms


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


@runtime_checkable
class OpensStream(Protocol):
    """A model that opens a session of its own kind, as translation models do."""

    def open_stream(self, threads: int | None = None) -> Any:
        """The session, with a copy of the weights."""


@overload
def stream(model: Streamable, threads: int | None = None) -> TokenSession: ...
@overload
def stream(model: OpensStream, threads: int | None = None) -> Any: ...
@overload
def stream(  # type: ignore[overload-overlap]
    model: nn.LSTM | GatedLSTM | nn.GRU | G2GRU | CompressedGRU, threads: int | None = None
) -> Session: ...
@overload
def stream(
    model: nn.Module, threads: int | None = None, *, batch: int = 1, time_axis: int | str | None = "auto"
) -> ModelSession: ...
def stream(
    model: "nn.Module | Streamable | OpensStream",
    threads: int | None = None,
    *,
    batch: int = 1,
    time_axis: int | str | None = "auto",
) -> Any:
    """Opens a session that reads a sequence through a model step by step, as the model does in evaluation.

    It has `step`, `sequence`, `get_state`, `set_state` and `reset`, and keeps a packed copy of the weights, so later
    changes to the model do not reach it. Packed layers compute in float32 on the CPU, in the compiled kernel where
    there is one.

    Results are those of the model's own forward call up to rounding. With dense weights that is float32's, in sums of
    another order. Codes are multiplied by vectors of 16 bits: an element of a vector v is off by at most
    max|v| / 65278, and so a pre-activation by at most d, that times the sum of its row's |weights|. The slope of a
    sigmoid is at most 1/4 and that of tanh 1, so a step puts c off by at most (d_i + |c| d_f) / 4 + d_g, and h by
    d_o / 4 more. Errors of earlier steps come on top, through the forget gate and W_h h. A logit is off like a
    pre-activation, a log-probability by at most twice as much as the worst logit. Hard gates flip where a
    pre-activation is that close to 0. Over 400 tokens of a trained language model, log-probabilities were off by at
    most 5e-4 and the perplexity by a millionth. Without the compiled kernel all rounding is float32's.

    Args:
        model: a language model, or any `Streamable`, whose session takes token ids and returns log-probabilities; an
            LSTM or a GRU, whose session takes vectors (I,) and returns the last layer's h (H,); or any causal model
            with recurrent layers, whose `ModelSession` calls its forward on one step; or a translation model, whose
            `TranslationSession` has `translate`, for whole sentences. Compressed or not.
        threads: at most this many; torch's number if not given. They do not change results.
        batch: the number of streams that are read side by side; more than one always gives a `ModelSession`, which for
            a language model takes token ids (B,) and returns log-probabilities (B, V).
        time_axis: see `ModelSession`.

    Examples:
        >>> session = g2lstm.stream(detector)
        >>> for frame in microphone:
        ...     probability = session.step(frame)
    """
    if not isinstance(model, nn.Module):
        raise G2Error(f"stream takes a torch.nn.Module, got {type(model).__name__}; for a run, use load(run).stream()")
    with evaluating(model):
        is_plain = batch == 1 and time_axis == "auto"
        if is_plain and isinstance(model, Streamable):
            return _stream_tokens(model, threads)
        if is_plain and isinstance(model, OpensStream):
            return model.open_stream(threads)
        if is_plain and not isinstance(model, nn.RNNCellBase) and why_no_session(model) is None:
            return open_session(*session_layers(model), threads)
        if time_axis == "auto" and isinstance(model, Streamable):
            return ModelSession(_FromParts(model.stream_parts()), batch, threads)
        return ModelSession(model, batch, threads, time_axis)


class _FromParts(nn.Module):
    """A model of tokens (T, B) that returns log-probabilities (T, B, V)."""

    def __init__(self, parts: StreamParts) -> None:
        super().__init__()
        self.embedding, self.layers, self.residual = parts.embedding, nn.ModuleList(parts.layers), parts.residual
        self.softmax, self.bias = parts.softmax, parts.bias

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.embedding(tokens)
        for layer, residual in zip(self.layers, self.residual, strict=True):
            out = layer(x)[0]
            x = x + out if residual else out
        weight = self.softmax if isinstance(self.softmax, Tensor) else self.softmax.weight
        assert isinstance(weight, Tensor)
        return linear(x, weight, self.bias).log_softmax(-1)


def _stream_tokens(model: Streamable, threads: int | None) -> TokenSession:
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
    """Whether a session in the compiled kernel does everything that calls of this model would."""
    assert isinstance(model, nn.Module)
    parts = model.stream_parts()
    return are_plain(model, parts.layers, parts.bias)


def are_plain(model: nn.Module, layers: Sequence[nn.Module], bias: Tensor) -> bool:
    """Whether the kernel can do what the layers of a model do.

    That needs plain layers in float32 on the CPU, all with the same gates, without hooks or a recording of gates.
    """
    for module in model.modules():
        if module._forward_hooks or module._forward_pre_hooks or getattr(module, "_gate_listener", None) is not None:
            return False
    return (
        kernel.available()
        and bias.device.type == "cpu"
        and bias.dtype == torch.float32
        and all(type(layer) in (G2LSTM, CompressedLSTM) for layer in layers)  # no parametrised ones
        and len({(layer.eval_gate, layer.gates) for layer in lstms(model)}) == 1
    )


def encoding_of(table: nn.Module | Tensor) -> Encoding:
    """The encoded weights of an embedding, a linear layer or a softmax; a dense copy if they are not compressed."""
    if isinstance(encoded := getattr(table, "encoded", table), EncodedMatrix):
        return encoded.encoding
    weight = table if isinstance(table, Tensor) else table.weight
    assert isinstance(weight, Tensor)
    return Dense(weight.detach().to("cpu", torch.float32, copy=True).numpy())
