"""What both models share: options of their layers, checked sizes, dropout, and a softmax that may be tied."""

from collections.abc import Mapping
from typing import TypedDict

import torch
from torch import Tensor, nn

from g2lstm.errors import G2Error
from g2lstm.nn.checks import check_count
from g2lstm.tasks.cross_entropy import cross_entropy


class GateOptions(TypedDict, total=False):
    """Options of `G2LSTM` that a model passes to all its layers."""

    method: str
    tau: float | None
    noise_rate: float
    gates: str
    eval_gate: str
    backend: str


def check_settings(sizes: Mapping[str, int], dropouts: Mapping[str, float]) -> None:
    """Raises unless all sizes are at least 1 and all dropout probabilities lie in [0, 1)."""
    for name, size in sizes.items():
        check_count(name, size)
    for name, probability in dropouts.items():
        if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 <= probability < 1:
            raise G2Error(f"{name} is a probability and must lie in [0, 1), got {probability!r}; 0 turns it off")


class TokenModel(nn.Module):
    """A model that ends in a softmax over a vocabulary of V tokens, seen through features of width E.

    Attributes:
        softmax_weight: (V, E), a module once it is compressed; None if the softmax is tied to `tied_embedding`, so that
            no tensor is stored twice.
        softmax_bias: (V,).
    """

    softmax_parameters = ("softmax_weight",)  # how `compress` finds the softmax
    softmax_weight: nn.Parameter | nn.Module | None
    softmax_bias: nn.Parameter

    @property
    def tied_embedding(self) -> nn.Embedding:
        """The embedding whose weights a tied softmax uses."""
        raise NotImplementedError

    @property
    def output_weight(self) -> Tensor:
        """(V, E), the weights of the softmax: the embedding's own if tied."""
        return weight_of(self._softmax)

    @property
    def _softmax(self) -> nn.Module | Tensor:
        return self.tied_embedding if self.softmax_weight is None else self.softmax_weight

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


def weight_of(softmax: nn.Module | Tensor) -> Tensor:
    """(V, E): a tensor is the weight itself, a module has one."""
    weight = softmax if isinstance(softmax, Tensor) else softmax.weight
    assert isinstance(weight, Tensor)
    return weight


def locked_dropout(x: Tensor, probability: float) -> Tensor:
    """Variational dropout: one mask for all time steps of a sequence, with the kept values scaled up to keep the mean.

    Args:
        x: (T, B, H).
        probability: of zeroing a feature of a sequence, in [0, 1).
    """
    if probability == 0:
        return x
    keep = 1 - probability
    mask = torch.empty(1, *x.shape[1:], dtype=x.dtype, device=x.device).bernoulli_(keep).div_(keep)
    return x * mask


def word_dropout(embedded: Tensor, tokens: Tensor, vocabulary_size: int, probability: float) -> Tensor:
    """Drops whole words: a dropped word is zero wherever it occurs, and the others are scaled up to keep the mean.

    This equals zeroing rows of the embedding matrix before the lookup, but does not copy that matrix.

    Args:
        embedded: (T, B, E), the embeddings of `tokens`.
        tokens: (T, B), integers below `vocabulary_size`.
        vocabulary_size: V.
        probability: of dropping a word, in [0, 1).
    """
    if probability == 0:
        return embedded
    keep = 1 - probability
    mask = torch.empty(vocabulary_size, dtype=embedded.dtype, device=embedded.device).bernoulli_(keep).div_(keep)
    return embedded * mask[tokens].unsqueeze(-1)
