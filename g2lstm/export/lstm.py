"""LSTM layers in an ONNX graph: as its operator `LSTM` where that can express a layer, else as a loop over the cell."""

from typing import NamedTuple

import numpy as np
import torch
from onnx import TensorProto
from torch import nn

from g2lstm.compression.layers import LayerWeights, layer_weights
from g2lstm.compression.recurrent import LETTERS
from g2lstm.export.check import Exporter, Outputs, Runners, draw_state
from g2lstm.export.graph import FLOAT, Graph
from g2lstm.export.weights import Floats, expanded, is_expanded, product
from g2lstm.nn.lstm import GatedLSTM

State = tuple[str, str]  # h (1, B, R) and c (1, B, H)
_ONNX_ORDER = (0, 3, 1, 2)  # ONNX orders the gates i, o, f, c


class Sequences(NamedTuple):
    """The lengths of the sequences in a batch, where they differ."""

    lengths: str  # (B,) int64
    is_token: str  # (T, B) booleans


def layers_of(module: nn.LSTM | GatedLSTM, name: str) -> list[list[LayerWeights]]:
    """The layers of a module in its present mode, by layer and direction.

    Args:
        module: in evaluation mode; the matrices of a compressed one stay encoded.
        name: of the module in the model, with a dot at its end; or nothing.
    """
    directions = 2 if module.bidirectional else 1
    found = list(layer_weights(module, name))
    return [found[k : k + directions] for k in range(0, len(found), directions)]


def run(
    graph: Graph,
    x: str,
    states: list[State] | None,
    layers: list[list[LayerWeights]],
    sequences: Sequences | None = None,
) -> tuple[str, list[State]]:
    """Adds a stack of layers that reads sequences.

    Args:
        graph: the graph to add to.
        x: (T, B, I).
        states: for each layer and direction; None for zeros.
        layers: from the bottom up.
        sequences: their lengths, if they differ; the output after the end of a sequence is then 0, and the last states
            mean nothing.

    Returns:
        The output (T, B, R of all directions), and the last states.
    """
    ends: list[State] = []
    for number, directions in enumerate(layers):
        own = slice(number * len(directions), (number + 1) * len(directions))
        before = [_zero_state(graph, x, one) for one in directions] if states is None else states[own]
        if all(_fits_operator(graph, one) for one in directions):
            x, last = _by_operator(graph, x, before, directions, sequences)
        else:
            parts = [
                _by_scan(graph, x, before[d], one, sequences, backwards=d == 1) for d, one in enumerate(directions)
            ]
            x, last = _joined(graph, [part[0] for part in parts], axis=-1), [part[1] for part in parts]
        ends += last
    return x, ends


def step(graph: Graph, x: str, state: State, direction: LayerWeights) -> tuple[str, State]:
    """Adds one step of one layer: from x (B, I) to its output (B, R) and the state after it."""
    first = graph.integers(0)
    if _fits_operator(graph, direction):
        y, [last] = _by_operator(graph, graph.operator("Unsqueeze", x, first), [state], [direction], None)
        return graph.operator("Squeeze", y, first), last
    h, c = (graph.operator("Squeeze", one, first) for one in state)
    h, c = _cell(graph, _from_input(graph, x, direction), h, c, direction)
    return h, (graph.operator("Unsqueeze", h, first), graph.operator("Unsqueeze", c, first))


def _fits_operator(graph: Graph, layer: LayerWeights) -> bool:
    """Whether ONNX's own `LSTM` can express it: float32 matrices, sigmoids, no projection."""
    return not layer.hard and layer.w_r is None and all(is_expanded(graph, one) for one in layer.w_x + layer.w_h)


def _zero_state(graph: Graph, x: str, direction: LayerWeights) -> State:
    batch = graph.operator("Shape", x, start=1, end=2)

    def zeros(width: int) -> str:
        shape = graph.operator("Concat", graph.integers(1), batch, graph.integers(width), axis=0)
        return graph.operator("ConstantOfShape", shape)

    return zeros(direction.width), zeros(direction.hidden)


