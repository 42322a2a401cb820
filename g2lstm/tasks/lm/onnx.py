"""A language model as an ONNX graph: tokens and states to log-probabilities and states."""

import torch

from g2lstm.export.part import NEXT, Exporter, Part, Shape, Tensors
from g2lstm.tasks.lm.model import LanguageModel


class LanguageModelExporter(Exporter):
    """Exports a `LanguageModel`."""

    example = """\
model = ort.InferenceSession({path!r})
state = {{one.name: np.zeros((1, 1, one.shape[2]), np.float32) for one in model.get_inputs()[1:]}}
log_probabilities, *state = model.run(None, {{"tokens": np.array([[{begin}]]), **state}})"""

    module: LanguageModel

    def parts(self) -> dict[str, Part]:
        """One: tokens (T, B) and the states to log-probabilities (T, B, V) and the states after them."""
        return {"model": _Reading(self.module)}


class _Reading(Part):
    model: LanguageModel

    def __init__(self, model: LanguageModel) -> None:
        steps, batch = 8, 16
        inputs = {"tokens": torch.randint(model.vocabulary_size, (steps, batch))}
        shapes: dict[str, Shape] = {"tokens": ("time", "batch")}
        for number, layer in enumerate(model.lstms):
            for name in (f"h{number}", f"c{number}"):
                inputs[name] = torch.rand(1, batch, layer.hidden_size) * 2 - 1
                shapes[name] = (1, "batch", layer.hidden_size)
        super().__init__(model, inputs, shapes)
        self.carried = {f"{name}{NEXT}": name for name in inputs if name != "tokens"}

    def compute(self, inputs: Tensors) -> Tensors:
        tokens, *states = inputs.values()
        features, _, ends = self.model(tokens, list(zip(states[0::2], states[1::2], strict=True)))
        flat = [one for end in ends for one in end]
        log_probabilities = self.model.logits(features).log_softmax(-1)
        return {"log_probabilities": log_probabilities, **dict(zip(self.carried, flat, strict=True))}
