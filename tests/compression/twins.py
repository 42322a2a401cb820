"""Models with dense weights that a compressed one must equal: its own matrices, decoded."""

import copy

import torch
from torch import nn

from g2lstm.compression.model import encoded_matrices
from g2lstm.compression.targets import find_targets


def twin_of(model: nn.Module, small: nn.Module) -> nn.Module:
    """A copy of `model` that has the numbers of `small`'s matrices in its own parameters."""
    twin = copy.deepcopy(model).eval()
    targets = find_targets(twin).matrices
    for name, encoding in encoded_matrices(small).items():
        targets[name].values.copy_(torch.from_numpy(encoding.decode()))
    return twin
