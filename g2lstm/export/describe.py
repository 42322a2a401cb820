"""What someone on a device must know of an export: inputs, outputs, token ids, and lines of Python that run it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from g2lstm.export.graph import Graph
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.mt.model import TranslationModel
from g2lstm.tasks.trained import Trained
from g2lstm.version import __version__

VERSION = 1  # of the description
_NEXT = "_next"  # the ending of outputs that the next call takes

_IMPORTS = "import numpy as np, onnxruntime as ort"
_LANGUAGE_MODEL = """\
model = ort.InferenceSession({path!r})
state = {{one.name: np.zeros((1, 1, one.shape[2]), np.float32) for one in model.get_inputs()[1:]}}
log_probabilities, *state = model.run(None, {{"tokens": np.array([[{begin}]]), **state}})"""
_TRANSLATION_MODEL = """\
encoder, decoder = (ort.InferenceSession({stem!r} + part) for part in (".encoder.onnx", ".decoder.onnx"))
read = encoder.run(None, {{"source": np.array([[{end}]]), "lengths": np.array([1])}})  # (time, batch)
names = [one.name for one in encoder.get_outputs()]
log_probabilities, attention, *state = decoder.run(None, {{"tokens": np.array([{begin}]), **dict(zip(names, read))}})"""
_LAYER = """\
layer = ort.InferenceSession({path!r})
x, h, c = (np.zeros([1 if isinstance(n, str) else n for n in one.shape], np.float32) for one in layer.get_inputs())
output, h, c = layer.run(None, {{"input": x, "h": h, "c": c}})"""


def describe(model: object, graphs: Mapping[str, Graph], files: Mapping[str, str], stem: str) -> dict[str, Any]:
    """An export in words that a program can read.

    Args:
        model: what was exported.
        graphs: by their parts, "model", or "encoder" and "decoder".
        files: by the same.
        stem: what the names of the files begin with.
    """
    parts = {
        part: {
            "file": files[part],
            "operators": "onnx" if graph.is_plain else "onnx and com.microsoft (ONNX Runtime)",
            "activations": graph.activations,
            **graph.signature(),
        }
        for part, graph in graphs.items()
    }
    outputs = [output["name"] for graph in graphs.values() for output in graph.signature()["outputs"]]
    carried = {name: name.removesuffix(_NEXT) for name in outputs if name.endswith(_NEXT)}
    facts: dict[str, Any] = {"format": "g2lstm-onnx", "version": VERSION, "g2lstm": __version__}
    facts |= {"graphs": parts, "carried": carried}
    if isinstance(model, Trained):
        described = model.describe()
        for tokens in described["tokens"].values():
            tokens["tokenizer"] = f"{stem}.{tokens['tokenizer']}"
        facts |= described
    return facts


def example(model: object, path: Path) -> str:
    """Lines of Python that run an export once.

    Args:
        model: what was exported.
        path: the name it was given.
    """
    module = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    begin = end = 0
    if isinstance(model, Trained):
        sides = list(model.describe()["tokens"].values())
        begin, end = sides[-1]["begin"], sides[0]["end"]
    lines = _LAYER
    if isinstance(module, LanguageModel):
        lines = _LANGUAGE_MODEL
    elif isinstance(module, TranslationModel):
        lines = _TRANSLATION_MODEL
    return f"{_IMPORTS}\n{lines.format(path=str(path), stem=str(path.with_suffix('')), begin=begin, end=end)}"
