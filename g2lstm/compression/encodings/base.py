"""`Encoding`, one way to store a weight matrix, and `Entry`, which finds and reads encodings in a file.

Encodings hold NumPy arrays. Only `encode` needs torch, so compressed weights can be read and run without it.
"""

import itertools
import math
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression.encodings.panels import LONGEST_GROUP, Panels, code_panels, dense_panels, narrowest
from g2lstm.errors import G2Error

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[np.float32]
Numbers: TypeAlias = NDArray[np.int64] | slice  # of rows
Arguments: TypeAlias = Mapping[str, float | None]  # the operations of a spec with their numbers: round 0.2, clip 0.4

LEAST, GREATEST = 1e-30, 1e30  # of steps and scales, and of weights: float32 has room on both sides
_PART = 4  # the least length of a part, in multiples
LEAST_GROUP = 32  # columns per scale that every kernel can read
_LONGEST = 2**31 - 1
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80

KINDS: dict[str, type["Encoding"]] = {}  # by the name in a file's header
FORMS: dict[str, type["Encoding"]] = {}  # by the operations of a spec, such as "round:R,clip:C"


def names_in(form: str) -> list[str]:
    """The operations of a form."""
    return [part.partition(":")[0] for part in form.split(",")]


def form_of(names: Iterable[str]) -> str:
    """The form of these operations in whatever order; nothing if they do not go together."""
    wanted = sorted(names)
    return next((form for form in FORMS if sorted(names_in(form)) == wanted), "")


class Outline(NamedTuple):
    """The type and shape of a tensor in a file."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """For messages."""
        return f"{self.dtype} {self.shape}"


class Encoding(ABC):
    """A weight matrix as it is stored. To add an encoding, write a subclass in a file of its own and import it.

    Class attributes:
        kinds: the names that the header of a file has for it, each with the further facts that the header then states.
        forms: the operations of a spec that call for it, where a capital letter is a positive number, K for an integer.
        is_factor: whether the two factors of a low-rank matrix can be stored like this.
        derived: facts of the header that the weights decide, not the spec.
    """

    kinds: ClassVar[Mapping[str, tuple[str, ...]]]
    forms: ClassVar[tuple[str, ...]] = ()
    is_factor: ClassVar[bool] = True
    derived: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Registers the encoding."""
        if "kinds" in vars(cls):
            KINDS.update(dict.fromkeys(cls.kinds, cls))
            FORMS.update(dict.fromkeys(cls.forms, cls))

    @classmethod
    @abstractmethod
    def encode(cls, values: "Tensor", arguments: Arguments) -> Self:
        """Encodes a matrix (rows, columns) of any floating-point type, on any device.

        Args:
            values: the matrix.
            arguments: the operations of one of `forms`, in that order, with their numbers.
        """

    @classmethod
    def encode_quickly(cls, values: "Tensor", arguments: Arguments) -> Self:
        """Like `encode`, nearly as close, and fast enough for every update of a training run.

        It depends on nothing but its arguments, so that a training run that is resumed sees the same weights.
        """
        return cls.encode(values, arguments)

    @classmethod
    def check(cls, arguments: Arguments) -> None:
        """Raises for numbers that no matrix can be encoded with."""
        return

    @property
    def kind(self) -> str:
        """What the header of a file calls it."""
        return next(iter(self.kinds))

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @abstractmethod
    def rows(self, numbers: Numbers) -> Floats:
        """The values of some rows: (n, columns)."""

    def decode(self) -> Floats:
        """The matrix that it stands for: (rows, columns)."""
        return self.rows(slice(None))

    def factors(self) -> list["Encoding"]:
        """The matrices that a vector is multiplied by, one after the other: itself, or thin ones instead."""
        return [self]

    def panels(self, panel: int, factor: float = 1.0, rows: slice = slice(None)) -> Panels:
        """The matrix times `factor` as the compiled kernel reads it.

        Args:
            panel: rows per panel.
            factor: for example 1 / tau.
            rows: only these.
        """
        return dense_panels(self.decode()[rows] * np.float32(factor), panel)

    def parts(self, multiple: int) -> list[slice]:
        """The rows that the kernel may as well read in different forms; each part but the last has whole multiples."""
        return [slice(0, self.shape[0])]

    def facts(self) -> dict[str, Any]:
        """What the header says besides kind, shape and bits per weight: an attribute for each key of its kind."""
        each = {key: getattr(self, key) for key in self.kinds[self.kind]}
        return {key: one.describe() if isinstance(one, Encoding) else one for key, one in each.items()}

    @abstractmethod
    def pack(self) -> dict[str, Array]:
        """The tensors that a file holds."""

    @classmethod
    @abstractmethod
    def outlines(cls, entry: "Entry") -> dict[str, Outline]:
        """The tensors that a file must hold according to an entry of its header; raises if the entry can't be true."""

    @classmethod
    @abstractmethod
    def unpack(cls, entry: "Entry", packed: Mapping[str, Array]) -> Self:
        """Restores the matrix from its entry and from finite tensors with these outlines; raises if a code is wrong."""

    @cached_property
    def packed(self) -> dict[str, Array]:
        """The tensors that a file holds, packed once."""
        return {name: np.ascontiguousarray(array) for name, array in self.pack().items()}

    @property
    def stored_bytes(self) -> int:
        """The size of the packed tensors."""
        return sum(array.nbytes for array in self.packed.values())

    def describe(self) -> dict[str, Any]:
        """Its entry in a header."""
        bits = bits_per_weight(self.stored_bytes, math.prod(self.shape))
        return {"kind": self.kind, "shape": list(self.shape), **self.facts(), "bits_per_weight": bits}

    def __repr__(self) -> str:
        """Its entry, for people."""
        return f"{type(self).__name__}({', '.join(f'{key}={value}' for key, value in self.describe().items())})"


