"""The mode in which gates are looked at, and the words that say which: evaluation, or training with its noise."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from g2lstm.errors import G2Error
from g2lstm.nn.mode import evaluating, lstms


@contextmanager
def in_mode(model: nn.Module, *, eval_gate: str | None = None, training: bool = False, seed: int = 0) -> Iterator[str]:
    """The model in evaluation or in training mode, no gradients; at the end it and torch's generator are as before.

    Args:
        model: with `G2LSTM` layers.
        eval_gate: in evaluation, "soft", "tempered" or "hard"; None for the model's own.
        training: noise, temperature and dropout as in training.
        seed: of noise and dropout.

    Yields:
        what the mode is, in words.
    """
    if training and eval_gate is not None:
        raise G2Error(
            f"eval_gate={eval_gate!r} is a reading of the gates in evaluation, and training mode has its own; "
            "ask for one of the two"
        )
    with evaluating(model, eval_gate), torch.no_grad(), torch.random.fork_rng(devices=[]):
        if training:
            torch.manual_seed(seed)
            model.train()
        yield mode_of(model)


def mode_of(model: nn.Module) -> str:
    """In words, the mode that a model is in."""
    layers = lstms(model)
    if not model.training:
        return f"evaluation, {layers[0].eval_gate} gates" if layers else "evaluation"
    if layers and layers[0].method == "gumbel":
        return f"training, noise in the gates (tau {layers[0].tau:g}, rate {layers[0].noise_rate:g}), dropout"
    if layers and layers[0].method == "sharpened":
        return f"training, sharpened gates (tau {layers[0].tau:g}) without noise, dropout"
    return "training, no noise, dropout"
