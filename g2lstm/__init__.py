"""LSTMs whose gates learn to be 0 or 1: a drop-in `torch.nn.LSTM`, trained with logistic noise in its gates."""

from g2lstm.errors import G2Error
from g2lstm.nn.convert import convert_, freeze_
from g2lstm.nn.gates import Gates
from g2lstm.nn.lstm import G2LSTM
from g2lstm.nn.record import GateRecord, record_gates
from g2lstm.version import __version__

__all__ = ["G2LSTM", "G2Error", "GateRecord", "Gates", "__version__", "convert_", "freeze_", "record_gates"]
