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
    """The model in evaluation mode with these gates; both are as before at the end."""
    layers = lstms(model)
    was_training, gates = model.training, [layer.eval_gate for layer in layers]
    try:
        model.eval()
        if eval_gate is not None:
            set_eval_gate(model, eval_gate)
        yield
    finally:
        model.train(was_training)
        for layer, gate in zip(layers, gates, strict=True):
            layer.eval_gate = gate