class Coded(Encoding):
    """Integers and scales: value = code · scale of its group of columns.

    Decoding, the kernel's panels and ONNX need no more than these.

    Attributes:
        codes: (rows, columns), int8 or int16.
        scales: as a file holds them.
        group: columns per scale, which is then a float16 number; None for one scale per row.
    """

    codes: Array
    scales: Array
    group: int | None = None

    @cached_property
    def group_scales(self) -> Floats:
        """The scales: (rows, groups)."""
        return self.scales.astype(np.float32).reshape(len(self.codes), -1)

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.codes.shape
        return rows, columns

    def rows(self, numbers: Numbers) -> Floats:
        scales = self.group_scales[numbers]
        if self.group is not None:
            scales = scales.repeat(self.group, axis=1)[:, : self.shape[1]]
        values: Floats = self.codes[numbers] * scales
        return values

    def row_scales(self, factor: float) -> Floats:
        """The scales times `factor`, where each row has one: (rows,)."""
        scales: Floats = self.group_scales[:, 0] * np.float32(factor)
        return scales

    def panels(self, panel: int, factor: float = 1.0, rows: slice = slice(None)) -> Panels:
        """Packed in as few bits as the codes need; float32 where they need more than the kernel has."""
        codes = self.codes[rows]
        if self.group is None:
            packed = code_panels(codes, self.row_scales(factor)[rows], panel)
        else:
            factors = np.full(len(codes), factor, np.float32)
            packed = code_panels(codes, factors, panel, self.group, self.group_scales[rows])
        return packed or super().panels(panel, factor, rows)

    def parts(self, multiple: int) -> list[slice]:
        """By the bits that are enough for the rest of the rows: the embeddings of rare words often need fewer."""
        starts = range(0, len(self.codes), _PART * multiple)
        forms = [narrowest(self.codes[start : start + _PART * multiple], self.group or 0) for start in starts]
        bits = np.array([32 if form is None else form.bits for form in forms])
        enough = np.maximum.accumulate(bits[::-1])[::-1]
        firsts = [0, *(starts[k] for k in range(1, len(starts)) if enough[k] < enough[k - 1])]
        return [slice(*ends) for ends in itertools.pairwise([*firsts, len(self.codes)])]


