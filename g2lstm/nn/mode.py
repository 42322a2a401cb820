"""The mode in which a model is evaluated: no dropout, no noise, and which reading of the gates."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from g2lstm.nn.lstm import GatedLSTM


def lstms(model: nn.Module) -> list[GatedLSTM]:
    """Every LSTM with our gates inside a model, compressed ones too, in the order of the modules."""
    return [module for module in model.modules() if isinstance(module, GatedLSTM)]


def set_eval_gate(model: nn.Module, eval_gate: str) -> None:
    """How the gates of all layers are computed in evaluation: "soft", "tempered" or "hard"."""
    for layer in lstms(model):
        layer.eval_gate = eval_gate


@contextmanager
def evaluating(model: nn.Module, eval_gate: str | None = None) -> Iterator[None]:
    """The model in evaluation mode with these gates; both are as before at the end.

    Args:
        model: with or without `G2LSTM` layers.
        eval_gate: "soft", "tempered" or "hard"; None for the model's own.
    """
    layers = lstms(model)
    modes, gates = [(module, module.training) for module in model.modules()], [layer.eval_gate for layer in layers]
    try:
        model.eval()
        if eval_gate is not None:
            set_eval_gate(model, eval_gate)
        yield
    finally:
        model.train(modes[0][1])  # the model itself comes first; modules may do more in `train` than set their mode
        for module, was_training in modes:
            module.training = was_training
        for layer, gate in zip(layers, gates, strict=True):
            layer.eval_gate = gate
