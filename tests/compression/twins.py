"""Models with dense weights that a compressed one must equal: its own matrices, expanded in float64."""

import copy

from torch import Tensor, nn

from g2lstm.compression.matrix import Encoded, LowRank
from g2lstm.compression.model import encoded_matrices
from g2lstm.compression.survey import survey


def exact(matrix: Encoded) -> Tensor:
    """What a matrix stands for, its product of low rank multiplied out in float64."""
    if isinstance(matrix, LowRank):
        return exact(matrix.left) @ exact(matrix.right)
    return matrix.dequantize().double()


def twin_of(model: nn.Module, small: nn.Module) -> nn.Module:
    """A copy of `model` that has the numbers of `small`'s matrices in its own parameters."""
    twin = copy.deepcopy(model).eval()
    places = survey(twin).matrices
    for name, matrix in encoded_matrices(small).items():
        places[name].values.copy_(exact(matrix))
    return twin
