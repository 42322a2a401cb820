"""`export_onnx`: any model as ONNX files, checked before they get their names."""

import copy
import importlib.util
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from g2lstm.compression.model import plain
from g2lstm.errors import G2Error
from g2lstm.files import refuse_existing, together
from g2lstm.nn.checks import checked_option
from g2lstm.nn.record import evaluating, gated
from g2lstm.version import __version__

if TYPE_CHECKING:
    from g2lstm.export.part import Exporter, Part
    from g2lstm.export.trace import Graph

VERSION = 1  # of the JSON file


@dataclass(frozen=True)
class Export:
    """What was written.

    Attributes:
        files: all files; the last is the JSON file that describes the others.
        difference: the largest between ONNX Runtime and PyTorch, |ours - theirs| / (1 + |ours|).
        tolerance: the largest that was allowed.
        expanded: names of packed matrices that become float32 when a runtime loads the files.
        example: lines of Python that run the export.
    """

    files: tuple[Path, ...]
    difference: float
    tolerance: float
    expanded: tuple[str, ...]
    example: str


def export_onnx(
    model: Any,
    path: str | Path,
    example: Any = None,
    *,
    states: bool | None = None,
    activations: str = "float32",
    eval_gate: str | None = None,
    force: bool = False,
) -> Export:
    """Writes a model as ONNX, and checks it in ONNX Runtime against PyTorch at several lengths and batch sizes.

    Any model that `torch.export` can trace becomes one file, with the arguments of its forward as inputs. Batch and
    length may differ in each call, as far as the model allows it. States that a model takes and returns are inputs and
    outputs; those of a layer that it calls without states are added: for a layer `lstm` the inputs lstm.h0 and lstm.c0
    and the outputs lstm.hn and lstm.cn.

    A language model becomes one file, from tokens (T, B) and states to log-probabilities (T, B, V) and states. A
    translation model becomes two, NAME.encoder.onnx and NAME.decoder.onnx; the decoder makes one step. A layer becomes
    one file, from input, h and c to output, h and c. NAME.json describes inputs, outputs and token ids; the tokenizers
    are in NAME.tokenizer.json and so on.

    Dense and low-rank weights need only ONNX's own operators. Packed weights of up to four bits are multiplied packed,
    by ONNX Runtime's `MatMulNBits`, wider ones only with int8 activations; otherwise they become float32 when a runtime
    loads the file, and a warning names them.

    Args:
        model: any `torch.nn.Module`, compressed or not; a trained model from `g2lstm.load`; or any object with a method
            `onnx_exporter()`.
        path: NAME.onnx.
        example: what the model is called with: a tensor, a tuple of arguments or a dictionary of named ones. Recurrent
            layers, language and translation models need none.
        states: whether to add the states of layers that the model calls without any; None for yes, unless a layer reads
            in both directions.
        activations: "float32"; or "int8" to round the vectors that packed weights are multiplied by, which is faster
            and a little less exact.
        eval_gate: "soft", "tempered" or "hard"; None for the model's own.
        force: replace existing files.
    """
    _require_extra()
    from g2lstm.export.check import Agreement, check
    from g2lstm.export.trace import trace
    from g2lstm.export.weights import ACCURACY

    path = Path(path)
    if path.suffix != ".onnx" or path.name == ".onnx":
        raise G2Error(f"the name of an export must end in .onnx, got {str(path)!r}; use a name such as model.onnx")
    if activations not in ACCURACY:
        raise G2Error(f"activations must be one of {', '.join(map(repr, ACCURACY))}, got {activations!r}")
    if eval_gate is not None:
        checked_option("eval_gate", eval_gate)
    exporter = _exporter_for(model, example, states)
    module = exporter.module = plain(exporter.module)
    if eval_gate not in (None, "soft") and not gated(module):
        raise G2Error(f"a torch.nn.LSTM has soft gates, not {eval_gate!r} ones; pass a G2LSTM, or eval_gate='soft'")
    names = {part: path.name if part == "model" else f"{path.stem}.{part}.onnx" for part in exporter.names}
    kept = [*names.values(), *(f"{path.stem}.{ending}" for ending in exporter.files), f"{path.stem}.json"]
    if not force:
        refuse_existing(path.parent, kept)

    with evaluating(module, eval_gate), torch.no_grad(), together(path, kept) as folder:
        if activations == "int8" and any(layer.gate_rule().hard for layer in gated(module)):
            raise G2Error("int8 activations would flip hard gates at random near 0; use float32 activations")
        parts = exporter.parts()
        graphs = {name: trace(part, activations) for name, part in parts.items()}
        found = []
        for name, graph in graphs.items():
            (folder / names[name]).write_bytes(graph.model.SerializeToString())
            found.append(check(parts[name], folder / names[name], activations))
        agreement = Agreement(max(one.difference for one in found), max(one.tolerance for one in found))
        for ending, content in exporter.files.items():
            (folder / f"{path.stem}.{ending}").write_bytes(content)
        facts = _describe(exporter, parts, graphs, names, path.stem) | {
            "checked": {"difference": agreement.difference, "tolerance": agreement.tolerance}
        }
        (folder / f"{path.stem}.json").write_text(json.dumps(facts, indent=2))
    expanded = tuple(dict.fromkeys(name for graph in graphs.values() for name in graph.expanded))
    if expanded:
        how = "; with int8 activations those of eight bits stay packed, except the right factors of embeddings"
        how = "" if activations == "int8" else how
        warnings.warn(f"become float32 when a runtime loads the export: {_listed(expanded)}{how}", stacklevel=2)
    files = tuple(path.parent / name for name in kept)
    return Export(files, agreement.difference, agreement.tolerance, expanded, _example(exporter, parts, path))


