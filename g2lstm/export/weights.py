"""Encoded weights as modules that ONNX can express: products with them, and lookups of their rows.

An encoding is codes with scales, a product of thin matrices, or otherwise its decoded values. Low-rank matrices stay
two products. Codes of four bits go into `MatMulNBits`, ONNX Runtime's product with packed weights. It has no product of
eight bits with float32 vectors and would unpack all weights at every call, so wider codes become float32 when a runtime
loads the graph; with int8 activations they are multiplied packed too. `DequantizeLinear` is never used: ONNX Runtime
fuses it with the product that follows into one with int8 activations, whose results differ in the third digit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from g2lstm.compression.encodings import Coded
from g2lstm.compression.recurrent import Weight

Floats = npt.NDArray[np.float32]
_BLOCKS = (256, 128, 64, 32, 16)  # columns per scale that MatMulNBits supports
ACCURACY = {"float32": 1, "int8": 4}  # the number that MatMulNBits has for each kind of activations


@dataclass(frozen=True)
class Notes:
    """How a graph multiplies by packed matrices, and what became known while it was traced.

    Attributes:
        activations: "float32" or "int8", the type of the vectors.
        expanded: names of packed matrices that the graph has in float32.
        sizes: names of sizes that may differ in each call, by torch's symbols for them.
    """

    activations: str = "float32"
    expanded: dict[str, None] = field(default_factory=dict)
    sizes: dict[str, str] = field(default_factory=dict)


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

    def packed(self, block: int) -> tuple[npt.NDArray[np.uint8], Floats]:
        """Codes (N, blocks, bytes) and scales (N, blocks) as `MatMulNBits` takes them."""
        assert self.scales is not None
        (rows, columns), half = self.numbers.shape, 2 ** (self.bits - 1)
        blocks = -(-columns // block)
        codes = np.full((rows, blocks * block), half, dtype=np.uint8)  # the padding stands for 0
        codes[:, :columns] = self.numbers + np.int16(half)
        if self.bits == 4:
            codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
        group = np.zeros(blocks, dtype=np.int64) if self.group is None else np.arange(blocks) * block // self.group
        return codes.reshape(rows, blocks, -1), self.scales[:, group]


class _Stored(nn.Module):
    """A piece in a graph, where products with it and lookups in it share its constants."""

    codes: Tensor
    scales: Tensor

    def __init__(self, piece: _Piece, notes: Notes) -> None:
        super().__init__()
        self.names, self.bits, self.columns = piece.names, piece.bits, piece.numbers.shape[1]
        self.notes, block = notes, piece.block
        self.is_coded = piece.scales is not None
        self.is_packed = piece.bits <= (8 if notes.activations == "int8" else 4) and block is not None
        if piece.scales is None:
            self.register_buffer("values", torch.from_numpy(np.ascontiguousarray(piece.numbers)))
            return
        codes, scales = piece.numbers, piece.scales
        if self.is_packed:
            assert block is not None
            codes, scales = piece.packed(block)
        elif piece.group is not None:
            scales = np.repeat(scales, piece.group, axis=1)[:, : self.columns]
        self.register_buffer("codes", torch.from_numpy(np.ascontiguousarray(codes)))
        self.register_buffer("scales", torch.from_numpy(np.ascontiguousarray(scales)))

    def rows(self, places: Tensor | None = None) -> Tensor:
        """The rows at these places, (..., K), or all of them, (N, K), in float32; only those are decoded."""

        def taken(table: Tensor) -> Tensor:
            return table if places is None else nn.functional.embedding(places, table)

        if not self.is_coded:
            return taken(self.get_buffer("values"))
        if places is None:
            self.notes.expanded.update(dict.fromkeys(self.names))
        if not self.is_packed:
            return taken(self.codes).float() * taken(self.scales)
        bytes_of_row = taken(self.codes.flatten(1)).unflatten(-1, self.codes.shape[1:])
        return _unpacked(bytes_of_row, taken(self.scales), self.columns, self.bits)

    def product(self) -> Callable[[Tensor], Tensor]:
        """The product with x (..., K); what it needs of the weights is computed now, outside of any loop."""
        if self.is_packed:
            accuracy = ACCURACY[self.notes.activations]
            return lambda x: matmul_nbits(x, self.codes, self.scales, self.columns, self.bits, accuracy)
        columns = self.rows().t()
        return lambda x: x @ columns


class Matrix(nn.Module):
    """The rows of some matrices, one after the other, as they are encoded.

    Args:
        matrices: (N_1, K), (N_2, K), ...
        notes: of the graph.
    """

    def __init__(self, matrices: Sequence[Weight], notes: Notes) -> None:
        super().__init__()
        joined: list[_Piece | Weight] = []  # neighbours that can be multiplied at once are; thin ones stay alone
        for matrix in matrices:
            piece = matrix if _is_thin(matrix) else _piece(matrix)
            above = joined[-1] if joined else None
            both = above.with_rows(piece) if isinstance(above, _Piece) and isinstance(piece, _Piece) else None
            joined[len(joined) - (both is not None) :] = [piece if both is None else both]
        self.parts = nn.ModuleList(
            _Stored(one, notes) if isinstance(one, _Piece) else _Thin(one, notes) for one in joined
        )

    @property
    def is_float(self) -> bool:
        """Whether products use all of it in float32."""
        return all(isinstance(part, _Stored) and not part.is_packed for part in self.parts)

    def rows(self, places: Tensor | None = None) -> Tensor:
        """The rows of its one matrix at these places, (..., K), or those of all matrices, (N, K), in float32."""
        return _joined([part.rows(places) for part in self.parts], 0)  # type: ignore[operator]

    def product(self) -> Callable[[Tensor], Tensor]:
        """The product with x (..., K), to call inside or outside of a loop."""
        products = [part.product() for part in self.parts]  # type: ignore[operator]
        return lambda x: _joined([multiply(x) for multiply in products], -1)


class _Thin(nn.Module):
    """A product of two thin matrices, which is never multiplied out."""

    def __init__(self, matrix: Weight, notes: Notes) -> None:
        super().__init__()
        right, left = matrix.encoding.factors()
        self.left = Matrix([Weight(f"{matrix.name}.left", left, matrix.factor)], notes)
        self.right = Matrix([Weight(f"{matrix.name}.right", right)], notes)

    def rows(self, places: Tensor | None) -> Tensor:
        """As for a matrix."""
        return self.left.rows(places) @ self.right.rows()

    def product(self) -> Callable[[Tensor], Tensor]:
        """As for a matrix."""
        left, right = self.left.product(), self.right.product()
        return lambda x: left(right(x))


def _is_thin(matrix: Weight) -> bool:
    return len(matrix.encoding.factors()) > 1


def _piece(matrix: Weight) -> _Piece:
    name, encoding, factor = matrix
    if isinstance(encoding, Coded):
        return _Piece((name,), encoding.codes, encoding.group_scales * np.float32(factor), encoding.group)
    return _Piece((name,), encoding.decode() * np.float32(factor), None, None)


def _joined(tensors: list[Tensor], dimension: int) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dimension)


def _unpacked(codes: Tensor, scales: Tensor, columns: int, bits: int) -> Tensor:
    """Codes (..., blocks, bytes) times scales (..., blocks), (..., columns)."""
    numbers = codes.float()
    if bits == 4:
        low = (codes & 15).float()
        numbers = torch.stack([low, (numbers - low) / 16], dim=-1).flatten(-2)
    numbers = (numbers - 2.0 ** (bits - 1)) * scales.unsqueeze(-1)
    return numbers.flatten(-2)[..., :columns]


@torch.library.custom_op("g2lstm::matmul_nbits", mutates_args=())
def matmul_nbits(x: Tensor, codes: Tensor, scales: Tensor, columns: int, bits: int, accuracy: int) -> Tensor:
    """What ONNX Runtime's `MatMulNBits` computes, (..., N), from x (..., K), codes and scales as that takes them."""
    return x @ _unpacked(codes, scales, columns, bits).t()


