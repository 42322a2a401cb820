"""Whole models as ONNX graphs: a language model, the two halves of a translation model, a layer by itself."""

import math

import numpy as np
from torch import Tensor, nn

from g2lstm.compression.matrix import Dense
from g2lstm.compression.table import CompressedTable
from g2lstm.export.graph import FLOAT, INTEGER, TRUTH, Graph
from g2lstm.export.lstm import Sequences, State, floats, layers_of, run, step
from g2lstm.export.weights import Matrix, lookup, product
from g2lstm.nn.lstm import G2LSTM
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.model import weight_of
from g2lstm.tasks.mt.model import TranslationModel


def language_model(model: LanguageModel, activations: str) -> Graph:
    """Tokens (T, B) and the state of each layer to log-probabilities (T, B, V) and the states after them."""
    graph = Graph(activations)
    tokens = graph.input("tokens", INTEGER, "time", "batch")
    states = [_state_input(graph, number, layer.hidden_size, "batch") for number, layer in enumerate(model.lstms)]
    embedding = _table(model.embedding, "embedding.weight")
    x = lookup(graph, tokens, embedding)
    ends: list[State] = []
    for number, layer in enumerate(model.lstms):
        below = x
        x, last = run(graph, below, [states[number]], layers_of(layer, f"layers.{number}."))
        ends += last
        if model.is_residual(layer):
            x = graph.operator("Add", x, below)
    softmax = embedding if model.softmax_weight is None else _table(model.softmax_weight, "softmax_weight")
    log_probabilities = _log_softmax(graph, x, softmax, model.softmax_bias)
    graph.output(log_probabilities, "log_probabilities", FLOAT, "time", "batch", model.vocabulary_size)
    for number, layer in enumerate(model.lstms):
        _state_output(graph, ends[number], f"{number}_next", layer.hidden_size, "batch")
    return graph


def encoder(model: TranslationModel, activations: str) -> Graph:
    """Sources (S, B) and their lengths to what the decoder looks at, and its first state."""
    graph = Graph(activations)
    source = graph.input("source", INTEGER, "source", "batch")
    lengths = graph.input("lengths", INTEGER, "batch")
    zero, one = (graph.constant(np.int64(number)) for number in (0, 1))
    size = graph.operator("Squeeze", graph.operator("Shape", source, start=0, end=1))
    places = graph.operator("Unsqueeze", graph.operator("Range", zero, size, one), graph.integers(1))
    is_token = graph.operator("Less", places, graph.operator("Unsqueeze", lengths, graph.integers(0)))  # (S, B)

    shared = model.source_embedding is None
    table = model.target_embedding if model.source_embedding is None else model.source_embedding
    x = lookup(graph, source, _table(table, "target_embedding.weight" if shared else "source_embedding.weight"))
    for number, layer in enumerate(_recurrent(model.encoder)):
        below, sequences = x, Sequences(lengths, is_token) if number == 0 else None
        x, _ = run(graph, below, None, layers_of(layer, f"encoder.{number}."), sequences)
        if model.residual and number > 1:
            x = graph.operator("Add", x, below)
    memory = graph.operator("Transpose", x, perm=[1, 0, 2])
    keys = _linear(graph, memory, model.attention.key, "attention.key")
    is_padding = graph.operator("Transpose", graph.operator("Not", is_token), perm=[1, 0])

    kept = graph.operator("Where", graph.operator("Unsqueeze", is_token, graph.integers(-1)), x, _zero(graph))
    count = graph.operator("Unsqueeze", graph.operator("Cast", lengths, to=FLOAT), graph.integers(1))
    mean = graph.operator("Div", graph.operator("ReduceSum", kept, graph.integers(0), keepdims=0), count)  # (B, C)
    starts = graph.operator("Tanh", _linear(graph, mean, model.bridge, "bridge"))
    layers, hidden = len(model.decoder), model.attention.key.out_features
    h = graph.operators("Split", [starts], layers, axis=-1, num_outputs=layers) if layers > 1 else [starts]

    graph.output(memory, "memory", FLOAT, "batch", "source", model.attention.key.in_features)
    graph.output(keys, "keys", FLOAT, "batch", "source", hidden)
    graph.output(is_padding, "is_padding", TRUTH, "batch", "source")
    for number in range(layers):
        first = graph.operator("Unsqueeze", h[number], graph.integers(0))
        nothing = graph.operator("ConstantOfShape", graph.operator("Shape", first))
        _state_output(graph, (first, nothing), str(number), hidden, "batch")
    return graph


