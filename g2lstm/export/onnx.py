"""`export_onnx`: a trained model, or any LSTM layer, as ONNX files that were checked before they get their names."""

import copy
import importlib.util
import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from g2lstm.errors import G2Error
from g2lstm.nn.checks import checked_option
from g2lstm.nn.convert import why_not
from g2lstm.nn.lstm import G2LSTM
from g2lstm.nn.mode import evaluating, lstms
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.mt.model import TranslationModel

if TYPE_CHECKING:
    from g2lstm.export.graph import Graph
    from g2lstm.tasks.trained import Trained

MOST_BYTES = 2**31 - 2**20  # a file of ONNX's is one message of protobuf, which ends at 2 GiB


@dataclass(frozen=True)
class Export:
    """What was written.

    Attributes:
        files: all of them; the last is the JSON file that tells how the others are used.
        difference: the largest between ONNX Runtime and PyTorch, |ours - theirs| / (1 + |ours|).
        tolerance: the largest that was allowed.
        expanded: names of the packed matrices that become float32 when a runtime loads the files.
        example: lines of Python that run it.
    """

    files: tuple[Path, ...]
    difference: float
    tolerance: float
    expanded: tuple[str, ...]
    example: str


def export_onnx(
    model: "Trained | nn.Module",
    path: str | Path,
    *,
    activations: str = "float32",
    eval_gate: str | None = None,
    force: bool = False,
) -> Export:
    """Writes a model as ONNX, and checks it in ONNX Runtime against PyTorch at several lengths and batches.

    A language model becomes one file, from tokens (T, B) and states to log-probabilities (T, B, V) and states. A
    translation model becomes two, NAME.encoder.onnx and NAME.decoder.onnx, the second of which makes one step. A layer
    becomes one, from input, h and c to output, h and c. Beside them NAME.json tells inputs, outputs and token ids, and
    the tokenizers stand as NAME.tokenizer.json and so on.

    Dense weights and those of low rank need nothing but ONNX's own operators. Packed weights of up to four bits are
    multiplied packed by ONNX Runtime's `MatMulNBits`, those of more bits only with int8 activations; else they become
    float32 on loading, and a warning names them.

    Args:
        model: what `g2lstm.load` gives, a `LanguageModel` or `TranslationModel`, a `G2LSTM` or `torch.nn.LSTM`;
            compressed or not.
        path: NAME.onnx.
        activations: "float32"; or "int8" to round the vectors that packed weights are multiplied with, which is faster
            and a little less exact.
        eval_gate: "soft", "tempered" or "hard"; None for the model's own.
        force: replace files that are there already.
    """
    _require_extra()
    from g2lstm.export.check import check
    from g2lstm.export.describe import describe, example
    from g2lstm.export.weights import ACCURACY

    path = Path(path)
    if path.suffix != ".onnx" or path.name == ".onnx":
        raise G2Error(f"the name of an export must end with .onnx, got {str(path)!r}; give a file such as model.onnx")
    if activations not in ACCURACY:
        raise G2Error(f"activations must be one of {', '.join(map(repr, ACCURACY))}, got {activations!r}")
    if eval_gate is not None:
        checked_option("eval_gate", eval_gate)
    module = _checked_module(model if isinstance(model, nn.Module) else model.model)
    tokenizers = {} if isinstance(model, nn.Module) else model.tokenizers
    if eval_gate not in (None, "soft") and not lstms(module):
        raise G2Error(f"a torch.nn.LSTM has soft gates, not {eval_gate!r} ones; give the G2LSTM, or eval_gate='soft'")
    parts = ("encoder", "decoder") if isinstance(module, TranslationModel) else ("model",)
    names = {part: path.name if part == "model" else f"{path.stem}.{part}.onnx" for part in parts}
    kept = [*names.values(), *(f"{path.stem}.{name}" for name in tokenizers), f"{path.stem}.json"]
    taken = [name for name in kept if (path.parent / name).exists()]
    if taken and not force:
        raise G2Error(f"{path.parent / taken[0]} exists already; choose another name, or replace it by force (--force)")

    with evaluating(module, eval_gate), _folder_for(path) as folder:
        if activations == "int8" and any(layer.gate_rule().hard for layer in lstms(module)):
            raise G2Error("int8 activations would open and close hard gates at random near 0; use float32 with them")
        graphs = _graphs(module, activations)
        for part, graph in graphs.items():
            _write(folder / names[part], _content(graph))
        agreement = check(module, {part: folder / name for part, name in names.items()}, activations)
        for name, tokenizer in tokenizers.items():
            _write(folder / f"{path.stem}.{name}", tokenizer.to_json().encode())
        facts = describe(model, graphs, names, path.stem)
        facts["checked"] = {"difference": agreement.difference, "tolerance": agreement.tolerance}
        _write(folder / f"{path.stem}.json", json.dumps(facts, indent=2).encode())
        for name in kept:
            os.replace(folder / name, path.parent / name)
    expanded = tuple(dict.fromkeys(name for graph in graphs.values() for name in graph.expanded))
    if expanded:
        how = "; with int8 activations those of eight bits stay packed, but for the right factors of embeddings"
        how = "" if activations == "int8" else how
        warnings.warn(f"become float32 when the export is loaded: {_listed(expanded)}{how}", stacklevel=2)
    files = tuple(path.parent / name for name in kept)
    return Export(files, agreement.difference, agreement.tolerance, expanded, example(model, path))


