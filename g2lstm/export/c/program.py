"""`Program`: one step of a model as a list of C statements, with the weights, states and memory that they need."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression.encodings import Encoding
from g2lstm.compression.gate_weights import LayerWeights
from g2lstm.compression.session import Term
from g2lstm.errors import G2Error
from g2lstm.export.c.matrices import ROWS, Stored, parts_of, stored
from g2lstm.export.c.text import identifier

_BLOCK = 32  # rounded vectors have room for whole blocks
_X, _H, _FACTORS = range(3)  # the numbers of operands
_ALL = slice(None)
_HARD = {"": 0, "if": 1, "rz": 1, "ifo": 2}


@dataclass(eq=False)
class Buffer:
    """Floats in memory. Where `place` is empty, `memory.py` finds room in the scratch memory."""

    size: int
    place: str = ""


@dataclass(frozen=True)
class Piece:
    """A part of a buffer."""

    buffer: Buffer
    start: int
    size: int


Value: TypeAlias = tuple[Piece, ...]  # a vector, whose pieces may lie apart


@dataclass(frozen=True)
class Need:
    """Scratch memory that a statement needs while it runs: numbers of floats, of codes and of sums of codes."""

    floats: int = 0
    codes: int = 0
    prefix: int = 0

    def __add__(self, other: "Need") -> "Need":
        return Need(self.floats + other.floats, self.codes + other.codes, self.prefix + other.prefix)

    def __or__(self, other: "Need") -> "Need":
        """Enough for either."""
        each = zip((self.floats, self.codes, self.prefix), (other.floats, other.codes, other.prefix), strict=True)
        return Need(*(max(pair) for pair in each))

    @classmethod
    def of_vector(cls, count: int) -> "Need":
        """For a vector that meets codes."""
        filled = -(-count // _BLOCK) * _BLOCK
        return cls(0, filled, filled // 8 + 1)


@dataclass(frozen=True)
class Statement:
    """A line of C, in which {0}, {1}, … stand for what it reads, {to} for what it writes, {0[k]} for an element."""

    text: str
    reads: tuple[Piece, ...]
    to: Buffer
    need: Need = Need()
    comment: str = ""


@dataclass(frozen=True)
class Block:
    """Terms and biases that are computed together; `block` in `templates/layers.c`."""

    terms: list[tuple[str, int, int]]  # the name of the matrix, the number of the operand, and the gate
    factors: int
    gates: int
    inputs: int
    hidden: int
    outputs: int
    coded: int  # a bit for each operand
    need: Need
    macs: int
    norm: float  # the largest of a row of codes


class Program:
    """The constants of a model, by their names in C, and the functions that compute with them.

    Attributes:
        features: the parts of the C code that it needs.
        matrices, vectors, blocks: the constants.
        functions: in the order of their definition.
    """

    def __init__(self) -> None:
        self.features: set[str] = set()
        self.matrices: dict[str, Stored] = {}
        self.vectors: dict[str, NDArray[np.float32]] = {}
        self.blocks: dict[str, Block] = {}
        self.functions: list[Function] = []
        self._norms: dict[str, float] = {}  # of the largest row of each matrix
        # holds the encodings, so that their ids stay theirs
        self._known: dict[tuple[int, float, int | None], tuple[Encoding, str]] = {}

    def vector(self, values: NDArray[np.float32], name: str) -> Value:
        """A constant vector."""
        own = self._named(name)
        self.vectors[own] = finite(values, name).astype(np.float32).reshape(-1)
        return whole(Buffer(values.size, own))

    def matrix(self, encoding: Encoding, name: str, factor: float = 1.0, rows: slice = _ALL) -> str:
        """The name of a matrix, or of some rows of one, which are stored once."""
        key = id(encoding), factor, rows.start
        if key not in self._known:
            one, own = stored(encoding, factor, rows), self._named(f"{name} w")
            for numbers in (one.data, one.scales, np.array(one.factor)):
                finite(np.zeros(1) if numbers is None else numbers, name)
            self._known[key] = encoding, own
            self.matrices[own] = one
            self._norms[own] = abs(factor) * float(np.linalg.norm(encoding.decode()[rows], axis=1).max())
            self.features |= one.features
        return self._known[key][1]

    def block(
        self,
        terms: Sequence[Term],
        bias: NDArray[np.float32],
        gates: int,
        hidden: int,
        name: str,
        rows: slice = _ALL,
    ) -> str:
        """Terms, or some rows of them, and a bias (gates · N,) that are computed together; returns the block's name."""
        outputs, inputs = len(bias) // gates, next(one.matrix.shape[1] for one in terms if one.source == "x")
        widths, norm = {_X: inputs, _H: hidden}, 0.0
        first: list[tuple[str, int, int]] = []
        last: list[tuple[str, int, int]] = []
        for one in terms:
            *thin, matrix = one.matrix.factors()
            operand, many = _X if one.source == "x" else _H, len(first)
            for factor in thin:
                first.append((self.matrix(factor, name), operand, 0))
                operand = _FACTORS + len(first) - 1
                widths[operand] = factor.shape[0]
                self.features.add("factors")
            last.append((self.matrix(matrix, name, one.factor, rows), operand, one.gate))
            names = [each[0] for each in (last[-1], *first[many:])]
            if any(self.matrices[each].is_coded for each in names):
                # In the middle of a low-rank matrix, a vector is a few times as large as a row of the right factor.
                norm = max(norm, 4.0 ** len(thin) * math.prod(self._norms[each] for each in names))
        coded = {operand for each, operand, _ in (*first, *last) if self.matrices[each].is_coded}
        need = Need(floats=sum(padded(widths[_FACTORS + k]) for k in range(len(first))))
        for operand in coded:
            need += Need.of_vector(widths[operand])
        own = self._named(name)
        biases = np.zeros((gates, padded(outputs)), np.float32)
        biases[:, :outputs] = finite(bias, name).reshape(gates, outputs)
        self.vectors[f"{own}bias"] = biases
        bits = sum(1 << operand for operand in coded)
        macs = sum(math.prod(self.matrices[each].shape) for each, _, _ in (*first, *last))
        self.blocks[own] = Block([*first, *last], len(first), gates, inputs, hidden, outputs, bits, need, macs, norm)
        return own

    def _named(self, name: str) -> str:
        return identifier(name, {*self.matrices, *self.vectors, *self.blocks})