class Entry:
    """What a header says about one matrix. A stranger may have written it, so everything is checked.

    Args:
        name: of the matrix.
        facts: the entry, from JSON.
        kinds: the kinds that are allowed here.

    Attributes:
        kind, shape: as in `Encoding`.
        outlines: the tensors that the file must hold.
    """

    def __init__(self, name: str, facts: Any, kinds: Iterable[str] = KINDS) -> None:
        self.name, self.facts = name, facts
        self._what = f"its header: the matrix {brief(name)}"
        kind, allowed = facts.get("kind") if isinstance(facts, dict) else facts, tuple(kinds)
        if not isinstance(facts, dict) or kind not in allowed:
            raise G2Error(f"{self._what} must be of kind {', '.join(allowed)}, got {brief(kind)}")
        self.kind: str = kind
        keys = KINDS[kind].kinds[kind]
        if facts.keys() != {"kind", "shape", "bits_per_weight", *keys}:
            raise G2Error(f"{self._what} of kind {kind} must have {', '.join(sorted(keys)) or 'no further keys'}")
        shape = facts["shape"]
        if not isinstance(shape, list) or len(shape) != 2 or not all(is_whole(size, 1, _LONGEST) for size in shape):
            raise G2Error(f"{self._what} must have a shape of rows and columns, got {brief(shape)}")
        self.shape: tuple[int, int] = shape[0], shape[1]
        self.number("bits_per_weight")
        self.outlines = KINDS[kind].outlines(self)

    def unpack(self, packed: Mapping[str, Array]) -> Encoding:
        """Restores the matrix; raises unless the tensors are those that the entry describes."""
        for part, outline in self.outlines.items():
            if part not in packed:
                raise G2Error(f"the tensor {brief(f'{self.name}.{part}')} is missing")
            if (found := Outline(str(packed[part].dtype), packed[part].shape)) != outline:
                raise G2Error(f"the tensor {brief(f'{self.name}.{part}')} must be {outline}, got {found}")
            if outline.dtype.startswith("float") and not np.abs(packed[part].astype(np.float32)).max() <= GREATEST:
                raise G2Error(f"the tensor {brief(f'{self.name}.{part}')} holds NaN or numbers beyond {GREATEST}")
        matrix = KINDS[self.kind].unpack(self, packed)
        vars(matrix)["packed"] = dict(packed)  # packing again would give the same
        if matrix.describe() != self.facts:
            raise G2Error(f"the header does not match the tensors of {brief(self.name)}")
        return matrix

    def number(self, key: str) -> float:
        """A decimal number."""
        if not isinstance(value := self.facts[key], float):
            raise G2Error(f"{self._what} must have a decimal number such as 0.2 as its {key}, got {brief(value)}")
        return value

    def whole(self, key: str, lowest: int, highest: int) -> int:
        """An integer within bounds."""
        if not is_whole(value := self.facts[key], lowest, highest):
            raise G2Error(f"{self._what} must have a {key} of {lowest} to {highest}, got {brief(value)}")
        return value

    def group(self, multiple: int) -> int:
        """The columns per scale, a multiple of what the kernel reads at once."""
        if (group := self.whole("group", multiple, LONGEST_GROUP)) % multiple:
            raise self.refuse(f" must have a group that is a multiple of {multiple}, got {group}")
        return group

    def refuse(self, reason: str) -> G2Error:
        """The error that says what is wrong with the entry."""
        return G2Error(f"{self._what}{reason}")


def check_values(values: "Tensor") -> "Tensor":
    """The matrix in float32 on the CPU, if it can be compressed at all."""
    if values.dim() != 2 or values.numel() == 0 or not values.is_floating_point():
        raise G2Error(
            "a matrix to compress must be floating point with at least one row and one column, "
            f"got {values.dtype} of shape {tuple(values.shape)}"
        )
    weights = values.detach().cpu().float().contiguous()
    if not weights.abs().max() <= GREATEST:  # false for NaN too
        raise G2Error(
            f"a matrix of shape {tuple(values.shape)} holds NaN or weights beyond {GREATEST}; "
            "such a model can't be compressed"
        )
    return weights


def check_group(group: int) -> None:
    """Raises for a group of columns that no kernel could read."""
    if not 0 < group <= LONGEST_GROUP or group % LEAST_GROUP:
        raise G2Error(f"the K of group:K must be a multiple of {LEAST_GROUP} up to {LONGEST_GROUP}, got {group}")


def bits_per_weight(size: int, weights: int) -> float:
    """To three digits after the point, from a number of bytes."""
    return round(8 * size / max(weights, 1), 3)


def is_whole(value: Any, lowest: int, highest: float = math.inf) -> TypeGuard[int]:
    """Whether this is an integer within bounds, perhaps of NumPy; truth values are not."""
    return isinstance(value, Integral) and not isinstance(value, bool) and lowest <= int(value) <= highest


def brief(value: object) -> str:
    """Any value in a message, shortened."""
    return _SHORT.repr(value)