def _by_operator(
    graph: Graph, x: str, states: list[State], directions: list[LayerWeights], sequences: Sequences | None
) -> tuple[str, list[State]]:
    """All directions of one layer, by the operator `LSTM`: x (T, B, I)."""

    def weights(which: str) -> str:
        first = graph.integers(0)
        each = [
            graph.operator("Unsqueeze", expanded(graph, [getattr(one, which)[gate] for gate in _ONNX_ORDER]), first)
            for one in directions
        ]
        return _joined(graph, each, axis=0)

    def in_order(one: LayerWeights, bias: Floats) -> list[Floats]:
        scaled: Floats = (bias * one.row_factors).reshape(4, -1)
        return [scaled[gate] for gate in _ONNX_ORDER]

    biases = np.stack([np.concatenate(in_order(one, one.b_x) + in_order(one, one.b_h)) for one in directions])
    lengths = "" if sequences is None else graph.operator("Cast", sequences.lengths, to=TensorProto.INT32)
    h, c = (_joined(graph, [state[part] for state in states], axis=0) for part in range(2))
    inputs = [x, weights("w_x"), weights("w_h"), graph.constant(biases), lengths, h, c]
    direction = "forward" if len(directions) == 1 else "bidirectional"
    y, h, c = graph.operators("LSTM", inputs, 3, hidden_size=directions[0].hidden, direction=direction)
    # (T, D, B, H) to (T, B, D · H)
    joined = graph.operator("Transpose", y, perm=[0, 2, 1, 3])
    out = graph.operator("Reshape", joined, graph.integers(0, 0, len(directions) * directions[0].hidden))
    if len(directions) == 1:
        return out, [(h, c)]
    ends = (graph.operators("Split", [part], len(directions), axis=0, num_outputs=len(directions)) for part in (h, c))
    return out, list(zip(*ends, strict=True))


def _by_scan(
    graph: Graph, x: str, state: State, direction: LayerWeights, sequences: Sequences | None, backwards: bool
) -> tuple[str, State]:
    """One direction of one layer, by a loop over the cell: x (T, B, I). The product with x comes before the loop."""
    alpha = _from_input(graph, x, direction)
    if sequences is not None and backwards:
        alpha = _turned(graph, alpha, sequences)
    first = graph.integers(0)
    h, c = (graph.operator("Squeeze", one, first) for one in state)
    body = graph.body()
    hidden, width = direction.hidden, direction.width
    h_before, c_before = body.input("h", FLOAT, "batch", width), body.input("c", FLOAT, "batch", hidden)
    h_now, c_now = _cell(body, body.input("alpha", FLOAT, "batch", 4 * hidden), h_before, c_before, direction)
    for value, name, size in ((h_now, "h", width), (c_now, "c", hidden), (h_now, "y", width)):
        body.output(value, name, FLOAT, "batch", size)
    way = [int(backwards and sequences is None)]
    ways = {"scan_input_directions": way, "scan_output_directions": way}
    h, c, y = graph.operators("Scan", [h, c, alpha], 3, body=body.finished(), num_scan_inputs=1, **ways)
    if sequences is not None:
        y = _turned(graph, y, sequences) if backwards else y
        is_token = graph.operator("Unsqueeze", sequences.is_token, graph.integers(-1))
        y = graph.operator("Where", is_token, y, graph.constant(np.float32(0)))
    return y, (graph.operator("Unsqueeze", h, first), graph.operator("Unsqueeze", c, first))


def _turned(graph: Graph, x: str, sequences: Sequences) -> str:
    """Reverses each sequence of x (T, B, ...); the padding stays in its place."""
    return graph.operator("ReverseSequence", x, sequences.lengths, time_axis=0, batch_axis=1)


def _from_input(graph: Graph, x: str, direction: LayerWeights) -> str:
    """What x (..., I) and the biases add to the pre-activations, (..., 4H)."""
    bias = direction.b_x * direction.row_factors + direction.b_h * direction.row_factors
    return product(graph, x, direction.w_x, bias)


