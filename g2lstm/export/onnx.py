"""`export_onnx`: a trained model, or any LSTM layer, as ONNX files, checked before they get their names."""

import copy
import importlib.util
import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from g2lstm.errors import G2Error
from g2lstm.nn.checks import checked_option
from g2lstm.nn.lstm import GatedLSTM
from g2lstm.nn.record import evaluating, lstms
from g2lstm.nn.survey import why_not
from g2lstm.version import __version__

if TYPE_CHECKING:
    from g2lstm.export.check import Exporter
    from g2lstm.export.graph import Graph

MOST_BYTES = 2**31 - 2**20  # an ONNX file is one protobuf message, which can't exceed 2 GiB
VERSION = 1  # of the JSON file
_NEXT = "_next"  # the ending of outputs that the next call takes


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
    *,
    activations: str = "float32",
    eval_gate: str | None = None,
    force: bool = False,
) -> Export:
    """Writes a model as ONNX, and checks it in ONNX Runtime against PyTorch at several lengths and batch sizes.

    A language model becomes one file, from tokens (T, B) and states to log-probabilities (T, B, V) and states. A
    translation model becomes two, NAME.encoder.onnx and NAME.decoder.onnx; the decoder makes one step. A layer becomes
    one file, from input, h and c to output, h and c. NAME.json describes inputs, outputs and token ids; the tokenizers
    are in NAME.tokenizer.json and so on.

    Dense and low-rank weights need only ONNX's own operators. Packed weights of up to four bits are multiplied packed,
    by ONNX Runtime's `MatMulNBits`, wider ones only with int8 activations; otherwise they become float32 when a runtime
    loads the file, and a warning names them.

    Args:
        model: a trained model from `g2lstm.load`, a `LanguageModel` or `TranslationModel`, a `G2LSTM` or
            `torch.nn.LSTM`, or any object with a method `onnx_exporter()`; compressed or not.
        path: NAME.onnx.
        activations: "float32"; or "int8" to round the vectors that packed weights are multiplied by, which is faster
            and a little less exact.
        eval_gate: "soft", "tempered" or "hard"; None for the model's own.
        force: replace existing files.
    """
    _require_extra()
    from g2lstm.export.check import check
    from g2lstm.export.weights import ACCURACY

    path = Path(path)
    if path.suffix != ".onnx" or path.name == ".onnx":
        raise G2Error(f"the name of an export must end in .onnx, got {str(path)!r}; use a name such as model.onnx")
    if activations not in ACCURACY:
        raise G2Error(f"activations must be one of {', '.join(map(repr, ACCURACY))}, got {activations!r}")
    if eval_gate is not None:
        checked_option("eval_gate", eval_gate)
    exporter = _exporter_for(model)
    module = exporter.module = _checked_module(exporter.module)
    if eval_gate not in (None, "soft") and not lstms(module):
        raise G2Error(f"a torch.nn.LSTM has soft gates, not {eval_gate!r} ones; pass a G2LSTM, or eval_gate='soft'")
    names = {part: path.name if part == "model" else f"{path.stem}.{part}.onnx" for part in exporter.parts}
    kept = [*names.values(), *(f"{path.stem}.{ending}" for ending in exporter.files), f"{path.stem}.json"]
    taken = [name for name in kept if (path.parent / name).exists()]
    if taken and not force:
        raise G2Error(f"{path.parent / taken[0]} exists already; choose another name, or replace it with --force")

    with evaluating(module, eval_gate), _folder_for(path) as folder:
        if activations == "int8" and any(layer.gate_rule().hard for layer in lstms(module)):
            raise G2Error("int8 activations would flip hard gates at random near 0; use float32 activations")
        graphs = exporter.graphs(activations)
        for part, graph in graphs.items():
            _write(folder / names[part], _content(graph))
        agreement = check(exporter, {part: folder / name for part, name in names.items()}, activations)
        for ending, content in exporter.files.items():
            _write(folder / f"{path.stem}.{ending}", content)
        facts = _describe(exporter, graphs, names, path.stem)
        facts["checked"] = {"difference": agreement.difference, "tolerance": agreement.tolerance}
        _write(folder / f"{path.stem}.json", json.dumps(facts, indent=2).encode())
        for name in kept:
            os.replace(folder / name, path.parent / name)
    expanded = tuple(dict.fromkeys(name for graph in graphs.values() for name in graph.expanded))
    if expanded:
        how = "; with int8 activations those of eight bits stay packed, except the right factors of embeddings"
        how = "" if activations == "int8" else how
        warnings.warn(f"become float32 when a runtime loads the export: {_listed(expanded)}{how}", stacklevel=2)
    files = tuple(path.parent / name for name in kept)
    return Export(files, agreement.difference, agreement.tolerance, expanded, _example(exporter, path))


