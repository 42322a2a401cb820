"""A model in evaluation: no dropout, no noise, and one of the three ways to compute its gates."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from g2lstm.nn.lstm import GatedLSTM


def lstms(model: nn.Module) -> list[GatedLSTM]:
    """Every LSTM with our gates inside a model, compressed ones too, in the order of the modules."""
    return [module for module in model.modules() if isinstance(module, GatedLSTM)]


def set_eval_gate(model: nn.Module, eval_gate: str) -> None:
    """Sets how all layers compute their gates in evaluation: "soft", "tempered" or "hard"."""
    for layer in lstms(model):
        layer.eval_gate = eval_gate


@contextmanager
def evaluating(model: nn.Module, eval_gate: str | None = None) -> Iterator[None]:
    """Puts the model into evaluation mode with these gates, and restores both at the end.

    Args:
        model: with or without `G2LSTM` layers.
        eval_gate: "soft", "tempered" or "hard"; None to leave them as they are.
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
