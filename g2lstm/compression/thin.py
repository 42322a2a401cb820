"""Products with matrices some of which are of low rank: two thin products for each of those."""

import functools
import itertools
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from g2lstm.compression.matrix import Encoded, LowRank
from g2lstm.compression.table import expand
from g2lstm.nn.layer import Weights, product

Parts: TypeAlias = list[tuple[Tensor, ...]]  # rows below rows, each the product of these, the rightmost first


class ThinWeights(Weights):
    """Weights some of which are of low rank: two thin products for each of those. W_x and W_h themselves are not there.

    Attributes:
        x_parts, h_parts: what stands for W_x and W_h.
    """

    x_parts: Parts
    h_parts: Parts

    def from_x(self, x: Tensor) -> Tensor:
        """W_x x + b: (..., 4H) of x (..., I)."""
        product = _multiply(self.x_parts, x)
        bias = self.bias()
        return product if bias is None else product + bias

    def from_h(self, h: Tensor) -> Tensor:
        """W_h h: (..., 4H) of h (..., R)."""
        return _multiply(self.h_parts, h)


def expand_parts(matrices: Sequence[Encoded], like: Tensor) -> Parts:
    """Matrices below each other: those of low rank as their factors, neighbours of full rank as one."""
    parts: Parts = []
    for _, neighbours in itertools.groupby(matrices, lambda matrix: isinstance(matrix, LowRank)):
        dense = []
        for matrix in neighbours:
            if isinstance(matrix, LowRank):
                parts.append((expand(matrix.right, like), expand(matrix.left, like)))
            else:
                dense.append(expand(matrix, like))
        if dense:
            with torch.inference_mode(False):
                parts.append((torch.cat(dense),))
    return parts


def _multiply(parts: Parts, vector: Tensor) -> Tensor:
    return torch.cat([functools.reduce(product, part, vector) for part in parts], dim=-1)
