"""The readable header of a file of compressed weights: what it says of matrices, and what it may say.

It is JSON: a version, the spec, and for each matrix its kind, its shape and what its kind needs. Everything in it is
checked as what a stranger has written: nothing is allocated for a size that it names.
"""

import math
import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

import torch

from g2lstm.compression.layout import CHUNK, LONGEST_GROUP
from g2lstm.compression.matrix import HIGHEST_CODE, Dense, Encoded, Grid, GroupInt4, LowRank, RowIntegers, check_step
from g2lstm.compression.packing import MOST_LEVELS, packed_size
from g2lstm.compression.spec import Spec
from g2lstm.errors import G2Error
from g2lstm.files import parse_json

ENTRY = "compression"  # of the file's metadata, which is the header
VERSION = 1  # a reader refuses a newer one
INT4_LEVELS, INT6_LEVELS = 16, 64
_LONGEST = 2**31 - 1
_KEYS: dict[str, set[str]] = {  # what else is said of a matrix of each kind
    "dense": set(),
    "half": set(),
    "grid": {"step", "lowest", "levels"},
    "int8": set(),
    "int6": set(),
    "int4": {"group"},
    "low_rank": {"rank", "left", "right"},
}
_FACTORS = ("dense", "half", "int8", "int6", "int4")  # what a factor of a matrix of low rank can be
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class NewerVersionError(G2Error):
    """A file that is not damaged, but written by a newer g2lstm."""


