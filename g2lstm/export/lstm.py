"""LSTM layers in an ONNX graph: its operator `LSTM` where that can express a layer, else the cell written out."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from onnx import TensorProto
from torch import Tensor, nn

from g2lstm.compression.lstm import LETTERS, CompressedLSTM
from g2lstm.compression.matrix import Dense, Encoded
from g2lstm.export.graph import FLOAT, Graph
from g2lstm.export.weights import Floats, Matrix, expanded, is_expanded, product
from g2lstm.nn.gate import GateRule
from g2lstm.nn.lstm import G2LSTM

State = tuple[str, str]  # h (1, B, R) and c (1, B, H)
_ONNX_ORDER = (0, 3, 1, 2)  # its gates are i, o, f, c


@dataclass(frozen=True)
class Direction:
    """One layer in one direction, its temperature folded in.

    Attributes:
        w_x: the matrices (H, I) of the gates i, f, g, o.
        w_h: (H, R) likewise.
        b_x, b_h: (4H,); 0 where there is none.
        w_r: (R, H), the projection.
        hard: which gates are 1[a >= 0].
    """

    w_x: tuple[Matrix, ...]
    w_h: tuple[Matrix, ...]
    b_x: Floats
    b_h: Floats
    w_r: Matrix | None
    hard: str

    @property
    def hidden(self) -> int:
        """H."""
        return len(self.b_x) // 4

    @property
    def width(self) -> int:
        """R, of what it gives."""
        return self.hidden if self.w_r is None else self.w_r.encoded.shape[0]

    def fits_operator(self, graph: Graph) -> bool:
        """Whether ONNX's own `LSTM` can express it: float32 matrices, sigmoids, no projection."""
        return not self.hard and self.w_r is None and all(is_expanded(graph, m) for m in self.w_x + self.w_h)


class Sequences(NamedTuple):
    """How long the sequences of a batch are, where they are not all of full length."""

    lengths: str  # (B,) int64
    is_token: str  # (T, B) truth values


def layers_of(module: nn.LSTM | G2LSTM, name: str) -> list[list[Direction]]:
    """By layer and direction, as they are in the module's present mode.

    Args:
        module: in evaluation mode; a compressed one keeps its matrices as they are encoded.
        name: of the module in the model, with a dot at its end; or nothing.
    """
    rule = module.gate_rule() if isinstance(module, G2LSTM) else GateRule()
    directions = 2 if module.bidirectional else 1
    found = [
        _direction(module, rule, name, f"_l{layer}{'_reverse' if reverse else ''}")
        for layer in range(module.num_layers)
        for reverse in range(directions)
    ]
    return [found[k : k + directions] for k in range(0, len(found), directions)]


def run(
    graph: Graph,
    x: str,
    states: list[State] | None,
    layers: list[list[Direction]],
    sequences: Sequences | None = None,
) -> tuple[str, list[State]]:
    """Reads sequences.

    Args:
        graph: to add to.
        x: (T, B, I).
        states: for each layer and direction; None for zeros.
        layers: one upon the other.
        sequences: their lengths; then what comes out after a sequence's end is 0, and the last states mean nothing.

    Returns:
        The output (T, B, R of all directions), and the last states.
    """
    ends: list[State] = []
    for number, directions in enumerate(layers):
        own = slice(number * len(directions), (number + 1) * len(directions))
        before = [_zero_state(graph, x, one) for one in directions] if states is None else states[own]
        if all(one.fits_operator(graph) for one in directions):
            x, last = _by_operator(graph, x, before, directions, sequences)
        else:
            parts = [
                _by_scan(graph, x, before[d], one, sequences, backwards=d == 1) for d, one in enumerate(directions)
            ]
            x, last = _joined(graph, [part[0] for part in parts], axis=-1), [part[1] for part in parts]
        ends += last
    return x, ends


