"""What both models share: dropout, and a softmax that may be tied."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from g2lstm.tasks.cross_entropy import cross_entropy


class TokenModel(nn.Module):
    """A model that ends in a softmax over a vocabulary of V tokens, seen through features of width E."""

    softmax_parameters = ("softmax_weight",)  # how `compress` finds the softmax
    tied_to: ClassVar[str]  # the name of the embedding whose weights a tied softmax uses
    softmax_weight: nn.Parameter | nn.Module | None  # (V, E), a module once it is compressed; None if tied
    softmax_bias: nn.Parameter  # (V,)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.softmax_bias.device

    @property
    def output_weight(self) -> Tensor:
        """(V, E), the weights of the softmax: the embedding's own if tied."""
        weight = self._softmax if isinstance(self._softmax, Tensor) else self._softmax.weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    def _softmax(self) -> nn.Module | Tensor:
        return self.get_submodule(self.tied_to) if self.softmax_weight is None else self.softmax_weight

    def logits(self, features: Tensor) -> Tensor:
        """Unnormalised log-probabilities (..., V) of the next token from features (..., E)."""
        return nn.functional.linear(features, self.output_weight, self.softmax_bias)

    def token_losses(self, features: Tensor, targets: Tensor) -> Tensor:
        """-log p(target) in nats, shaped like `targets` (...), from features (..., E); never holds all the logits."""
        rows = features.reshape(-1, features.size(-1))
        losses = cross_entropy(rows, self.output_weight, self.softmax_bias, targets.reshape(-1), reduction="none")
        return losses.view(targets.shape)

    def _drop(self, x: Tensor, probability: float) -> Tensor:
        """Dropout with one mask for all steps, in training only."""
        return locked_dropout(x, probability) if self.training else x


def locked_dropout(x: Tensor, probability: float) -> Tensor:
    """Variational dropout of x (T, B, H): one mask for all steps, with the kept values scaled up to keep the mean."""
    if probability == 0:
        return x
    keep = 1 - probability
    mask = torch.empty(1, *x.shape[1:], dtype=x.dtype, device=x.device).bernoulli_(keep).div_(keep)
    return x * mask


def word_dropout(embedded: Tensor, tokens: Tensor, vocabulary_size: int, probability: float) -> Tensor:
    """Drops whole words: a dropped word is zero wherever it occurs, and the others are scaled up to keep the mean.

    It takes the embeddings (T, B, E) of `tokens` (T, B). This equals zeroing rows of the embedding matrix before the
    lookup, but does not copy that matrix.
    """
    if probability == 0:
        return embedded
    keep = 1 - probability
    mask = torch.empty(vocabulary_size, dtype=embedded.dtype, device=embedded.device).bernoulli_(keep).div_(keep)
    return embedded * mask[tokens].unsqueeze(-1)