def decoder(model: TranslationModel, activations: str) -> Graph:
    """One step: tokens (B · K,), the encoder's outputs for B sentences, and the state, to what may come next.

    K hypotheses of a sentence stand one after the other; K is whatever makes the numbers fit.
    """
    graph = Graph(activations)
    key = model.attention.key
    hidden, context_size = key.out_features, key.in_features
    tokens = graph.input("tokens", INTEGER, "rows")
    memory = graph.input("memory", FLOAT, "batch", "source", context_size)
    keys = graph.input("keys", FLOAT, "batch", "source", hidden)
    is_padding = graph.input("is_padding", TRUTH, "batch", "source")
    states = [_state_input(graph, number, hidden, "rows") for number in range(len(model.decoder))]
    layers = [layers_of(layer, f"decoder.{number}.")[0][0] for number, layer in enumerate(_recurrent(model.decoder))]

    embedding = _table(model.target_embedding, "target_embedding.weight")
    x, last = step(graph, lookup(graph, tokens, embedding), states[0], layers[0])
    ends = [last]
    batch = graph.operator("Shape", memory, start=0, end=1)
    shape = graph.operator("Concat", batch, graph.integers(-1, hidden), axis=0)
    queries = graph.operator("Reshape", x, shape)  # (B, K, H)
    scores = graph.operator("MatMul", queries, graph.operator("Transpose", keys, perm=[0, 2, 1]))
    scores = graph.operator("Mul", scores, graph.constant(np.float32(hidden**-0.5)))
    hidden_places = graph.operator("Unsqueeze", is_padding, graph.integers(1))
    scores = graph.operator("Where", hidden_places, graph.constant(np.float32(-math.inf)), scores)
    weights = graph.operator("Softmax", scores, axis=-1)  # (B, K, S)
    context = graph.operator("Reshape", graph.operator("MatMul", weights, memory), graph.integers(-1, context_size))
    for number in range(1, len(layers)):
        below = x
        x, last = step(graph, graph.operator("Concat", below, context, axis=-1), states[number], layers[number])
        if model.residual:
            x = graph.operator("Add", x, below)
        ends.append(last)
    joined = graph.operator("Concat", x, context, axis=-1)
    features = graph.operator("Tanh", _linear(graph, joined, model.output, "output"))
    softmax = embedding if model.softmax_weight is None else _table(model.softmax_weight, "softmax_weight")
    log_probabilities = _log_softmax(graph, features, softmax, model.softmax_bias)
    source = graph.operator("Shape", memory, start=1, end=2)
    flat = graph.operator("Concat", graph.integers(-1), source, axis=0)
    graph.output(log_probabilities, "log_probabilities", FLOAT, "rows", len(model.softmax_bias))
    graph.output(graph.operator("Reshape", weights, flat), "attention", FLOAT, "rows", "source")
    for number, end in enumerate(ends):
        _state_output(graph, end, f"{number}_next", hidden, "rows")
    return graph


def layer(module: nn.LSTM | G2LSTM, activations: str) -> Graph:
    """A layer, or several one upon the other, as torch has them: input, h and c to output, h and c."""
    graph = Graph(activations)
    layers = layers_of(module, "")
    count, width = sum(map(len, layers)), layers[0][0].width
    order: tuple[str, str] = ("batch", "time") if module.batch_first else ("time", "batch")
    x = graph.input("input", FLOAT, *order, module.input_size)
    h = graph.input("h", FLOAT, count, "batch", width)
    c = graph.input("c", FLOAT, count, "batch", module.hidden_size)
    x = graph.operator("Transpose", x, perm=[1, 0, 2]) if module.batch_first else x
    parts = (
        graph.operators("Split", [part], count, axis=0, num_outputs=count) if count > 1 else [part] for part in (h, c)
    )
    y, ends = run(graph, x, list(zip(*parts, strict=True)), layers)
    y = graph.operator("Transpose", y, perm=[1, 0, 2]) if module.batch_first else y
    graph.output(y, "output", FLOAT, *order, len(layers[0]) * width)
    for part, name, size in ((0, "h_next", width), (1, "c_next", module.hidden_size)):
        joined = graph.operators("Concat", [end[part] for end in ends], 1, axis=0)[0]
        graph.output(joined, name, FLOAT, count, "batch", size)
    return graph


def _recurrent(modules: nn.ModuleList) -> list[nn.LSTM | G2LSTM]:
    return [module for module in modules if isinstance(module, nn.LSTM | G2LSTM)]


def _table(owner: nn.Module | Tensor, name: str) -> Matrix:
    """The matrix of an embedding or of a softmax, as it is encoded."""
    return Matrix(name, owner.matrix if isinstance(owner, CompressedTable) else Dense(floats(weight_of(owner))))


def _linear(graph: Graph, x: str, linear: nn.Linear, name: str) -> str:
    matrix = Matrix(f"{name}.weight", Dense(floats(linear.weight)))
    return product(graph, x, [matrix], None if linear.bias is None else floats(linear.bias).numpy())


def _log_softmax(graph: Graph, features: str, weights: Matrix, bias: Tensor) -> str:
    return graph.operator("LogSoftmax", product(graph, features, [weights], floats(bias).numpy()), axis=-1)


def _zero(graph: Graph) -> str:
    return graph.constant(np.float32(0))


def _state_input(graph: Graph, number: int, hidden: int, rows: str) -> State:
    return graph.input(f"h{number}", FLOAT, 1, rows, hidden), graph.input(f"c{number}", FLOAT, 1, rows, hidden)


def _state_output(graph: Graph, state: State, ending: str, hidden: int, rows: str) -> None:
    for value, letter in zip(state, "hc", strict=True):
        graph.output(value, f"{letter}{ending}", FLOAT, 1, rows, hidden)
