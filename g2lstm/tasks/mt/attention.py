"""Attention: where in the source a step of the decoder looks, and what it sees there."""

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Memory(NamedTuple):
    """A batch of encoded sources, B sentences of up to S tokens; what the decoder may look at."""

    values: Tensor  # (B, S, C), the encoder's output
    keys: Tensor  # (B, S, H), what queries are compared with
    is_padding: Tensor  # (B, S), truth values

    def select(self, sentences: Tensor) -> "Memory":
        """Only these sentences (B',)."""
        return Memory(*(part.index_select(0, sentences) for part in self))


class Attention(nn.Module):
    """Bilinear attention, scaled: softmax over s of q · (W v_s) / sqrt(H), for all queries at once.

    Args:
        query_size: H.
        value_size: C.
    """

    def __init__(self, query_size: int, value_size: int) -> None:
        super().__init__()
        self.key = nn.Linear(value_size, query_size, bias=False)

    def memory(self, values: Tensor, is_padding: Tensor) -> Memory:
        """Prepares encoder outputs (B, S, C), padded where `is_padding` (B, S), for any number of queries."""
        return Memory(values, self.key(values), is_padding)

    def forward(self, queries: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Queries (B, Q, H) to contexts (B, Q, C) and weights (B, Q, S), which are 0 on padding and sum to 1."""
        scores = queries @ memory.keys.transpose(1, 2) * queries.size(-1) ** -0.5
        weights = scores.masked_fill(memory.is_padding.unsqueeze(1), -torch.inf).softmax(-1)
        return weights @ memory.values, weights
