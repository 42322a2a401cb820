"""The training objective of the AWD-LSTM: cross entropy and two regularisers."""

from typing import NamedTuple

from torch import Tensor

from g2lstm.tasks.cross_entropy import cross_entropy


class Loss(NamedTuple):
    """A training loss: what to differentiate, and the part of it that is a perplexity's logarithm."""

    total: Tensor  # (), with the regularisers
    cross_entropy: Tensor  # (), nats a token, no gradient


def training_loss(
    features: Tensor,
    raw: Tensor,
    targets: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    alpha: float = 2.0,
    beta: float = 1.0,
) -> Loss:
    """Cross entropy + alpha * activation regularisation + beta * temporal activation regularisation.

    As in the AWD-LSTM, the first regulariser sees the last layer's output after dropout, the second before it.

    Args:
        features: (T, B, E), the last layer's output after dropout.
        raw: (T, B, E), the same before dropout.
        targets: (T, B), the next token at each step.
        weight: (V, E), of the softmax.
        bias: (V,), of the softmax.
        alpha: weight of mean(features^2); 0 for none.
        beta: weight of mean((h_t+1 - h_t)^2); 0 for none.
    """
    loss = cross_entropy(features.flatten(0, 1), weight, bias, targets.flatten())
    total = loss
    if alpha:
        total = total + alpha * activation_regulariser(features)
    if beta:
        total = total + beta * temporal_regulariser(raw)
    return Loss(total, loss.detach())


def activation_regulariser(output: Tensor) -> Tensor:
    """mean(h^2) over output (T, B, E): large activations cost."""
    return output.square().mean()


def temporal_regulariser(output: Tensor) -> Tensor:
    """mean((h_t+1 - h_t)^2) over output (T, B, E): fast changes cost; 0 for a single step."""
    return activation_regulariser(output.diff(dim=0)) if len(output) > 1 else output.new_zeros(())
