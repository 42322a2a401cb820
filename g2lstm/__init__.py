"""LSTMs whose gates learn to be 0 or 1: a drop-in `torch.nn.LSTM`, trained with logistic noise in its gates."""

import importlib
from typing import TYPE_CHECKING, Any

from g2lstm.errors import G2Error, needs
from g2lstm.version import __version__

if TYPE_CHECKING:
    from g2lstm.compression.model import compress
    from g2lstm.compression.saved import load_into, save
    from g2lstm.compression.stream import stream
    from g2lstm.nn.convert import convert_, freeze_
    from g2lstm.nn.gate import Gates
    from g2lstm.nn.lstm import G2LSTM
    from g2lstm.nn.record import GateRecord, record_gates
    from g2lstm.runs.trained import load
    from g2lstm.training.start import train

__all__ = [
    "G2LSTM",
    "G2Error",
    "GateRecord",
    "Gates",
    "__version__",
    "compress",
    "convert_",
    "freeze_",
    "load",
    "load_into",
    "record_gates",
    "save",
    "stream",
    "train",
]

# Imported on first use: torch alone takes seconds, which a process that only reads text should not have to spend.
_LATER = {
    "G2LSTM": "g2lstm.nn.lstm",
    "GateRecord": "g2lstm.nn.record",
    "Gates": "g2lstm.nn.gate",
    "compress": "g2lstm.compression.model",
    "convert_": "g2lstm.nn.convert",
    "freeze_": "g2lstm.nn.convert",
    "load": "g2lstm.runs.trained",
    "load_into": "g2lstm.compression.saved",
    "record_gates": "g2lstm.nn.record",
    "save": "g2lstm.compression.saved",
    "stream": "g2lstm.compression.stream",
    "train": "g2lstm.training.start",
}


def __getattr__(name: str) -> Any:
    """Imports a public name; only `load` and `train` need more than torch, numpy and safetensors."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs("text", f"g2lstm.{name}"):
        globals()[name] = found = getattr(importlib.import_module(_LATER[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
