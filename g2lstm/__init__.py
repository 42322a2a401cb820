"""LSTMs whose gates learn to be 0 or 1: a drop-in `torch.nn.LSTM`, trained with logistic noise in its gates."""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from g2lstm.errors import G2Error, needs
from g2lstm.version import __version__

if TYPE_CHECKING:
    from g2lstm.compression.model import compress, prepare_
    from g2lstm.compression.saved import HubMixin, load_into, save
    from g2lstm.compression.search import search
    from g2lstm.compression.straight_through import unprepare_
    from g2lstm.compression.stream import stream
    from g2lstm.export.c.export import export_c
    from g2lstm.export.html.page import export_html
    from g2lstm.export.onnx import export_onnx
    from g2lstm.nn.cells import G2GRUCell, G2LSTMCell
    from g2lstm.nn.convert import convert_, freeze_
    from g2lstm.nn.gate import Gates
    from g2lstm.nn.gru import G2GRU
    from g2lstm.nn.lstm import G2LSTM
    from g2lstm.nn.record import GateRecord, record_gates
    from g2lstm.nn.schedule import GateSchedule, set_gates_
    from g2lstm.nn.survey import survey
    from g2lstm.runs.trained import load
    from g2lstm.training.huggingface import HuggingFaceCallback
    from g2lstm.training.lightning import LightningCallback
    from g2lstm.training.start import train

__all__ = [
    "G2GRU",
    "G2LSTM",
    "G2Error",
    "G2GRUCell",
    "G2LSTMCell",
    "GateRecord",
    "GateSchedule",
    "Gates",
    "HubMixin",
    "HuggingFaceCallback",
    "LightningCallback",
    "__version__",
    "compress",
    "convert_",
    "export_c",
    "export_html",
    "export_onnx",
    "freeze_",
    "load",
    "load_into",
    "prepare_",
    "record_gates",
    "save",
    "search",
    "set_gates_",
    "stream",
    "survey",
    "train",
    "unprepare_",
]

# Imported on first use: torch alone takes seconds, which a process that only reads text should not have to spend.
_LATER = {
    "G2GRU": "g2lstm.nn.gru",
    "G2GRUCell": "g2lstm.nn.cells",
    "G2LSTM": "g2lstm.nn.lstm",
    "G2LSTMCell": "g2lstm.nn.cells",
    "GateRecord": "g2lstm.nn.record",
    "GateSchedule": "g2lstm.nn.schedule",
    "Gates": "g2lstm.nn.gate",
    "HuggingFaceCallback": "g2lstm.training.huggingface",
    "LightningCallback": "g2lstm.training.lightning",
    "HubMixin": "g2lstm.compression.saved",
    "compress": "g2lstm.compression.model",
    "convert_": "g2lstm.nn.convert",
    "export_c": "g2lstm.export.c.export",
    "export_html": "g2lstm.export.html.page",
    "export_onnx": "g2lstm.export.onnx",
    "freeze_": "g2lstm.nn.convert",
    "load": "g2lstm.runs.trained",
    "load_into": "g2lstm.compression.saved",
    "prepare_": "g2lstm.compression.model",
    "record_gates": "g2lstm.nn.record",
    "save": "g2lstm.compression.saved",
    "search": "g2lstm.compression.search",
    "set_gates_": "g2lstm.nn.schedule",
    "stream": "g2lstm.compression.stream",
    "survey": "g2lstm.nn.survey",
    "train": "g2lstm.training.start",
    "unprepare_": "g2lstm.compression.straight_through",
}
_PACKAGES = {"HuggingFaceCallback": "transformers", "LightningCallback": "lightning"}


def __getattr__(name: str) -> Any:
    """Imports a public name; `load`, `train` and the callbacks need more than torch, numpy and safetensors."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package = _PACKAGES.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        raise G2Error(f"g2lstm.{name} is a callback for {package}, which is not installed: pip install {package}")
    with needs("text", f"g2lstm.{name}"):
        globals()[name] = found = getattr(importlib.import_module(_LATER[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
