"""How many bytes the weights of each group take in a file, before compression and after."""

from typing import NamedTuple

from torch import nn

from g2lstm.compression.model import encoded_matrices
from g2lstm.compression.spec import GROUPS
from g2lstm.compression.survey import survey


class GroupSize(NamedTuple):
    """Of the matrices of one group together."""

    weights: int
    before: int  # bytes
    after: int

    @property
    def bits_per_weight(self) -> float:
        """After compression."""
        return 8 * self.after / self.weights


def group_sizes(model: nn.Module, compressed: nn.Module) -> dict[str, GroupSize]:
    """The sizes of each group that the model has, in the order of `GROUPS`.

    Args:
        model: as it was.
        compressed: what `compress` made of it.
    """
    matrices, encoded = survey(model).matrices, encoded_matrices(compressed)
    sizes = {}
    for group in GROUPS:
        own = {name: matrix.values for name, matrix in matrices.items() if matrix.group == group}
        if own:
            sizes[group] = GroupSize(
                sum(values.numel() for values in own.values()),
                sum(values.nbytes for values in own.values()),
                sum(encoded[n].stored_bytes if n in encoded else values.nbytes for n, values in own.items()),
            )
    return sizes