def _require_extra() -> None:
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise G2Error(f"an export needs {' and '.join(missing)}; install them with: pip install 'g2lstm[export]'")


def _checked_module(model: nn.Module) -> "LanguageModel | TranslationModel | nn.LSTM | G2LSTM":
    """The model in float32 on the CPU, if it is one that can be exported; a copy where it is not so itself."""
    from g2lstm.compression.lstm import CompressedLSTM

    if not isinstance(model, LanguageModel | TranslationModel | nn.LSTM | G2LSTM):
        raise G2Error(
            "what can be exported is a trained model from g2lstm.load, a LanguageModel, a TranslationModel, a G2LSTM "
            f"or a torch.nn.LSTM, got {type(model).__name__}; of another model, export its LSTM layers one by one"
        )
    for name, module in model.named_modules():
        for kind in (nn.LSTM, G2LSTM):
            if not isinstance(module, CompressedLSTM) and (why := why_not(module, kind)) is not None:
                raise G2Error(f"{name or 'this layer'} cannot be exported: {why}")
    tensors = [*model.parameters(), *model.buffers()]
    if all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors):
        return model
    return copy.deepcopy(model).to("cpu", torch.float32)


def _graphs(model: nn.Module, activations: str) -> dict[str, "Graph"]:
    from g2lstm.export import models

    if isinstance(model, TranslationModel):
        return {"encoder": models.encoder(model, activations), "decoder": models.decoder(model, activations)}
    if isinstance(model, LanguageModel):
        return {"model": models.language_model(model, activations)}
    assert isinstance(model, nn.LSTM | G2LSTM)
    return {"model": models.layer(model, activations)}


def _content(graph: "Graph") -> bytes:
    import onnx

    if graph.constant_bytes > MOST_BYTES:
        raise G2Error(
            f"the weights take {graph.constant_bytes / 1e9:.1f} GB, and an ONNX file holds at most 2.1 GB; "
            "compress the model first"
        )
    model = graph.model()
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


@contextmanager
def _folder_for(path: Path) -> Iterator[Path]:
    """A folder for files under way, beside where they will be; it is gone at the end, and so is all after an error."""
    parent = path.parent
    is_new = not parent.exists()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=parent) as folder:
            yield Path(folder)
    except OSError as error:
        raise G2Error(f"{path} cannot be written: {error.strerror or error}; choose another place with --out") from None
    finally:
        if is_new and parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _listed(names: tuple[str, ...]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
