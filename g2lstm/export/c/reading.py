"""Reads models as `Step`s: recurrent layers, and models of tokens; `trace.py` reads all others."""

from typing import Any

from torch import nn

from g2lstm.compression.layers import layer_weights
from g2lstm.compression.stream import StreamParts, encoding_of
from g2lstm.errors import G2Error
from g2lstm.export.c.program import Buffer, Function, Program, Value, whole
from g2lstm.export.c.step import Step
from g2lstm.nn.survey import why_not


def layer_step(layer: Any) -> Step:
    """An LSTM or a GRU, from x to the last layer's h."""
    function = Function(Program())
    x = whole(Buffer(layer.input_size, "x"))
    states = run_layers(function, x, layer, "")
    return Step(function, states[-1][0], layer.input_size, what="the last layer's h")


def token_step(parts: StreamParts) -> Step:
    """A model of tokens, from a token to the log-probabilities of the next."""
    function = Function(Program())
    embedding = encoding_of(parts.embedding)
    x = function.lookup(embedding, "embedding")
    for number, (layer, residual) in enumerate(zip(parts.layers, parts.residual, strict=True)):
        out = run_layers(function, x, layer, f"layer {number}")[-1][0]
        x = function.each("{0} + {1}", x, out) if residual else out
    own = embedding if parts.softmax is parts.embedding else encoding_of(parts.softmax)
    logits = function.linear(x, own, parts.bias.float().numpy(force=True), "softmax")
    out = function.log_softmax(logits)
    what = "the log-probabilities of the next token"
    return Step(function, out, embedding.shape[0], is_token=True, what=what)


def run_layers(function: Function, x: Value, layer: Any, name: str, initial: Any = None) -> list[list[Value]]:
    """The layers of one module, each on top of the one before; returns the states of each."""
    check_layer(layer, name)
    states: list[list[Value]] = []
    for number, weights in enumerate(layer_weights(layer)):
        own = name or "layer" if getattr(layer, "num_layers", 1) == 1 else f"{name} layer {number}".strip()
        given = None if initial is None else [one[number] for one in initial]
        states.append(function.recurrent(x, weights, own, given))
        x = states[-1][0]
    return states


def check_layer(layer: nn.Module, name: str) -> None:
    """Raises for a layer that can't become C."""
    if getattr(layer, "bidirectional", False):
        raise G2Error(
            f"{name or 'this layer'} can't stream: its second direction begins at the end of the sequence; export the "
            "model to ONNX, for whole sequences"
        )
    if (why := why_not(layer)) is not None:
        raise G2Error(f"can't export {name or 'this layer'}: {why}")