def _require_extra() -> None:
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise G2Error(f"an export needs {' and '.join(missing)}; install them with: pip install 'g2lstm[export]'")
    if not hasattr(torch.onnx, "ops"):
        raise G2Error(f"an export needs a newer torch than {torch.__version__}; it is tested with torch 2.13")


def _exporter_for(model: Any, example: Any, states: bool | None) -> "Exporter":
    from g2lstm.export.layers import Layer
    from g2lstm.export.part import CallExporter, LayerExporter

    if hasattr(model, "onnx_exporter"):
        exporter: Exporter = model.onnx_exporter()
        return exporter
    model = getattr(model, "_orig_mod", model)  # what `torch.compile` was given
    if isinstance(model, torch.jit.ScriptModule):
        raise G2Error("a scripted module hides its layers; export the model that it was made from")
    if not isinstance(model, nn.Module):
        raise G2Error(f"only a torch.nn.Module or a trained model can be exported, got {type(model).__name__}")
    if isinstance(model, Layer):
        return LayerExporter(model)
    if example is None:
        raise G2Error(
            f"to export {type(model).__name__}, pass an example of what it is called with: "
            "export_onnx(model, path, example=x), or a tuple of several arguments"
        )
    return CallExporter(model, example, states)


def _describe(
    exporter: "Exporter",
    parts: Mapping[str, "Part"],
    graphs: Mapping[str, "Graph"],
    files: Mapping[str, str],
    stem: str,
) -> dict[str, Any]:
    """What a program must know to use the export."""
    described = {
        name: {
            "file": files[name],
            "operators": "onnx" if graph.is_plain else "onnx and com.microsoft (ONNX Runtime)",
            "activations": graph.activations,
            **graph.signature(),
        }
        for name, graph in graphs.items()
    }
    carried = {output: given for part in parts.values() for output, given in part.carried.items()}
    facts: dict[str, Any] = {"format": "g2lstm-onnx", "version": VERSION, "g2lstm": __version__}
    facts |= {"graphs": described, "carried": carried, **copy.deepcopy(exporter.facts)}
    for tokens in facts.get("tokens", {}).values():
        tokens["tokenizer"] = f"{stem}.{tokens['tokenizer']}"
    return facts


def _example(exporter: "Exporter", parts: Mapping[str, "Part"], path: Path) -> str:
    sides = list(exporter.facts.get("tokens", {}).values()) or [{"begin": 0, "end": 0}]
    tokens = {"begin": sides[-1]["begin"], "end": sides[0]["end"]}
    if exporter.example is not None:
        lines = exporter.example.format(path=str(path), stem=str(path.with_suffix("")), **tokens)
    else:
        part, given = parts["model"], []
        for name, example in part.inputs.items():
            shape = tuple(size if isinstance(size, int) else 1 for size in part.shapes[name])
            number = 0.0 if example.is_floating_point() else example.min().item()
            given.append(f"    {name!r}: np.full({shape}, {number!r}, np.{example.numpy().dtype}),")
        call = ["inputs = {", *given, "}", "outputs = model.run(None, inputs)"]
        lines = "\n".join([f"model = ort.InferenceSession({str(path)!r})", *call])
    return f"import numpy as np, onnxruntime as ort\n{lines}"


def _listed(names: tuple[str, ...]) -> str:
    """The first few names, and the number of the others."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
