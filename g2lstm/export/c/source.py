"""Writes a `Program` as C: the header and the source."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from g2lstm.export.c.matrices import Stored
from g2lstm.export.c.program import Block, Buffer, Function, Need, Piece, Program, Statement, padded
from g2lstm.export.c.text import array, comment, number, template

PARTS = ("vectors.c", "products.c", "functions.c", "layers.c")
_IMPLIED = {"lstm": {"sigmoid", "tanh"}, "gru": {"sigmoid", "tanh"}}
_TYPES = {"float32": "float", "uint32": "uint32_t", "uint16": "uint16_t"}


class Scratch(NamedTuple):
    """Memory that functions share: floats of buffers, and what single statements need beyond them."""

    floats: int
    own: Need

    @property
    def bytes(self) -> int:
        """Its size."""
        return 4 * (self.floats + self.own.floats) + 2 * self.own.codes + 4 * self.own.prefix

    def fields(self) -> Iterator[str]:
        """The fields of a struct."""
        for kind, name, size in (
            ("float", "work", self.floats + self.own.floats),
            ("int16_t", "codes", self.own.codes),
            ("uint32_t", "prefix", self.own.prefix),
        ):
            yield f"{kind} {name}[{max(size, 1)}];"


def place(functions: Sequence[Function]) -> Scratch:
    """Finds room for all buffers that have none; those that are never needed at the same time share it."""
    rooms = [_place(one.statements) for one in functions]
    own = Need()
    for room in rooms:
        own |= room.own
    return Scratch(max(room.floats for room in rooms), own)


def _place(statements: Sequence[Statement]) -> Scratch:
    last = {buffer: at for at, one in enumerate(statements) for buffer in (one.to, *(p.buffer for p in one.reads))}
    taken: dict[Buffer, range] = {}
    floats, own = 0, Need()
    for at, one in enumerate(statements):
        if not one.to.place:
            start, size = 0, padded(one.to.size)
            for room in sorted(taken.values(), key=lambda room: room.start):
                if room.start - start >= size:
                    break
                start = room.stop
            taken[one.to] = range(start, start + size)
            one.to.place = f"s->work + {start}" if start else "s->work"
            floats = max(floats, start + size)
        own |= one.need
        taken = {buffer: room for buffer, room in taken.items() if last[buffer] > at}
    return Scratch(floats, own)


def body(function: Function, scratch: Scratch) -> str:
    """The statements of a function, whose buffers have their places."""
    lines = []
    if any("free" in one.text for one in function.statements):
        lines.append(f"    const scratch free = {{s->work + {scratch.floats}, s->codes, s->prefix}};")
    for one in function.statements:
        text = one.text.format(*map(_Pointer, one.reads), to=_Pointer(Piece(one.to, 0, one.to.size)))
        lines.append(f"    {text}" + (f" /* {comment(one.comment)} */" if one.comment else ""))
    return "\n".join(lines)


class _Pointer:
    """A piece of memory within a statement."""

    def __init__(self, piece: Piece) -> None:
        self.base, _, start = piece.buffer.place.partition(" + ")
        self.start = int(start or 0) + piece.start

    def __format__(self, further: str) -> str:
        """The pointer, or one to a place that much further on."""
        start = self.start + int(further or 0)
        return f"{self.base} + {start}" if start else self.base

    def __getitem__(self, index: str) -> str:
        return f"{self.base}[{self.start} + {index}]" if self.start else f"{self.base}[{index}]"


def kernel(program: Program) -> str:
    """The functions that all models share, as far as this one needs them."""
    features = set(program.features)
    for one in program.features:
        features |= _IMPLIED.get(one, set())
    operands = max((2 + block.factors for block in program.blocks.values()), default=2)
    parts = [template(name, features) for name in PARTS]
    return "\n".join(
        [*parts[:-1], f"\n#define OPERANDS {operands} /* the most vectors that a block reads */", parts[-1]]
    )


def constants(program: Program) -> str:
    """The weights."""
    written = [_matrix(name, one) for name, one in program.matrices.items()]
    written += [array("float", name, values) for name, values in program.vectors.items()]
    written += [_block(name, one) for name, one in program.blocks.items()]
    return "\n".join(written)


def size(program: Program) -> int:
    """The bytes of the weights, without the tables that point to them."""
    return sum(one.bytes for one in program.matrices.values()) + sum(one.nbytes for one in program.vectors.values())


def _matrix(name: str, one: Stored) -> str:
    arrays = {"data": one.data, "scales": one.scales, "groups": one.groups}
    found = {end: values for end, values in arrays.items() if values is not None}
    texts = [array(_TYPES[str(values.dtype)], f"{name}{end}", values) for end, values in found.items()]
    places = [f"{name}{end}" if end in found else "NULL" for end in arrays]
    rows, columns = one.shape
    spans = -(-columns // one.span) if one.span else 0
    facts = [*places, number(one.factor), rows, columns, one.data.shape[1], spans, one.span, one.form]
    return "".join([*texts, f"static const matrix {name} = {{{', '.join(map(str, facts))}}};\n"])


def _block(name: str, one: Block) -> str:
    terms = ", ".join(f"{{&{matrix}, {operand}, {gate}}}" for matrix, operand, gate in one.terms)
    sizes = [one.inputs, one.hidden, one.outputs, one.factors, len(one.terms), one.gates, one.coded]
    return (
        f"static const term {name}terms[] = {{{terms}}};\n"
        f"static const block {name} = {{{name}terms, {name}bias, {', '.join(map(str, sizes))}}};\n"
    )
