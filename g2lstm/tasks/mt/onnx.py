"""A translation model as two ONNX graphs: an encoder, and a decoder that makes one step."""

import math

import numpy as np
import torch
from torch import nn

from g2lstm.export.check import Exporter, Outputs, Runners, named_states
from g2lstm.export.graph import FLOAT, INTEGER, TRUTH, Graph
from g2lstm.export.lstm import Sequences, layers_of, run, step
from g2lstm.export.weights import linear, log_softmax, lookup, weights_of
from g2lstm.nn.lstm import GatedLSTM
from g2lstm.tasks.mt.model import TranslationModel


class TranslationModelExporter(Exporter):
    """Exports a `TranslationModel`."""

    example = """\
encoder, decoder = (ort.InferenceSession({stem!r} + part) for part in (".encoder.onnx", ".decoder.onnx"))
read = encoder.run(None, {{"source": np.array([[{end}]]), "lengths": np.array([1])}})  # (time, batch)
names = [one.name for one in encoder.get_outputs()]
log_probabilities, attention, *state = decoder.run(None, {{"tokens": np.array([{begin}]), **dict(zip(names, read))}})"""
    parts = ("encoder", "decoder")

    module: TranslationModel

    def graphs(self, activations: str) -> dict[str, Graph]:
        """Encoder and decoder."""
        return {"encoder": _encoder(self.module, activations), "decoder": _decoder(self.module, activations)}

    def outputs(self, runners: Runners, steps: int, batch: int, generator: torch.Generator) -> Outputs:
        """Those of the encoder, then of two steps of the decoder, each from the export's own state."""
        model, hypotheses = self.module, 1 + steps % 3
        table = model.target_embedding if model.source_embedding is None else model.source_embedding
        source = torch.randint(table.num_embeddings, (steps, batch), generator=generator)
        lengths = torch.randint(1, steps + 1, (batch,), generator=generator)
        lengths[-1] = steps
        memory = model.encode(source, lengths)
        start = model.start(memory)
        got = runners["encoder"]({"source": source.numpy(), "lengths": lengths.numpy()})
        for name, value in {"memory": memory.values, "keys": memory.keys, "is_padding": memory.is_padding}.items():
            yield name, got[name], value
        for name, value in named_states(start.layers):
            yield name, got[name], value

        state = start.select(torch.arange(batch), torch.zeros(batch, hypotheses, dtype=torch.int64))
        seen = {name: got[name] for name in ("memory", "keys", "is_padding")}
        theirs = {name: got[name].repeat(hypotheses, axis=1) for name, _ in named_states(start.layers)}
        for _ in range(2):
            tokens = torch.randint(len(model.softmax_bias), (batch, hypotheses), generator=generator)
            out = model.step(tokens, state)
            state = out.state
            got = runners["decoder"]({"tokens": tokens.flatten().numpy(), **seen, **theirs})
            yield "log_probabilities", got["log_probabilities"], out.log_probabilities.flatten(0, 1)
            yield "attention", got["attention"], out.attention.flatten(0, 1)
            for name, value in named_states(state.layers):
                yield f"{name}_next", got[f"{name}_next"], value
                theirs[name] = got[f"{name}_next"]

    @property
    def softmax_width(self) -> int:
        """What the softmax sees."""
        return self.module.output.out_features

    def largest_input(self, embedded: float) -> float:
        """Each residual layer adds 1 at most."""
        layers = max(len(self.module.encoder), len(self.module.decoder)) if self.module.residual else 0
        return max(embedded, layers)


def _encoder(model: TranslationModel, activations: str) -> Graph:
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
    x = lookup(graph, source, weights_of(table, "target_embedding.weight" if shared else "source_embedding.weight"))
    for number, layer in enumerate(_recurrent(model.encoder)):
        below, sequences = x, Sequences(lengths, is_token) if number == 0 else None
        x, _ = run(graph, below, None, layers_of(layer, f"encoder.{number}."), sequences)
        if model.residual and number > 1:
            x = graph.operator("Add", x, below)
    memory = graph.operator("Transpose", x, perm=[1, 0, 2])
    keys = linear(graph, memory, model.attention.key, "attention.key")
    is_padding = graph.operator("Transpose", graph.operator("Not", is_token), perm=[1, 0])

    kept = graph.operator(
        "Where", graph.operator("Unsqueeze", is_token, graph.integers(-1)), x, graph.constant(np.float32(0))
    )
    count = graph.operator("Unsqueeze", graph.operator("Cast", lengths, to=FLOAT), graph.integers(1))
    mean = graph.operator("Div", graph.operator("ReduceSum", kept, graph.integers(0), keepdims=0), count)  # (B, C)
    starts = graph.operator("Tanh", linear(graph, mean, model.bridge, "bridge"))
    layers, hidden = len(model.decoder), model.attention.key.out_features
    h = graph.operators("Split", [starts], layers, axis=-1, num_outputs=layers) if layers > 1 else [starts]

    graph.output(memory, "memory", FLOAT, "batch", "source", model.attention.key.in_features)
    graph.output(keys, "keys", FLOAT, "batch", "source", hidden)
    graph.output(is_padding, "is_padding", TRUTH, "batch", "source")
    for number in range(layers):
        first = graph.operator("Unsqueeze", h[number], graph.integers(0))
        nothing = graph.operator("ConstantOfShape", graph.operator("Shape", first))
        graph.state_output((first, nothing), str(number), hidden, "batch")
    return graph


def _decoder(model: TranslationModel, activations: str) -> Graph:
    """One step: tokens (B · K,), the encoder's outputs for B sentences, and the state, to what may come next.

    The K hypotheses of a sentence stand one after the other; K follows from the sizes.
    """
    graph = Graph(activations)
    key = model.attention.key
    hidden, context_size = key.out_features, key.in_features
    tokens = graph.input("tokens", INTEGER, "rows")
    memory = graph.input("memory", FLOAT, "batch", "source", context_size)
    keys = graph.input("keys", FLOAT, "batch", "source", hidden)
    is_padding = graph.input("is_padding", TRUTH, "batch", "source")
    states = [graph.state_input(number, hidden, "rows") for number in range(len(model.decoder))]
    layers = [layers_of(layer, f"decoder.{number}.")[0][0] for number, layer in enumerate(_recurrent(model.decoder))]

    embedding = weights_of(model.target_embedding, "target_embedding.weight")
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
    features = graph.operator("Tanh", linear(graph, joined, model.output, "output"))
    softmax = embedding if model.softmax_weight is None else weights_of(model.softmax_weight, "softmax_weight")
    log_probabilities = log_softmax(graph, features, softmax, model.softmax_bias)
    source = graph.operator("Shape", memory, start=1, end=2)
    flat = graph.operator("Concat", graph.integers(-1), source, axis=0)
    graph.output(log_probabilities, "log_probabilities", FLOAT, "rows", len(model.softmax_bias))
    graph.output(graph.operator("Reshape", weights, flat), "attention", FLOAT, "rows", "source")
    for number, end in enumerate(ends):
        graph.state_output(end, f"{number}_next", hidden, "rows")
    return graph


def _recurrent(modules: nn.ModuleList) -> list[nn.LSTM | GatedLSTM]:
    return [module for module in modules if isinstance(module, nn.LSTM | GatedLSTM)]
