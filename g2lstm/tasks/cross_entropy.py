"""Cross entropy of a softmax over a vocabulary, without ever holding all the logits."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own usage
from torch.utils.checkpoint import checkpoint

_CHUNK_ROWS = 128  # fewer rows make slow matrix products, more only take memory
_CHUNK_LOGITS = 1 << 21  # with a small vocabulary a chunk may have more rows: 8 MB of float32 logits
_Options = getattr(nn, "LinearCrossEntropyOptions", None)  # torch 2.13 and later


def cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *, reduction: str = "mean"
) -> Tensor:
    """Cross entropy of targets (N,) and features (N, E), with a softmax's weight (V, E) and bias (V,), chunk by chunk.

    Torch 2.13 computes loss and gradients of a chunk together, while its logits are in the processor's cache, and then
    forgets the logits: that takes less memory than the full logits, and less time, but there is no second derivative.
    With an older torch the logits of a chunk are computed again in the backward pass.

    It always runs in the precision of the weights, even under autocast, because a sum over V exponentials in bfloat16
    is worthless.
    """
    rows = max(_CHUNK_ROWS, _CHUNK_LOGITS // weight.size(0))
    with torch.autocast(features.device.type, enabled=False):
        features = features.to(weight.dtype)
        if len(features) <= rows:
            return _of_logits(features, weight, bias, targets, reduction)
        if _Options is None:
            return _in_chunks(features, weight, bias, targets, reduction, rows)
        options = _Options(batch_chunk_size=rows)
        return F.linear_cross_entropy(features, weight, targets, linear_bias=bias, reduction=reduction, options=options)


def _of_logits(features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, reduction: str) -> Tensor:
    return F.cross_entropy(F.linear(features, weight, bias), targets, reduction=reduction)


def _in_chunks(
    features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, reduction: str, rows: int
) -> Tensor:
    losses = torch.cat(
        [
            checkpoint(_of_logits, x, weight, bias, y, "none", use_reentrant=False, preserve_rng_state=False)
            for x, y in zip(features.split(rows), targets.split(rows), strict=True)
        ]
    )
    return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()


class Guide(NamedTuple):
    """What a teacher makes of the same N rows; its width may be another."""

    features: Tensor  # (N, E')
    weight: Tensor  # (V, E'), of its softmax
    bias: Tensor  # (V,)
    share: float  # of the loss; the rest is the targets'


class GuidedLoss(NamedTuple):
    """Sums over all rows."""

    total: Tensor  # to be differentiated
    nats: Tensor  # cross entropy with the targets alone, without gradient


def guided_cross_entropy(features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, guide: Guide) -> GuidedLoss:
    """Cross entropy with `share` of the teacher's distribution and 1 - `share` of the targets, summed over the rows.

    The other arguments and the precision are those of `cross_entropy`; so is the order: loss and gradients of a chunk
    together, after which its logits are forgotten.
    """
    with torch.autocast(features.device.type, enabled=False):
        return GuidedLoss(*_Guided.apply(features.to(weight.dtype), weight, bias, targets, guide))


class _Guided(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, guide: Guide
    ) -> tuple[Tensor, Tensor]:
        rows, share = max(_CHUNK_ROWS, _CHUNK_LOGITS // weight.size(0)), guide.share
        total, nats = features.new_zeros((), dtype=torch.float64), features.new_zeros((), dtype=torch.float64)
        gradients = torch.empty_like(features), torch.zeros_like(weight), torch.zeros_like(bias)
        taught = guide.features.to(guide.weight.dtype).split(rows)
        parts = zip(features.split(rows), targets.split(rows), taught, gradients[0].split(rows), strict=True)
        for own, wanted, seen, gradient in parts:
            mixed = F.linear(seen, guide.weight, guide.bias).softmax(-1).mul_(share).to(own.dtype)
            mixed.scatter_add_(1, wanted[:, None], mixed.new_full((len(wanted), 1), 1 - share))
            logs = F.linear(own, weight, bias).log_softmax(-1)
            total -= (mixed * logs).sum()
            nats -= logs.gather(1, wanted[:, None]).sum()
            excess = logs.exp_().sub_(mixed)  # the gradient of the logits
            torch.mm(excess, weight, out=gradient)
            gradients[1].addmm_(excess.T, own)
            gradients[2].add_(excess.sum(0))
        ctx.save_for_backward(*gradients)
        total, nats = total.to(features.dtype), nats.to(features.dtype)
        ctx.mark_non_differentiable(nats)
        return total, nats

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        scale = upstream[0]
        return (*(gradient * scale for gradient in ctx.saved_tensors), None, None)


def smoothing_penalty(features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """The term (N,) of label smoothing: cross entropy + s * this spreads a share s of the target over all V tokens.

    It is the target's logit minus the mean of all V: with z the logits and L their log-sum-exp, cross entropy is
    L - z[target], and against a uniform target L - mean(z). The difference of the two is linear in the features. The
    arguments are those of `cross_entropy`.
    """
    penalty = ((F.embedding(targets, weight) - weight.mean(0)) * features.to(weight.dtype)).sum(-1)
    return penalty if bias is None else penalty + bias[targets] - bias.mean()
