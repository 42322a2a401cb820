"""Encoded matrices in the order in which the compiled kernel reads them; `nn/csrc/products.h` describes it."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression.matrix import Dense, Encoded, Grid, GroupInt4, LowRank, RowIntegers
from g2lstm.compression.session import Layer, Softmax, Term
from g2lstm.errors import G2Error

DENSE, INT8, INT4, INT3, GROUPED_INT4 = range(5)
CHUNK, CHUNK3 = 8, 32  # columns are filled up to a multiple of it, those of INT3 to one of the second
LONGEST_GROUP = 4096
_FORMS = {3: INT3, 4: INT4, 8: INT8}  # by the bits of a code
_SOURCES = {"x": 0, "h": 1}
_FIRST_FACTOR = 2  # among the sources

Bytes = NDArray[np.uint8]


class Product(NamedTuple):
    """How the kernel is told of one product.

    Attributes:
        form: DENSE, INT8, INT4, INT3 or GROUPED_INT4.
        source: x, h, or the result of one of the block's factors.
        target: the gate it adds to, 0 in a softmax; of a factor its rows.
        group: columns to a scale, of GROUPED_INT4.
    """

    form: int
    source: int
    target: int
    group: int


class PackedBlock(NamedTuple):
    """A layer or a softmax as the kernel takes it.

    Attributes:
        inputs, outputs: widths of the vectors.
        gates: 4 of a layer, 1 of a softmax.
        factors: the right factors of matrices of low rank.
        products: the other products.
        data: all bytes. Those of the factors come first, one factor after the other; then for each panel of outputs
            those of all products and of the biases: the kernel reads them front to back.
        residual: whether a layer's input is added to its output.
    """

    inputs: int
    outputs: int
    gates: int
    factors: list[Product]
    products: list[Product]
    data: Bytes
    residual: bool = False


def pack_layer(layer: Layer, panel: int) -> PackedBlock:
    """Packs a layer for a kernel with panels of so many rows."""
    packed = _pack_block(layer.inputs, layer.hidden, layer.terms, layer.bias, panel)
    return packed._replace(residual=layer.residual)


def pack_softmax(softmax: Softmax, panel: int) -> PackedBlock:
    """Packs a softmax, which is a layer with one gate and no state."""
    rows, columns = softmax.matrix.shape
    return _pack_block(columns, rows, (Term(softmax.matrix, "x"),), softmax.bias, panel)


def _pack_block(
    inputs: int, outputs: int, terms: tuple[Term, ...], bias: NDArray[np.float32], panel: int
) -> PackedBlock:
    factors: list[Product] = []
    products: list[Product] = []
    factor_panels: list[Bytes] = []
    gate_panels: list[Bytes] = []
    for term in terms:
        matrix, source = term.matrix, _SOURCES[term.source]
        if isinstance(matrix, LowRank):
            form, group, packed = _pack(matrix.right, panel, 1, 1.0)
            factors.append(Product(form, source, matrix.rank, group))
            factor_panels.append(packed.reshape(-1))
            matrix, source = matrix.left, _FIRST_FACTOR + len(factors) - 1
        parts = matrix.shape[0] // outputs
        form, group, packed = _pack(matrix, panel, parts, term.factor)
        products += [Product(form, source, term.gate + k, group) for k in range(parts)]
        gate_panels += list(packed)
    gates = len(bias) // outputs
    biases = _panels(bias[:, None], panel, gates, 1)  # (gates, panels, panel, 1)
    gate_panels.append(_bytes(biases[..., 0].swapaxes(0, 1)).reshape(biases.shape[1], -1))
    data = np.concatenate([*factor_panels, np.hstack(gate_panels).reshape(-1)])
    return PackedBlock(inputs, outputs, gates, factors, products, data)


def _pack(matrix: Encoded, panel: int, parts: int, factor: float) -> tuple[int, int, Bytes]:
    """Form, group, and the bytes of the panels of each of `parts` equal parts of the rows: (parts, panels, bytes)."""
    if isinstance(matrix, Grid) and not -128 <= int(matrix.codes.min()) <= int(matrix.codes.max()) <= 127:
        matrix = Dense(matrix.dequantize())
    if isinstance(matrix, Dense):
        # Before NumPy 2, float16 times a float32 number is float16.
        dense = matrix.values.numpy(force=True).astype(np.float32) * np.float32(factor)
        values = _panels(dense, panel, parts, CHUNK)
        return DENSE, 0, _flat(_bytes(values.swapaxes(2, 3)))
    assert isinstance(matrix, Grid | RowIntegers | GroupInt4), (
        "a factor of a matrix of low rank is not of low rank itself"
    )
    codes = matrix.codes.numpy(force=True)
    if isinstance(matrix, RowIntegers):
        scales = matrix.scales.numpy(force=True) * np.float32(factor)
    else:
        scales = np.full(len(codes), factor * (matrix.step if isinstance(matrix, Grid) else 1.0), np.float32)
    row_scales = _bytes(_panels(scales[:, None], panel, parts, 1)[..., 0])  # (parts, panels, panel · 4)
    if isinstance(matrix, GroupInt4):
        group = matrix.group
        if group % CHUNK or not CHUNK <= group <= LONGEST_GROUP:
            raise G2Error(
                f"the kernel reads groups of 8, 16, ... {LONGEST_GROUP} columns, got groups of {group}; "
                "compress with such a group, or use the plain session"
            )
        group_scales = _panels(matrix.scales.numpy(force=True), panel, parts, 1)
        packed = _interleave(_pack_codes(codes, panel, parts, 4), _bytes(group_scales.swapaxes(2, 3)), group // CHUNK)
        return GROUPED_INT4, group, np.concatenate([packed, row_scales], axis=-1)
    bits = next(bits for bits in _FORMS if -(2 ** (bits - 1)) <= codes.min() <= codes.max() < 2 ** (bits - 1))
    return _FORMS[bits], 0, np.concatenate([_flat(_pack_codes(codes, panel, parts, bits)), row_scales], axis=-1)


def _panels(rows: NDArray[Any], panel: int, parts: int, multiple: int) -> NDArray[Any]:
    """Rows (parts · n, m) cut into panels and filled up with zeros: (parts, panels, panel, columns)."""
    each, width = len(rows) // parts, rows.shape[1]
    filled = np.zeros((parts, -(-each // panel) * panel, -(-width // multiple) * multiple), rows.dtype)
    filled[:, :each, :width] = rows.reshape(parts, each, width)
    return filled.reshape(parts, -1, panel, filled.shape[2])


def _pack_codes(codes: NDArray[np.int8 | np.int16], panel: int, parts: int, bits: int) -> Bytes:
    """Codes (parts · n, m) as bytes (parts, panels, chunks, bytes)."""
    chunk = CHUNK3 if bits == 3 else CHUNK
    cut = _panels(codes.astype(np.int16), panel, parts, chunk)
    unsigned = (cut + (1 << bits - 1)).astype(np.uint8)
    fours = unsigned.reshape(*cut.shape[:3], -1, chunk // 4, 4)  # (parts, panels, panel, chunks, fours, columns)
    a = fours.transpose(4, 0, 1, 3, 2, 5)  # (fours, parts, panels, chunks, panel, columns)
    if bits == 8:
        words = [a[0], a[1]]
    elif bits == 4:
        words = [a[0] | a[1] << 4]
    else:
        words = [a[0] | a[1] << 3 | (a[6] & 3) << 6, a[2] | a[3] << 3 | (a[7] & 3) << 6]
        words.append(a[4] | a[5] << 3 | a[6] >> 2 << 6 | a[7] >> 2 << 7)
    packed = np.stack(words, axis=3)
    return packed.reshape(*packed.shape[:3], -1)


def _interleave(chunks: Bytes, scales: Bytes, chunks_in_group: int) -> Bytes:
    """Puts a group's scales (parts, panels, groups, bytes) before its chunks (parts, panels, chunks, bytes)."""
    parts, panels, count, size = chunks.shape
    groups, scale_size = scales.shape[2:]
    filled = np.zeros((parts, panels, groups * chunks_in_group, size), np.uint8)
    filled[:, :, :count] = chunks
    both = np.concatenate([scales, filled.reshape(parts, panels, groups, -1)], axis=-1)
    return both.reshape(parts, panels, -1)[..., : groups * scale_size + count * size]


def _bytes(values: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(values).view(np.uint8)


def _flat(panels: Bytes) -> Bytes:
    return panels.reshape(*panels.shape[:2], -1)
