"""LSTMs whose gates learn to be 0 or 1: a drop-in `torch.nn.LSTM`, trained with logistic noise in its gates."""

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from g2lstm.errors import G2Error
from g2lstm.nn.convert import convert_, freeze_
from g2lstm.nn.gates import Gates
from g2lstm.nn.lstm import G2LSTM
from g2lstm.nn.record import GateRecord, record_gates
from g2lstm.version import __version__

if TYPE_CHECKING:
    from g2lstm.compress.model import compress
    from g2lstm.compress.spec import Spec
    from g2lstm.compress.stream import stream
    from g2lstm.nn.convert import Model
    from g2lstm.runs.language import TrainedLanguageModel
    from g2lstm.runs.translation import TrainedTranslationModel
    from g2lstm.train.call import train
else:
    from g2lstm import compress, train

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
    "record_gates",
    "stream",
    "train",
]


def load(run_dir: str | Path) -> "TrainedLanguageModel | TrainedTranslationModel":
    """A trained model with its tokenizer, from a run directory: `.perplexity` and `.generate`, or `.translate`."""
    from g2lstm.runs import trained  # what it needs is heavy, and not needed for the layer alone

    return trained.load(run_dir)


class _Compress(ModuleType):
    """The room `compress`, called like its function: importing the room would hide a function of the same name."""

    def __call__(self, model: "Model", spec: "str | Spec") -> "Model":
        """See `g2lstm.compress.model.compress`."""
        from g2lstm.compress import model as room

        return room.compress(model, spec)


class _Train(ModuleType):
    """The room `train`, called like its function."""

    def __call__(self, *arguments: Any, **options: Any) -> "TrainedLanguageModel | TrainedTranslationModel":
        """See `g2lstm.train.call.train`."""
        from g2lstm.train import call

        return call.train(*arguments, **options)


if not TYPE_CHECKING:

    def stream(model, threads=None):
        """A session that reads one sequence step by step, from packed weights; see `g2lstm.compress.stream`."""
        from g2lstm.compress.stream import stream as open_stream

        return open_stream(model, threads)

    compress.__class__ = _Compress
    train.__class__ = _Train
