"""The mode in which a model is evaluated: no dropout, no noise, and which reading of the gates."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from g2lstm.nn.lstm import G2LSTM


def lstms(model: nn.Module) -> list[G2LSTM]:
    """Every `G2LSTM` inside a model, in the order of its modules."""
    return [module for module in model.modules() if isinstance(module, G2LSTM)]


def set_eval_gate(model: nn.Module, eval_gate: str) -> None:
    """How the gates of all layers are computed in evaluation: "soft", "tempered" or "hard"."""
    for layer in lstms(model):
        layer.eval_gate = eval_gate


@contextmanager
def evaluating(model: nn.Module, eval_gate: str | None = None) -> Iterator[None]:
    """The model in evaluation mode with these gates; both are as before at the end.

    Compressed layers do not read single sequences packed meanwhile: that rounds, and a score must not depend on how a
    text is cut into batches.
    """
    layers = lstms(model)
    was_training, gates = model.training, [layer.eval_gate for layer in layers]
    packed = [layer for layer in layers if getattr(layer, "reads_packed", False)]
    try:
        model.eval()
        if eval_gate is not None:
            set_eval_gate(model, eval_gate)
        _read_packed(packed, False)
        yield
    finally:
        _read_packed(packed, True)
        model.train(was_training)
        for layer, gate in zip(layers, gates, strict=True):
            layer.eval_gate = gate


def _read_packed(layers: list[G2LSTM], value: bool) -> None:
    for layer in layers:
        layer.reads_packed = value