def _cell(graph: Graph, alpha: str, h: str, c: str, direction: LayerWeights) -> tuple[str, str]:
    """One step: from alpha (B, 4H), to which h is still to be added, h (B, R) and c (B, H), to the next h and c."""
    alpha = graph.operator("Add", alpha, product(graph, h, direction.w_h))
    parts = dict(zip(LETTERS, graph.operators("Split", [alpha], 4, axis=-1, num_outputs=4), strict=True))

    def gate(letter: str) -> str:
        if letter not in direction.hard:
            return graph.operator("Sigmoid", parts[letter])
        is_open = graph.operator("GreaterOrEqual", parts[letter], graph.constant(np.float32(0), "zero"))
        return graph.operator("Cast", is_open, to=FLOAT)

    written = graph.operator("Mul", gate("i"), graph.operator("Tanh", parts["g"]))
    c = graph.operator("Add", graph.operator("Mul", gate("f"), c), written)
    h = graph.operator("Mul", gate("o"), graph.operator("Tanh", c))
    return (h if direction.w_r is None else product(graph, h, [direction.w_r])), c


def _joined(graph: Graph, values: list[str], axis: int) -> str:
    return values[0] if len(values) == 1 else graph.operators("Concat", values, 1, axis=axis)[0]


class LayerExporter(Exporter):
    """A layer by itself, or several on top of each other, with the inputs and outputs of `torch.nn.LSTM`."""

    example = """\
layer = ort.InferenceSession({path!r})
x, h, c = (np.zeros([1 if isinstance(n, str) else n for n in one.shape], np.float32) for one in layer.get_inputs())
output, h, c = layer.run(None, {{"input": x, "h": h, "c": c}})"""

    def graphs(self, activations: str) -> dict[str, Graph]:
        """One graph, from input, h and c to output, h and c."""
        module = self._layer
        graph = Graph(activations)
        layers = layers_of(module, "")
        count, width = sum(map(len, layers)), layers[0][0].width
        order: tuple[str, str] = ("batch", "time") if module.batch_first else ("time", "batch")
        x = graph.input("input", FLOAT, *order, module.input_size)
        h = graph.input("h", FLOAT, count, "batch", width)
        c = graph.input("c", FLOAT, count, "batch", module.hidden_size)
        x = graph.operator("Transpose", x, perm=[1, 0, 2]) if module.batch_first else x
        parts = (
            graph.operators("Split", [part], count, axis=0, num_outputs=count) if count > 1 else [part]
            for part in (h, c)
        )
        y, ends = run(graph, x, list(zip(*parts, strict=True)), layers)
        y = graph.operator("Transpose", y, perm=[1, 0, 2]) if module.batch_first else y
        graph.output(y, "output", FLOAT, *order, len(layers[0]) * width)
        for part, name, size in ((0, "h_next", width), (1, "c_next", module.hidden_size)):
            joined = graph.operators("Concat", [end[part] for end in ends], 1, axis=0)[0]
            graph.output(joined, name, FLOAT, count, "batch", size)
        return {"model": graph}

    def outputs(self, runners: Runners, steps: int, batch: int, generator: torch.Generator) -> Outputs:
        """The output and the last states."""
        module = self._layer
        shape = (batch, steps) if module.batch_first else (steps, batch)
        x = torch.rand(*shape, module.input_size, generator=generator, dtype=torch.float32) * 2 - 1
        count = module.num_layers * (2 if module.bidirectional else 1)
        h, c = draw_state(count, batch, module.proj_size or module.hidden_size, module.hidden_size, generator)
        got = runners["model"]({"input": x.numpy(), "h": h.numpy(), "c": c.numpy()})
        out, (h, c) = module(x, (h, c))
        for name, value in {"output": out, "h_next": h, "c_next": c}.items():
            yield name, got[name], value

    @property
    def _layer(self) -> nn.LSTM | GatedLSTM:
        assert isinstance(self.module, nn.LSTM | GatedLSTM)
        return self.module