class Outline(NamedTuple):
    """What a tensor of a file must be."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def describe(matrices: Mapping[str, Encoded]) -> dict[str, Any]:
    """What a header says of matrices."""
    size = sum(matrix.stored_bytes for matrix in matrices.values())
    weights = sum(math.prod(matrix.shape) for matrix in matrices.values())
    table = {name: _entry(matrix) for name, matrix in matrices.items()}
    return {"version": VERSION, "bits_per_weight": _bits(size, weights), "matrices": table}


def parse_header(text: str) -> dict[str, Any]:
    """The header from its JSON; what it says of matrices is still to be checked, as `from_tensors` does."""
    try:
        header = parse_json(text, _without_repetition, allow_nan=False)
    except ValueError as error:
        raise G2Error(f"its header is no JSON that can be used: {shown(str(error))}") from None
    if not isinstance(header, dict):
        raise G2Error(f"its header must be a table, got {shown(header)}")
    _check_version(header)
    return header


def spec_of(header: Mapping[str, Any]) -> Spec:
    """The spec that a header names."""
    text = header.get("spec")
    if not isinstance(text, str) or str(spec := Spec.parse(text)) != text:
        raise G2Error(f"its header has no spec, but {shown(text)}")
    return spec


def shown(value: object) -> str:
    """A value in a message, shortened: it may be anything."""
    return _SHORT.repr(value)


def outlines(header: Mapping[str, Any]) -> dict[str, Outline]:
    """The tensors that a header speaks of, if all that it says can be true."""
    _check_version(header)
    if missing := {"version", "bits_per_weight", "matrices"} - header.keys():
        raise G2Error(f"its header has no {sorted(missing)[0]}")
    if surplus := header.keys() - {"version", "spec", "bits_per_weight", "matrices", "sha256"}:
        raise G2Error(f"its header has {shown(sorted(surplus)[0])}, which means nothing")
    table = header["matrices"]
    if not isinstance(table, dict) or not isinstance(header["bits_per_weight"], float):
        raise G2Error("its header's matrices must be a table, and its bits_per_weight a number such as 4.0")
    if wrong := [key for key in ("spec", "sha256") if not isinstance(header.get(key, ""), str)]:
        raise G2Error(f"its header's {wrong[0]} must be text")
    found: dict[str, Outline] = {}
    for name, entry in table.items():
        for part, outline in _outline(name, entry, tuple(_KEYS)).items():
            if f"{name}.{part}" in found:
                raise G2Error(f"two matrices of its header have the tensor {shown(f'{name}.{part}')}")
            found[f"{name}.{part}"] = outline
    return found


def _check_version(header: Mapping[str, Any]) -> None:
    if not _is_whole(version := header.get("version"), 1, _LONGEST):
        raise G2Error("its header has no version")
    if version > VERSION:
        raise NewerVersionError(
            f"it is compressed in version {version}, this g2lstm reads up to {VERSION}; install a newer g2lstm"
        )


def _entry(matrix: Encoded) -> dict[str, Any]:
    """What the header says of a matrix."""
    kind, own = "dense", dict[str, Any]()
    match matrix:
        case Dense() if matrix.values.dtype == torch.float16:
            kind = "half"
        case Grid():
            kind, own = "grid", {"step": float(matrix.step), "lowest": matrix.lowest, "levels": matrix.levels}
        case RowIntegers():
            kind = f"int{matrix.bits}"
        case GroupInt4():
            kind, own = "int4", {"group": matrix.group}
        case LowRank():
            factors = {"left": _entry(matrix.left), "right": _entry(matrix.right)}
            kind, own = "low_rank", {"rank": matrix.rank, **factors}
    bits = _bits(matrix.stored_bytes, math.prod(matrix.shape))
    return {"kind": kind, "shape": list(matrix.shape), **own, "bits_per_weight": bits}


def _outline(name: str, entry: Any, kinds: tuple[str, ...]) -> dict[str, Outline]:
    """The tensors of one matrix by their parts, if what is said of it can be true."""
    what = f"its header: the matrix {shown(name)}"
    if not isinstance(entry, dict) or entry.get("kind") not in kinds:
        kind = entry.get("kind") if isinstance(entry, dict) else entry
        raise G2Error(f"{what} must be of kind {', '.join(kinds)}, got {shown(kind)}")
    kind, shape = entry["kind"], entry.get("shape")
    if entry.keys() != {"kind", "shape", "bits_per_weight"} | _KEYS[kind]:
        raise G2Error(f"{what} of kind {kind} must have {', '.join(sorted(_KEYS[kind])) or 'no further keys'}")
    if not isinstance(shape, list) or len(shape) != 2 or not all(_is_whole(size, 1, _LONGEST) for size in shape):
        raise G2Error(f"{what} must have a shape of rows and columns, got {shown(shape)}")
    if not isinstance(entry["bits_per_weight"], float):
        raise G2Error(f"{what} must have a number such as 4.0 as its bits_per_weight")
    rows, columns = shape
    match kind:
        case "dense":
            return {"values": Outline(torch.float32, (rows, columns))}
        case "half":
            return {"values": Outline(torch.float16, (rows, columns))}
        case "grid":
            if not isinstance(entry["step"], float):
                raise G2Error(f"{what} must have a number such as 0.2 as its step, got {shown(entry['step'])}")
            check_step(entry["step"])
            _whole(what, entry, "lowest", -HIGHEST_CODE - 1, HIGHEST_CODE)
            levels = _whole(what, entry, "levels", 2, MOST_LEVELS)
            return {"codes": Outline(torch.uint8, (packed_size(rows * columns, levels),))}
        case "int8":
            return {"codes": Outline(torch.int8, (rows, columns)), "scales": Outline(torch.float32, (rows,))}
        case "int6":
            codes = Outline(torch.uint8, (packed_size(rows * columns, INT6_LEVELS),))
            return {"codes": codes, "scales": Outline(torch.float32, (rows,))}
        case "int4":
            if (group := _whole(what, entry, "group", CHUNK, LONGEST_GROUP)) % CHUNK:  # which the kernel cannot read
                raise G2Error(f"{what} must have a group that is a multiple of {CHUNK}, got {group}")
            groups = -(-columns // group)
            codes = Outline(torch.uint8, (packed_size(rows * columns, INT4_LEVELS),))
            return {"codes": codes, "scales": Outline(torch.float16, (rows, groups))}
    rank = _whole(what, entry, "rank", 1, min(rows, columns))
    parts = {}
    for side, wanted in {"left": [rows, rank], "right": [rank, columns]}.items():
        for part, outline in _outline(f"{name}.{side}", entry[side], _FACTORS).items():
            parts[f"{side}.{part}"] = outline
        if entry[side]["shape"] != wanted:
            raise G2Error(f"{what}: its {side} factor must be {wanted[0]} x {wanted[1]}, got {entry[side]['shape']}")
    return parts


def _bits(size: int, weights: int) -> float:
    return round(8 * size / max(weights, 1), 3)


def _whole(what: str, entry: Mapping[str, Any], key: str, lowest: int, highest: int) -> int:
    value: int = entry[key]
    if not _is_whole(value, lowest, highest):
        raise G2Error(f"{what} must have a {key} of {lowest} to {highest}, got {shown(value)}")
    return value


def _is_whole(value: Any, lowest: int, highest: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found
