"""LSTMs whose gates learn to be 0 or 1: a drop-in `torch.nn.LSTM`, trained with logistic noise in its gates."""

from pathlib import Path
from typing import TYPE_CHECKING

from g2lstm.errors import G2Error
from g2lstm.nn.convert import convert_, freeze_
from g2lstm.nn.gates import Gates
from g2lstm.nn.lstm import G2LSTM
from g2lstm.nn.record import GateRecord, record_gates
from g2lstm.version import __version__

if TYPE_CHECKING:
    from g2lstm.runs.language import TrainedLanguageModel
    from g2lstm.runs.translation import TrainedTranslationModel

__all__ = ["G2LSTM", "G2Error", "GateRecord", "Gates", "__version__", "convert_", "freeze_", "load", "record_gates"]


def load(run_dir: str | Path) -> "TrainedLanguageModel | TrainedTranslationModel":
    """A trained model with its tokenizer, from a run directory: `.perplexity` and `.generate`, or `.translate`."""
    from g2lstm.runs import trained  # what it needs is heavy, and not needed for the layer alone

    return trained.load(run_dir)
