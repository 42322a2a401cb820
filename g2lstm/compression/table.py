"""Tables of encoded weights: embeddings, linear layers, the weights of a softmax; tied ones share one matrix."""

import dataclasses
import zlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from g2lstm.compression.matrix import Dense, Encoded, Grid, GroupInt4, LowRank, RowIntegers
from g2lstm.errors import G2Error
from g2lstm.nn.random import runs_eagerly


class Table:
    """An encoded matrix and what has been expanded of it, for all the modules that are tied to it.

    Attributes:
        matrix: on the CPU, whatever device the modules are on.
    """

    def __init__(self, matrix: Encoded) -> None:
        self.matrix = matrix
        self._expanded: dict[str, Tensor] = {}

    def kept(self, name: str, part: Encoded, like: Tensor) -> Tensor:
        """The whole matrix or a factor of it with the device and type of `like`, expanded once and kept."""
        kept = self._expanded.get(name)
        if kept is None or kept.device != like.device or kept.dtype != like.dtype:
            kept = self._expanded[name] = expand(part, like)
        return kept

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles expand it themselves."""
        return {"matrix": self.matrix, "_expanded": {}}


class CompressedTable(nn.Module):
    """Weights of a softmax; the classes below are tables with more to them.

    A `state_dict` does not hold the matrix but a checksum of it: parameters saved beside another matrix are refused.
    Moving the module to a device or a type moves what is expanded.

    Args:
        table: what it shares with the modules that are tied to it.
        like: the weights it stands for, which tell device and type; from the meta device it comes to the CPU.
    """

    _like: Tensor

    def __init__(self, table: Table, like: Tensor) -> None:
        super().__init__()
        self.table = table
        self.register_buffer("_like", empty_like(like), persistent=False)

    @property
    def matrix(self) -> Encoded:
        """The encoded matrix, (rows, columns)."""
        return self.table.matrix

    @property
    def weight(self) -> Tensor:
        """The dense matrix (rows, columns), expanded on first use and kept.

        One of low rank is multiplied out anew each time: nothing in this package asks for it.
        """
        if isinstance(self.matrix, LowRank):
            return expand(self.matrix, self._like)
        return self.table.kept("matrix", self.matrix, self._like)

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What `linear` takes to multiply x (..., columns) with the matrix: of low rank the thin half of it is done."""
        if isinstance(self.matrix, LowRank):
            right = self.table.kept("right", self.matrix.right, self._like)
            return functional.linear(x, right), self.table.kept("left", self.matrix.left, self._like)
        return x, self.weight

    def forward(self, x: Tensor) -> Tensor:
        """The product, (..., rows) of x (..., columns)."""
        return functional.linear(*self.factors(x))

    def get_extra_state(self) -> Tensor:
        """A checksum of the matrix."""
        return checksum([self.matrix])

    def set_extra_state(self, state: Tensor) -> None:
        """Compares the checksum."""
        check_same(state, [self.matrix])

    def extra_repr(self) -> str:
        """Sizes and kind."""
        rows, columns = self.matrix.shape
        return f"{rows}, {columns}, {type(self.matrix).__name__}"


class CompressedLinear(CompressedTable):
    """A `torch.nn.Linear` with an encoded matrix; its bias is as it was.

    Args:
        linear: whose place it takes.
        table: its weights.
    """

    bias: nn.Parameter | None

    def __init__(self, linear: nn.Linear, table: Table) -> None:
        super().__init__(table, linear.weight)
        self.out_features, self.in_features = table.matrix.shape
        self.register_parameter("bias", linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """As in `torch.nn.Linear`."""
        return functional.linear(*self.factors(x), self.bias)


class CompressedEmbedding(CompressedTable):
    """A `torch.nn.Embedding` with an encoded matrix: on the CPU only the rows asked for are expanded.

    Args:
        embedding: whose place it takes.
        table: its weights.
    """

    def __init__(self, embedding: nn.Embedding, table: Table) -> None:
        super().__init__(table, embedding.weight)
        self.num_embeddings, self.embedding_dim = table.matrix.shape
        self.padding_idx = embedding.padding_idx

    def forward(self, tokens: Tensor) -> Tensor:
        """The rows (..., columns) of tokens (...)."""
        if isinstance(self.matrix, LowRank):
            return self._rows("left", self.matrix.left, tokens) @ self.table.kept(
                "right", self.matrix.right, self._like
            )
        return self._rows("matrix", self.matrix, tokens)

    def _rows(self, name: str, part: Dense | Grid | RowIntegers | GroupInt4, tokens: Tensor) -> Tensor:
        if tokens.device.type != "cpu" or not tokens.numel() or not runs_eagerly():
            return functional.embedding(tokens, self.table.kept(name, part, self._like))
        indices = tokens.flatten()
        rows: dict[str, Any] = {field: tensor.index_select(0, indices) for field, tensor in part.tensors().items()}
        return dataclasses.replace(part, **rows).dequantize().to(self._like).view(*tokens.shape, part.shape[1])


def expand(matrix: Encoded, like: Tensor) -> Tensor:
    """The dense matrix with the device and type of `like`."""
    with torch.inference_mode(False):  # what is kept may be used with gradients later
        return matrix.dequantize().to(like)


def empty_like(like: Tensor) -> Tensor:
    """Nothing, but with the device and type of `like`; the CPU for the meta device, where matrices cannot be."""
    return torch.empty(0, dtype=like.dtype, device="cpu" if like.is_meta else like.device)


def checksum(matrices: Iterable[Encoded]) -> Tensor:
    """Of the content of matrices: (4,) uint8."""
    found = 0
    for matrix in matrices:
        found = zlib.crc32(repr(getattr(matrix, "step", None)).encode(), found)
        for tensor in matrix.tensors().values():
            found = zlib.crc32(tensor.contiguous().numpy(force=True).data, found)
    return torch.tensor(list(found.to_bytes(4, "little")), dtype=torch.uint8, device="cpu")


def check_same(state: Tensor, matrices: Iterable[Encoded]) -> None:
    """Raises unless `state` is the checksum of these matrices."""
    if not torch.equal(state.cpu(), checksum(matrices)):
        raise G2Error(
            "this state_dict was saved with other compressed matrices, which no state_dict holds; "
            "load it into the model that it was saved from, or save its matrices too, as compression.storage does"
        )
