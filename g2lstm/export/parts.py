"""Parts of whole models in an ONNX graph: embeddings, linear layers, a softmax, and states."""

from torch import Tensor, nn

from g2lstm.compression.encodings import Dense
from g2lstm.compression.stream import encoding_of
from g2lstm.export.graph import FLOAT, Graph
from g2lstm.export.lstm import State, floats
from g2lstm.export.weights import Weight, product


def table_weight(owner: nn.Module | Tensor, name: str) -> Weight:
    """The weights of an embedding or a softmax, as they are encoded."""
    return Weight(name, encoding_of(owner))


def add_linear(graph: Graph, x: str, linear: nn.Linear, name: str) -> str:
    """A linear layer, applied to x (..., inputs)."""
    weight = Weight(f"{name}.weight", Dense(floats(linear.weight)))
    return product(graph, x, [weight], None if linear.bias is None else floats(linear.bias))


def add_log_softmax(graph: Graph, features: str, weight: Weight, bias: Tensor) -> str:
    """The log-probabilities (..., V) from features (..., E)."""
    return graph.operator("LogSoftmax", product(graph, features, [weight], floats(bias)), axis=-1)


def state_input(graph: Graph, number: int, hidden: int, rows: str) -> State:
    """The inputs h and c of layer `number`."""
    return graph.input(f"h{number}", FLOAT, 1, rows, hidden), graph.input(f"c{number}", FLOAT, 1, rows, hidden)


def state_output(graph: Graph, state: State, ending: str, hidden: int, rows: str) -> None:
    """Outputs h and c whose names end like this."""
    for value, letter in zip(state, "hc", strict=True):
        graph.output(value, f"{letter}{ending}", FLOAT, 1, rows, hidden)
