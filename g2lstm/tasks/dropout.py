"""Dropout that torch does not have: one mask for all time steps, and whole words."""

import torch
from torch import Tensor

from g2lstm.errors import G2Error


def check_dropout(name: str, probability: float) -> None:
    """Raises unless this is a probability below 1."""
    if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 <= probability < 1:
        raise G2Error(f"{name} is a probability and must lie in [0, 1), got {probability!r}; 0 turns it off")


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
