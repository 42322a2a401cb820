"""A translation model as two ONNX graphs: an encoder, and a decoder that makes one step."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from g2lstm.export.part import NEXT, Exporter, Part, Shape, Tensors
from g2lstm.tasks.mt.model import DecoderState, Memory, TranslationModel

_MEMORY = {"memory": "values", "keys": "keys", "is_padding": "is_padding"}  # names in the graphs and in `Memory`


class TranslationModelExporter(Exporter):
    """Exports a `TranslationModel`."""

    example = """\
encoder, decoder = (ort.InferenceSession({stem!r} + part) for part in (".encoder.onnx", ".decoder.onnx"))
read = encoder.run(None, {{"source": np.array([[{end}]]), "lengths": np.array([1])}})  # (time, batch)
names = [one.name for one in encoder.get_outputs()]
log_probabilities, attention, *state = decoder.run(None, {{"tokens": np.array([{begin}]), **dict(zip(names, read))}})"""
    names = ("encoder", "decoder")

    module: TranslationModel

    def parts(self) -> dict[str, Part]:
        """Encoder and decoder."""
        encoder = _Encoder(self.module)
        return {"encoder": encoder, "decoder": _Decoder(self.module, encoder)}


class _Encoder(Part):
    """Sources (S, B) and their lengths to what the decoder looks at, and its first state."""

    model: TranslationModel

    def __init__(self, model: TranslationModel) -> None:
        super().__init__(model, {}, {"source": ("source", "batch"), "lengths": ("batch",)})
        self.inputs = self.draw({"source": 8, "batch": 16}, torch.default_generator)

    def compute(self, inputs: Tensors) -> Tensors:
        memory = self.model.encode(inputs["source"], inputs["lengths"])
        seen = {name: getattr(memory, part) for name, part in _MEMORY.items()}
        return seen | _named(self.model.start(memory))

    def draw(self, sizes: Mapping[str, int], generator: torch.Generator) -> Tensors:
        steps, batch = sizes["source"], sizes["batch"]
        source = torch.randint(len(self.model.source_weight), (steps, batch), generator=generator)
        lengths = torch.randint(1, steps + 1, (batch,), generator=generator)
        return {"source": source, "lengths": lengths}


class _Decoder(Part):
    """One step: tokens (B · K,), the encoder's outputs for B sentences, and the state, to what may come next.

    The K hypotheses of a sentence stand one after the other; K follows from the sizes.
    """

    model: TranslationModel

    def __init__(self, model: TranslationModel, encoder: _Encoder) -> None:
        super().__init__(model, {})
        self._encoder = [encoder]  # in a list, so that it is not a module of this one
        self.inputs = self.draw({"source": 8, "batch": 16}, torch.default_generator)
        dynamic: dict[str, Shape] = {"tokens": ("rows",), **dict.fromkeys(_MEMORY, ("batch", "source"))}
        for name, one in self.inputs.items():
            lead = dynamic.get(name, (1, "rows"))
            self.shapes[name] = (*lead, *one.shape[len(lead) :])
        self.carried = {f"{name}{NEXT}": name for name in self.inputs if name not in dynamic}

    def compute(self, inputs: Tensors) -> Tensors:
        tokens, values, keys, is_padding, *states = inputs.values()
        rows, batch = tokens.size(0), values.size(0)
        many = rows // batch
        state = [_as(one, 1, batch * many, one.size(2)) for one in states]
        layers = list(zip(state[0::2], state[1::2], strict=True))
        out = self.model.step(_as(tokens, batch, many), DecoderState(Memory(values, keys, is_padding), layers))
        flat = {"log_probabilities": out.log_probabilities, "attention": out.attention}
        ends = {f"{name}{NEXT}": _as(one, 1, rows, one.size(2)) for name, one in _named(out.state).items()}
        return {name: _as(one, rows, one.size(2)) for name, one in flat.items()} | ends

    def draw(self, sizes: Mapping[str, int], generator: torch.Generator) -> Tensors:
        many = 1 + sizes["source"] % 3
        read = self._encoder[0].compute(self._encoder[0].draw(sizes, generator))
        seen = {name: read.pop(name) for name in _MEMORY}
        rows = sizes["batch"] * many
        tokens = torch.randint(len(self.model.softmax_bias), (rows,), generator=generator)
        states = {name: torch.rand(1, rows, one.size(2), generator=generator) * 2 - 1 for name, one in read.items()}
        return {"tokens": tokens, **seen, **states}


def _as(tensor: Tensor, *shape: Any) -> Tensor:
    """The tensor in this shape; torch can't see by itself that the number of rows is a multiple of the batch's."""
    if not torch.compiler.is_exporting():
        return tensor.reshape(shape)
    sizes = torch.stack([torch.sym_int(size) * torch.ones((), dtype=torch.int64) for size in shape])
    return torch.onnx.ops.symbolic("Reshape", (tensor, sizes), dtype=tensor.dtype, shape=shape, version=14)


def _named(state: DecoderState) -> Tensors:
    """The states by the names that graphs have for them: h0, c0, h1, ..."""
    return {f"{letter}{n}": one for n, pair in enumerate(state.layers) for letter, one in zip("hc", pair, strict=True)}
