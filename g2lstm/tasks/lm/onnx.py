"""A language model as an ONNX graph: tokens and states to log-probabilities and states."""

import torch

from g2lstm.export.check import Exporter, Outputs, Runners, draw_state, named_states
from g2lstm.export.graph import FLOAT, INTEGER, Graph
from g2lstm.export.lstm import State, layers_of, run
from g2lstm.export.weights import log_softmax, lookup, weights_of
from g2lstm.tasks.lm.model import LanguageModel


class LanguageModelExporter(Exporter):
    """Exports a `LanguageModel`."""

    example = """\
model = ort.InferenceSession({path!r})
state = {{one.name: np.zeros((1, 1, one.shape[2]), np.float32) for one in model.get_inputs()[1:]}}
log_probabilities, *state = model.run(None, {{"tokens": np.array([[{begin}]]), **state}})"""

    module: LanguageModel

    def graphs(self, activations: str) -> dict[str, Graph]:
        """One graph: tokens (T, B) and the states to log-probabilities (T, B, V) and the states after them."""
        model = self.module
        graph = Graph(activations)
        tokens = graph.input("tokens", INTEGER, "time", "batch")
        states = [graph.state_input(number, layer.hidden_size, "batch") for number, layer in enumerate(model.lstms)]
        embedding = weights_of(model.embedding, "embedding.weight")
        x = lookup(graph, tokens, embedding)
        ends: list[State] = []
        for number, layer in enumerate(model.lstms):
            below = x
            x, last = run(graph, below, [states[number]], layers_of(layer, f"layers.{number}."))
            ends += last
            if model.is_residual(layer):
                x = graph.operator("Add", x, below)
        softmax = embedding if model.softmax_weight is None else weights_of(model.softmax_weight, "softmax_weight")
        log_probabilities = log_softmax(graph, x, softmax, model.softmax_bias)
        graph.output(log_probabilities, "log_probabilities", FLOAT, "time", "batch", model.vocabulary_size)
        for number, layer in enumerate(model.lstms):
            graph.state_output(ends[number], f"{number}_next", layer.hidden_size, "batch")
        return {"model": graph}

    def outputs(self, runners: Runners, steps: int, batch: int, generator: torch.Generator) -> Outputs:
        """Log-probabilities and states."""
        model = self.module
        tokens = torch.randint(model.vocabulary_size, (steps, batch), generator=generator)
        state = [draw_state(1, batch, layer.hidden_size, layer.hidden_size, generator) for layer in model.lstms]
        got = runners["model"]({"tokens": tokens.numpy(), **{name: one.numpy() for name, one in named_states(state)}})
        features, _, ends = model(tokens, state)
        yield "log_probabilities", got["log_probabilities"], model.logits(features).log_softmax(-1)
        for name, value in named_states(ends):
            yield f"{name}_next", got[f"{name}_next"], value

    @property
    def softmax_width(self) -> int:
        """The width of the last layer."""
        return self.module.lstms[-1].hidden_size

    def largest_input(self, embedded: float) -> float:
        """Each residual layer adds 1 at most."""
        return embedded + (len(self.module.layers) if self.module.residual else 0)