def step(graph: Graph, x: str, state: State, direction: Direction) -> tuple[str, State]:
    """Reads one step x (B, I) of one layer; gives its output (B, R) and the state after it."""
    first = graph.integers(0)
    if direction.fits_operator(graph):
        y, [last] = _by_operator(graph, graph.operator("Unsqueeze", x, first), [state], [direction], None)
        return graph.operator("Squeeze", y, first), last
    h, c = (graph.operator("Squeeze", one, first) for one in state)
    h, c = _cell(graph, _from_input(graph, x, direction), h, c, direction)
    return h, (graph.operator("Unsqueeze", h, first), graph.operator("Unsqueeze", c, first))


def _direction(module: nn.LSTM | G2LSTM, rule: GateRule, name: str, suffix: str) -> Direction:
    factors = rule.row_scale(1, torch.empty(0, dtype=torch.float64)).tolist()  # of the four gates
    rows = np.repeat(np.array(factors, dtype=np.float32), module.hidden_size)

    def matrices(kind: str) -> tuple[Matrix, ...]:
        own = f"weight_{kind}{suffix}"
        encoded: list[Encoded]
        if isinstance(module, CompressedLSTM):
            encoded = [module.matrices[f"{own}.{letter}"] for letter in LETTERS]
        else:
            encoded = [Dense(part) for part in floats(getattr(module, own)).chunk(4)]
        each = zip(LETTERS, encoded, factors, strict=True)
        return tuple(Matrix(f"{name}{own}.{letter}", one, factor) for letter, one, factor in each)

    def bias(kind: str) -> Floats:
        return floats(getattr(module, f"bias_{kind}{suffix}")).numpy() * rows if module.bias else np.zeros_like(rows)

    w_r = None
    if module.proj_size:
        own = f"weight_hr{suffix}"
        w_r = Matrix(f"{name}{own}", Dense(floats(getattr(module, own))))
    hard = rule.gates if rule.hard else ""
    return Direction(matrices("ih"), matrices("hh"), bias("ih"), bias("hh"), w_r, hard)


def floats(tensor: Tensor) -> Tensor:
    """The values of a parameter in float32 on the CPU."""
    return tensor.detach().to("cpu").float().contiguous()


def _zero_state(graph: Graph, x: str, direction: Direction) -> State:
    batch = graph.operator("Shape", x, start=1, end=2)

    def zeros(width: int) -> str:
        shape = graph.operator("Concat", graph.integers(1), batch, graph.integers(width), axis=0)
        return graph.operator("ConstantOfShape", shape)

    return zeros(direction.width), zeros(direction.hidden)


def _by_operator(
    graph: Graph, x: str, states: list[State], directions: list[Direction], sequences: Sequences | None
) -> tuple[str, list[State]]:
    """All directions of one layer by the operator `LSTM`: x (T, B, I)."""

    def weights(which: str) -> str:
        first = graph.integers(0)
        each = [
            graph.operator("Unsqueeze", expanded(graph, [getattr(one, which)[gate] for gate in _ONNX_ORDER]), first)
            for one in directions
        ]
        return _joined(graph, each, axis=0)

    def in_order(bias: Floats) -> list[Floats]:
        return [bias.reshape(4, -1)[gate] for gate in _ONNX_ORDER]

    biases = np.stack([np.concatenate(in_order(one.b_x) + in_order(one.b_h)) for one in directions])
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
    graph: Graph, x: str, state: State, direction: Direction, sequences: Sequences | None, backwards: bool
) -> tuple[str, State]:
    """One direction of one layer by a loop over the cell: x (T, B, I). The input's product is made before the loop."""
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
    """Each sequence of x (T, B, ...) from its end to its beginning; what stands after it stays there."""
    return graph.operator("ReverseSequence", x, sequences.lengths, time_axis=0, batch_axis=1)


def _from_input(graph: Graph, x: str, direction: Direction) -> str:
    """The share of x (..., I) and of the biases in the pre-activations, (..., 4H)."""
    return product(graph, x, direction.w_x, direction.b_x + direction.b_h)


def _cell(graph: Graph, alpha: str, h: str, c: str, direction: Direction) -> tuple[str, str]:
    """One step: from alpha (B, 4H) without the share of h, h (B, R) and c (B, H), to the next h and c."""
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
