"""Encoded weights in an ONNX graph: products with them, and lookups of their rows.

An encoding is codes with scales, a product of thin matrices, or otherwise its decoded values. Low-rank matrices stay
two products. Codes of four bits go into `MatMulNBits`, ONNX Runtime's product with packed weights. It has no product of
eight bits with float32 vectors and would unpack all weights at every call, so wider codes become float32 when a runtime
loads the graph; with int8 activations they are multiplied packed too. `DequantizeLinear` is never used: ONNX Runtime
fuses it with the product that follows into one with int8 activations, whose results differ in the third digit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto
from torch import Tensor, nn

from g2lstm.compression.encodings import Coded, Dense
from g2lstm.compression.layers import Weight
from g2lstm.compression.stream import encoding_of
from g2lstm.export.graph import MICROSOFT, Graph

Floats = npt.NDArray[np.float32]
_BLOCKS = (256, 128, 64, 32, 16)  # columns per scale that MatMulNBits supports
ACCURACY = {"float32": 1, "int8": 4}  # the number that MatMulNBits has for each kind of activations


def weights_of(owner: nn.Module | Tensor, name: str) -> Weight:
    """The weights of an embedding or a softmax, as they are encoded; those of the same name are stored once."""
    return Weight(name, encoding_of(owner))


def floats(tensor: Tensor) -> Floats:
    """The values of a parameter in float32."""
    values: Floats = tensor.detach().cpu().float().contiguous().numpy()
    return values


@dataclass(frozen=True)
class _Piece:
    """Neighbouring matrices of one kind as one: values, or codes with the scales of their groups of columns.

    Attributes:
        names: of the matrices.
        numbers: (N, K), float32 values or integer codes.
        scales: (N, groups); None for values.
        group: columns per scale; None where a row has one.
    """

    names: tuple[str, ...]
    numbers: npt.NDArray[Any]
    scales: Floats | None
    group: int | None

    @property
    def name(self) -> str:
        """The name of its constant, or the prefix of the names of several."""
        return "+".join(self.names)

    @cached_property
    def bits(self) -> int:
        """Per number: four, eight or sixteen for codes, 32 for values."""
        if self.scales is None:
            return 32
        for bits in (4, 8):
            if -(2 ** (bits - 1)) <= self.numbers.min() and self.numbers.max() < 2 ** (bits - 1):
                return bits
        return 16

    @property
    def block(self) -> int | None:
        """The columns per block of `MatMulNBits`; None where no block fits the groups."""
        columns = self.numbers.shape[1]
        if self.group is None:  # the one that takes the fewest bytes, including the padding of the last block
            return min(_BLOCKS, key=lambda block: -(-columns // block) * (block * self.bits // 8 + 4))
        return next((block for block in _BLOCKS if self.group % block == 0), None)

    def is_packed(self, activations: str) -> bool:
        """Whether products read it packed, instead of expanded to float32."""
        return self.bits <= (8 if activations == "int8" else 4) and self.block is not None

    def with_rows(self, below: "_Piece") -> "_Piece | None":
        """Both as one, if they are of one kind."""
        groups = {self.group, below.group} - {None}
        if self.bits != below.bits or len(groups) > 1:
            return None
        names, numbers = self.names + below.names, np.concatenate([self.numbers, below.numbers])
        if self.scales is None or below.scales is None:
            return _Piece(names, numbers, None, None)
        count = max(self.scales.shape[1], below.scales.shape[1])
        scales = [np.broadcast_to(one, (len(one), count)) for one in (self.scales, below.scales)]
        return _Piece(names, numbers, np.concatenate(scales), next(iter(groups), None))


def product(graph: Graph, x: str, matrices: Sequence[Weight], bias: Floats | None = None) -> str:
    """W x + b for x (..., K), where W has the rows of all the matrices, one after the other."""
    parts = [_multiply(graph, x, piece) for piece in _pieces(matrices)]
    y = parts[0] if len(parts) == 1 else graph.operators("Concat", parts, 1, axis=-1)[0]
    return y if bias is None else graph.operator("Add", y, graph.constant(bias))


def linear(graph: Graph, x: str, layer: nn.Linear, name: str) -> str:
    """A linear layer, applied to x (..., inputs)."""
    weight = Weight(f"{name}.weight", Dense(floats(layer.weight)))
    return product(graph, x, [weight], None if layer.bias is None else floats(layer.bias))


def log_softmax(graph: Graph, features: str, weight: Weight, bias: Tensor) -> str:
    """The log-probabilities (..., V) from features (..., E)."""
    return graph.operator("LogSoftmax", product(graph, features, [weight], floats(bias)), axis=-1)


def lookup(graph: Graph, tokens: str, matrix: Weight) -> str:
    """The rows (..., K) of a matrix for tokens (...); only those are decoded."""
    if _is_thin(matrix):
        left, right = _factors(matrix)
        return graph.operator("MatMul", lookup(graph, tokens, left), expanded(graph, [right]))
    return _rows(graph, _piece(matrix), tokens)


def expanded(graph: Graph, matrices: Sequence[Weight]) -> str:
    """The matrices in float32, their rows one after the other; runtimes compute this once, when they load the graph."""
    parts = []
    for piece in _pieces(matrices):
        assert not isinstance(piece, Weight), "thin matrices are never multiplied out"
        parts.append(_whole(graph, piece))
    return parts[0] if len(parts) == 1 else graph.root.operators("Concat", parts, 1, axis=0)[0]


def is_expanded(graph: Graph, matrix: Weight) -> bool:
    """Whether products with a matrix use all of it in float32."""
    return not _is_thin(matrix) and not _piece(matrix).is_packed(graph.activations)


def _is_thin(matrix: Weight) -> bool:
    """Whether it is a product of thin matrices."""
    return len(matrix.encoding.factors()) > 1


def _factors(matrix: Weight) -> tuple[Weight, Weight]:
    right, left = matrix.encoding.factors()
    return Weight(f"{matrix.name}.left", left, matrix.factor), Weight(f"{matrix.name}.right", right)


def _piece(matrix: Weight) -> _Piece:
    name, encoding, factor = matrix
    if isinstance(encoding, Coded):
        return _Piece((name,), encoding.codes, encoding.group_scales * np.float32(factor), encoding.group)
    return _Piece((name,), encoding.decode() * np.float32(factor), None, None)


def _pieces(matrices: Sequence[Weight]) -> list[_Piece | Weight]:
    """Joins neighbours that can be multiplied at once; thin matrices stay by themselves."""
    found: list[_Piece | Weight] = []
    for matrix in matrices:
        piece = matrix if _is_thin(matrix) else _piece(matrix)
        above = found[-1] if found else None
        joined = above.with_rows(piece) if isinstance(above, _Piece) and isinstance(piece, _Piece) else None
        if joined is None:
            found.append(piece)
        else:
            found[-1] = joined
    return found


def _multiply(graph: Graph, x: str, piece: _Piece | Weight) -> str:
    if isinstance(piece, Weight):
        left, right = _factors(piece)
        return product(graph, product(graph, x, [right]), [left])
    if piece.is_packed(graph.activations):
        packed, scales, block = _packed(graph, piece)
        rows, columns = piece.numbers.shape
        sizes = {"K": columns, "N": rows, "bits": piece.bits, "block_size": block}
        accuracy = ACCURACY[graph.activations]
        return graph.operator("MatMulNBits", x, packed, scales, domain=MICROSOFT, accuracy_level=accuracy, **sizes)
    if piece.scales is None and not graph.has(piece.name):
        return graph.operator("MatMul", x, graph.constant(piece.numbers.T, f"{piece.name}.transposed"))
    # Runtimes compute nodes of the outermost graph that have only constants once; in a body, maybe at every step.
    return graph.operator("MatMul", x, graph.root.operator("Transpose", _whole(graph, piece), perm=[1, 0]))


def _whole(graph: Graph, piece: _Piece) -> str:
    if piece.scales is not None:
        graph.root.expanded.extend(piece.names)
    return _rows(graph.root, piece, None)


def _rows(graph: Graph, piece: _Piece, places: str | None) -> str:
    """The rows at these places, (..., K), or all of them, (N, K), in float32."""

    def taken(constant: str) -> str:
        return constant if places is None else graph.operator("Gather", constant, places)

    if piece.scales is None:
        return taken(graph.constant(piece.numbers, piece.name))
    columns, half = piece.numbers.shape[1], np.float32(2 ** (piece.bits - 1))
    if not piece.is_packed(graph.activations):
        codes = taken(graph.constant(piece.numbers, f"{piece.name}.codes"))
        codes = graph.operator("Cast", codes, to=TensorProto.FLOAT)
        scales = piece.scales if piece.group is None else np.repeat(piece.scales, piece.group, axis=1)[:, :columns]
        return graph.operator("Mul", codes, taken(graph.constant(scales, f"{piece.name}.scales")))
    packed, scales_name, block = _packed(graph, piece)
    codes = taken(packed)  # (..., blocks, bytes)
    if piece.bits == 4:
        low = graph.operator("BitwiseAnd", codes, graph.constant(np.uint8(15)))
        high = graph.operator("BitShift", codes, graph.constant(np.uint8(4)), direction="RIGHT")
        last = graph.integers(-1)
        both = [graph.operator("Unsqueeze", part, last) for part in (low, high)]
        codes = graph.operators("Concat", both, 1, axis=-1)[0]  # (..., blocks, bytes, 2)
        # The number of dimensions depends on `places`, so the new shape is made from that of the bytes.
        shape = graph.operator("Concat", graph.operator("Shape", low, end=-1), graph.integers(block), axis=0)
        codes = graph.operator("Reshape", codes, shape)  # (..., blocks, columns of a block)
    numbers = graph.operator("Sub", graph.operator("Cast", codes, to=TensorProto.FLOAT), graph.constant(half))
    scales_taken = graph.operator("Unsqueeze", taken(scales_name), graph.integers(-1))
    numbers = graph.operator("Mul", numbers, scales_taken)
    shape = graph.operator("Concat", graph.operator("Shape", numbers, end=-2), graph.integers(-1), axis=0)
    numbers = graph.operator("Reshape", numbers, shape)  # (..., blocks · columns of a block)
    return graph.operator("Slice", numbers, graph.integers(0), graph.integers(columns), graph.integers(-1))


def _packed(graph: Graph, piece: _Piece) -> tuple[str, str, int]:
    """Codes (N, blocks, bytes) and scales (N, blocks) as `MatMulNBits` takes them, and the columns per block."""
    block = piece.block
    assert block is not None
    assert piece.scales is not None
    (rows, columns), half = piece.numbers.shape, 2 ** (piece.bits - 1)
    blocks = -(-columns // block)
    codes = np.full((rows, blocks * block), half, dtype=np.uint8)  # the padding stands for 0
    codes[:, :columns] = piece.numbers + np.int16(half)
    if piece.bits == 4:
        codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
    group = np.zeros(blocks, dtype=np.int64) if piece.group is None else np.arange(blocks) * block // piece.group
    packed = graph.constant(codes.reshape(rows, blocks, -1), f"{piece.name}.codes")
    return packed, graph.constant(piece.scales[:, group], f"{piece.name}.scales"), block