def _require_extra() -> None:
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise G2Error(f"an export needs {' and '.join(missing)}; install them with: pip install 'g2lstm[export]'")


def _exporter_for(model: Any) -> "Exporter":
    if hasattr(model, "onnx_exporter"):
        exporter: Exporter = model.onnx_exporter()
        return exporter
    from g2lstm.export.lstm import LayerExporter

    if not isinstance(model, nn.LSTM | GatedLSTM):
        raise G2Error(
            "only a trained model from g2lstm.load, a LanguageModel, a TranslationModel, a G2LSTM or a torch.nn.LSTM "
            f"can be exported, got {type(model).__name__}; export the LSTM layers of another model one by one"
        )
    return LayerExporter(model)


def _checked_module(model: nn.Module) -> nn.Module:
    """The model in float32 on the CPU, or a copy of it; raises if it can't be exported."""
    for name, module in model.named_modules():
        if (why := why_not(module)) is not None:
            raise G2Error(f"can't export {name or 'this layer'}: {why}")
    is_plain = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())
    return model if is_plain else copy.deepcopy(model).to("cpu", torch.float32)


def _describe(
    exporter: "Exporter", graphs: Mapping[str, "Graph"], files: Mapping[str, str], stem: str
) -> dict[str, Any]:
    """What a program must know to use the export."""
    parts = {
        part: {
            "file": files[part],
            "operators": "onnx" if graph.is_plain else "onnx and com.microsoft (ONNX Runtime)",
            "activations": graph.activations,
            **graph.signature(),
        }
        for part, graph in graphs.items()
    }
    outputs = [one["name"] for graph in graphs.values() for one in graph.signature()["outputs"]]
    carried = {name: name.removesuffix(_NEXT) for name in outputs if name.endswith(_NEXT)}
    facts: dict[str, Any] = {"format": "g2lstm-onnx", "version": VERSION, "g2lstm": __version__}
    facts |= {"graphs": parts, "carried": carried, **copy.deepcopy(exporter.facts)}
    for tokens in facts.get("tokens", {}).values():
        tokens["tokenizer"] = f"{stem}.{tokens['tokenizer']}"
    return facts


def _example(exporter: "Exporter", path: Path) -> str:
    sides = list(exporter.facts.get("tokens", {}).values()) or [{"begin": 0, "end": 0}]
    tokens = {"begin": sides[-1]["begin"], "end": sides[0]["end"]}
    lines = exporter.example.format(path=str(path), stem=str(path.with_suffix("")), **tokens)
    return f"import numpy as np, onnxruntime as ort\n{lines}"


def _content(graph: "Graph") -> bytes:
    import onnx

    if graph.constant_bytes > MOST_BYTES:
        raise G2Error(
            f"the weights take {graph.constant_bytes / 1e9:.1f} GB, and an ONNX file can hold 2.1 GB; "
            "compress the model first"
        )
    model = graph.model()
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


@contextmanager
def _folder_for(path: Path) -> Iterator[Path]:
    """A temporary folder beside the final files; it is removed at the end, and after an error nothing remains."""
    parent = path.parent
    is_new = not parent.exists()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=parent) as folder:
            yield Path(folder)
    except OSError as error:
        raise G2Error(f"can't write {path}: {error.strerror or error}; choose another place with --out") from None
    finally:
        if is_new and parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _listed(names: tuple[str, ...]) -> str:
    """The first few names, and the number of the others."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