class Function:
    """A C function, built by calling methods in the order of computation.

    Args:
        program: what it is a part of.
        holder: what goes before the names of its states.

    Attributes:
        states: buffers that live from call to call, and what they start from; None for zeros.
        macs: multiply-adds per call.
        tokens: the number of them, if it reads one.
    """

    def __init__(self, program: Program, holder: str = "s->") -> None:
        self.program, self.holder, self.macs, self.tokens = program, holder, 0, 0
        self.states: dict[str, tuple[Buffer, NDArray[np.float32] | None]] = {}
        self.statements: list[Statement] = []
        program.functions.append(self)

    def lookup(self, table: Encoding, name: str) -> Value:
        """The row of a table at the token."""
        self.program.features.add("embedding")
        self.tokens = table.shape[0]
        *thin, left = table.factors()
        to = Buffer(table.shape[1])
        if thin:
            names = [self.program.matrix(one, name) for one in (left, *thin)]
            self.program.features |= {"factors", "product"}
            need = Need(left.shape[1] + table.shape[1])
            self._add(f"lookup_product(&{names[0]}, &{names[1]}, token, {{to}}, free);", (), to, need, name)
            self.macs += left.shape[1] * table.shape[1]
            return whole(to)
        parts, text = parts_of(table), ""
        for rows in parts:
            own = self.program.matrix(table, name, rows=rows if len(parts) > 1 else _ALL)
            text += f"if (token < {rows.stop}) " if rows is not parts[-1] else ""
            text += (
                f"lookup(&{own}, token - {rows.start}, {{to}});" if rows.start else f"lookup(&{own}, token, {{to}});"
            )
            text += " else " if rows is not parts[-1] else ""
        self._add(text, (), to, comment=name)
        return whole(to)

    def linear(
        self, x: Value, matrix: Encoding, bias: NDArray[np.float32] | None, name: str, to: Buffer | None = None
    ) -> Value:
        """The product of a matrix (N, K) and x (K,), plus a bias (N,)."""
        self.program.features.add("linear")
        bias = np.zeros(matrix.shape[0], np.float32) if bias is None else bias
        to, parts = to or Buffer(matrix.shape[0]), parts_of(matrix)
        for rows in parts:
            some = rows if len(parts) > 1 else _ALL
            own = self.program.block([Term(matrix, "x")], bias[rows], 1, 0, name, some)
            self._run(f"linear(&{own}, {{0}}, {{to:{rows.start}}}, free);", own, x, to, name)
        return whole(to)

    def recurrent(
        self, x: Value, layer: LayerWeights, name: str, initial: Sequence[NDArray[np.float32]] | None = None
    ) -> list[Value]:
        """One step of a recurrent layer; returns h and, of an LSTM, c."""
        is_gru, (terms, bias) = len(layer.w_x) == 3, layer.terms()
        kind, number = "gru" if is_gru else "lstm", sum(place.startswith("h") for place in self.states)
        self.program.features.add(kind)
        states = []
        for k, (letter, size) in enumerate((("h", layer.width), ("c", layer.hidden))[: 1 if is_gru else 2]):
            place = f"{letter}{number}"
            states.append(Buffer(size, f"{self.holder}{place}"))
            self.states[place] = states[k], None if initial is None else finite(initial[k], f"the state of {name}")
        own = self.program.block(terms, bias, 4, layer.width, name)
        places = ", ".join(one.place for one in states)
        call = f"{kind}(&{own}, {{0}}, {places}, {{to}}, {_HARD[layer.hard]}, free);"
        out, h = self._run(call, own, x, Buffer(layer.hidden), name), states[0]
        if layer.w_r is None:
            self._add(f"memcpy({{to}}, {{0}}, {layer.width} * sizeof(float));", (out,), h)
        else:
            self.linear(out, layer.w_r.encoding, None, layer.w_r.name, h)
        return [whole(one) for one in states]

    def each(self, expression: str, *values: Value, comment: str = "") -> Value:
        """A vector whose elements are an expression of {0}, {1}, …, which stand for the elements of some values."""
        to = Buffer(width(values[0]))
        body = expression.format(*(f"{{{k}[k]}}" for k in range(len(values))))
        self._add(f"for (int32_t k = 0; k < {to.size}; ++k) {{to[k]}} = {body};", values, to, comment=comment)
        return whole(to)

    def call(self, text: str, *values: Value, size: int | None = None, feature: str = "", comment: str = "") -> Value:
        """A statement that writes a vector, of the first value's size unless given."""
        self.program.features |= {feature} - {""}
        to = Buffer(width(values[0]) if size is None else size)
        self._add(text, values, to, comment=comment)
        return whole(to)

    def log_softmax(self, logits: Value) -> Value:
        """Logits as log-probabilities, in the same memory."""
        self.program.features.add("log_softmax")
        piece = self._joined(logits)
        text = f"log_softmax({{0}}, {{0}}, {piece.size});"
        self.statements.append(Statement(text, (piece,), piece.buffer))
        return logits

    def copy(self, value: Value, place: str) -> None:
        """Writes a value to a place in memory, in the last statement of all."""
        piece = self._joined(value)
        buffer = piece.buffer
        if piece.size == buffer.size and not buffer.place:
            buffer.place = place
        else:
            text = f"memcpy({{to}}, {{0}}, {piece.size} * sizeof(float));"
            self.statements.append(Statement(text, (piece,), Buffer(piece.size, place)))

    def finish(self, text: str, value: Value) -> None:
        """A statement that writes no vector, after all others."""
        self.statements.append(Statement(text, (self._joined(value),), Buffer(1, "out")))

    def _run(self, text: str, block: str, x: Value, to: Buffer, name: str) -> Value:
        self.macs += self.program.blocks[block].macs
        self._add(text, (x,), to, self.program.blocks[block].need, name)
        return whole(to)

    def _add(self, text: str, values: Sequence[Value], to: Buffer, need: Need | None = None, comment: str = "") -> None:
        self.statements.append(Statement(text, tuple(map(self._joined, values)), to, need or Need(), comment))

    def _joined(self, value: Value) -> Piece:
        """The value in one piece."""
        if len(value) == 1:
            return value[0]
        to, start = Buffer(width(value)), 0
        for piece in value:
            text = f"memcpy({{to:{start}}}, {{0}}, {piece.size} * sizeof(float));"
            self.statements.append(Statement(text, (piece,), to))
            start += piece.size
        return Piece(to, 0, to.size)


def whole(buffer: Buffer) -> Value:
    """A buffer as a value."""
    return (Piece(buffer, 0, buffer.size),)


def width(value: Value) -> int:
    """The number of elements."""
    return sum(piece.size for piece in value)


def part(value: Value, start: int, size: int) -> Value:
    """Some neighbouring elements; nothing is copied."""
    found, place = [], 0
    for piece in value:
        low, high = max(start, place), min(start + size, place + piece.size)
        if low < high:
            found.append(Piece(piece.buffer, piece.start + low - place, high - low))
        place += piece.size
    return tuple(found)


def padded(rows: int) -> int:
    """Rounded up to whole panels."""
    return -(-rows // ROWS) * ROWS


def finite(numbers: NDArray[Any], name: str) -> NDArray[Any]:
    """The numbers, unless one of them is not finite."""
    if not np.isfinite(numbers).all():
        raise G2Error(f"{name} holds numbers that are not finite, so the model can't be exported; train it again")
    return numbers
