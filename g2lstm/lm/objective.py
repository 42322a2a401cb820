"""The training objective of the AWD-LSTM: cross entropy that never holds all the logits, and two regularisers."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import LinearCrossEntropyOptions
from torch.nn import functional as F  # noqa: N812  torch's own usage

from g2lstm.errors import G2Error

_CHUNK_ROWS = 128  # fewer rows make slow matrix products, more only take memory
_CHUNK_LOGITS = 1 << 21  # with a small vocabulary a chunk may have more rows: 8 MB of float32 logits


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


def cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *, reduction: str = "mean"
) -> Tensor:
    """Cross entropy of a softmax over `features @ weight.T + bias`, computed from a chunk of rows at a time.

    Loss and gradients of a chunk are computed together while its logits are in the processor's cache, then the logits
    are forgotten: less memory than the full logits, and less time. Always in the precision of the weights, under
    autocast too, because a sum over V exponentials in bfloat16 is no measure of anything. There is no second
    derivative where more than one chunk is needed.

    Args:
        features: (N, E).
        weight: (V, E).
        bias: (V,), or None.
        targets: (N,), int64.
        reduction: "mean", "sum" or "none".
    """
    if features.dim() != 2 or targets.shape != features.shape[:1]:
        raise G2Error(
            f"features must be (N, E) and targets (N,), got {tuple(features.shape)} and {tuple(targets.shape)}; "
            "flatten time and batch into one dimension"
        )
    if reduction not in ("mean", "sum", "none"):
        raise G2Error(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    rows = max(_CHUNK_ROWS, _CHUNK_LOGITS // weight.size(0))
    with torch.autocast(features.device.type, enabled=False):
        features = features.to(weight.dtype)
        if len(features) <= rows:
            return F.cross_entropy(F.linear(features, weight, bias), targets, reduction=reduction)
        options = LinearCrossEntropyOptions(batch_chunk_size=rows)
        return F.linear_cross_entropy(features, weight, targets, linear_bias=bias, reduction=reduction, options=options)