@matmul_nbits.register_fake
def _(x: Tensor, codes: Tensor, scales: Tensor, columns: int, bits: int, accuracy: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(codes))


def translations() -> dict[Any, Callable[..., Any]]:
    """How `torch.onnx` writes the operators of this file."""
    from onnx.defs import OpSchema
    from onnxscript import values

    kinds = {"x": "tensor(float)", "codes": "tensor(uint8)", "scales": "tensor(float)"}
    schema = OpSchema(
        "MatMulNBits",
        "com.microsoft",
        1,
        inputs=[OpSchema.FormalParameter(name, kind) for name, kind in kinds.items()],
        outputs=[OpSchema.FormalParameter("y", "tensor(float)")],
        attributes=[
            OpSchema.Attribute(name, OpSchema.AttrType.INT)
            for name in ("K", "N", "bits", "block_size", "accuracy_level")
        ],
    )
    operator = values.Op(values.Opset(schema.domain, 1), schema.name, schema)

    def write(x: Any, codes: Any, scales: Any, columns: int, bits: int, accuracy: int) -> Any:
        rows, _, size = codes.shape
        sizes = {"K": columns, "N": rows, "bits": bits, "block_size": size * 8 // bits}
        return operator(x, codes, scales, accuracy_level=accuracy, **sizes)

    return {torch.ops.g2lstm.matmul_nbits.default: write}
