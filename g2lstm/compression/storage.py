"""Compressed weights in a safetensors file: packed codes, scales and factors, and a header that describes them.

What the header says is checked against the tensors that are there before anything is made of them, so that reading
takes at most some fifty bytes of memory for each byte of the file. A checksum over everything finds damage by accident.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from safetensors.torch import save as save_tensors
from torch import Tensor

from g2lstm.compression.header import (
    ENTRY,
    INT4_LEVELS,
    INT6_LEVELS,
    NewerVersionError,
    Outline,
    describe,
    outlines,
    parse_header,
    shown,
    spec_of,
)
from g2lstm.compression.matrix import GREATEST, HIGHEST_CODE, Dense, Encoded, Grid, GroupInt4, LowRank, RowIntegers
from g2lstm.compression.packing import pack, unpack
from g2lstm.compression.spec import Spec
from g2lstm.errors import G2Error

_LOWEST_INT4, _LOWEST_INT6 = -INT4_LEVELS // 2, -INT6_LEVELS // 2
_DTYPES = ("F64", "F32", "F16", "BF16", "I8", "U8")  # what weights and codes can be, as safetensors calls it


class Stored(NamedTuple):
    """What a file of compressed weights holds."""

    matrices: dict[str, Encoded]
    others: dict[str, Tensor]  # parameters that are not compressed, such as biases
    spec: Spec


def save(
    matrices: Mapping[str, Encoded], others: Mapping[str, Tensor], spec: Spec, metadata: Mapping[str, str]
) -> bytes:
    """The content of a file, which `load` reads.

    Args:
        matrices: by name.
        others: parameters that are not compressed, by name.
        spec: what made the matrices.
        metadata: further entries, kept as they are.
    """
    tensors, described = to_tensors(matrices)
    if clash := sorted(tensors.keys() & others.keys()):
        raise G2Error(f"two tensors of the file would be called {clash[0]!r}; rename the parameter")
    tensors |= {name: tensor.detach().cpu().contiguous() for name, tensor in others.items()}
    header = {"version": described["version"], "spec": str(spec), **described}
    header["sha256"] = _checksum(tensors, header, metadata)
    return save_tensors(tensors, {**metadata, ENTRY: json.dumps(header)})


def load(path: Path) -> Stored:
    """Reads a file; one that is damaged, made up or of a newer version is an error that says so."""
    try:
        return _load(path)
    except NewerVersionError as error:
        raise G2Error(f"{path}: {error}") from None
    except (safetensors.SafetensorError, OSError, G2Error) as error:
        raise G2Error(f"{path} cannot be read: {error}; restore it, or compress the original anew") from None


def _load(path: Path) -> Stored:
    with safetensors.safe_open(path, framework="pt") as file:
        metadata: dict[str, str] = file.metadata() or {}
        for name in file.keys():  # noqa: SIM118, it is no mapping
            dtype, shape = (kept := file.get_slice(name)).get_dtype(), kept.get_shape()
            if dtype not in _DTYPES or 0 in shape:
                raise G2Error(f"{shown(name)} is {dtype} {shown(shape)}, and no weights are")
        tensors: dict[str, Tensor] = file.get_tensors()
    header = parse_header(metadata.pop(ENTRY, ""))
    own = outlines(header).keys()
    if header.get("sha256") != _checksum(tensors, header, metadata):
        raise G2Error("it is damaged: its content does not have the checksum that it was saved with")
    matrices = from_tensors({name: tensors[name] for name in own & tensors.keys()}, header)
    others = {name: tensors[name] for name in tensors.keys() - own}
    if broken := sorted(name for name, tensor in others.items() if not tensor.isfinite().all()):
        raise G2Error(f"the tensor {shown(broken[0])} holds NaN or infinity")
    return Stored(matrices, others, spec_of(header))


def to_tensors(matrices: Mapping[str, Encoded]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What a file holds of matrices: tensors, each called by its matrix and its part, and the header, for JSON."""
    tensors: dict[str, Tensor] = {}
    for name, matrix in matrices.items():
        for part, tensor in _stored(matrix).items():
            if f"{name}.{part}" in tensors:
                raise G2Error(f"two tensors of the file would be called {name}.{part}; rename the parameter")
            tensors[f"{name}.{part}"] = tensor.cpu().contiguous()
    return tensors, describe(matrices)


def from_tensors(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> dict[str, Encoded]:
    """The matrices that `to_tensors` was given.

    Raises:
        G2Error: the header is not one that `to_tensors` makes, or these are not the tensors it speaks of.
    """
    expected = outlines(header)
    if wrong := sorted(expected.keys() ^ tensors.keys()):
        what = "is missing" if wrong[0] in expected else "belongs to no matrix"
        raise G2Error(f"the tensor {shown(wrong[0])} {what}")
    for name, outline in expected.items():
        if (found := Outline(tensors[name].dtype, tuple(tensors[name].shape))) != outline:
            raise G2Error(f"the tensor {shown(name)} must be {outline}, and is {found}")
    matrices = {name: _restored(name, entry, tensors) for name, entry in header["matrices"].items()}
    rebuilt = describe(matrices)
    if wrong := [name for name, entry in rebuilt["matrices"].items() if entry != header["matrices"][name]]:
        raise G2Error(f"the header says of {shown(wrong[0])} what is not true of its tensors")
    if rebuilt["bits_per_weight"] != header["bits_per_weight"]:
        raise G2Error(f"the header's bits_per_weight must be {rebuilt['bits_per_weight']}")
    return matrices


def _stored(matrix: Encoded) -> dict[str, Tensor]:
    """A matrix's tensors as a file has them: as they are, but codes of other than eight bits packed."""
    match matrix:
        case Grid():
            return {"codes": _packed(matrix.codes, matrix.lowest, matrix.levels)}
        case RowIntegers(bits=6):
            return {"codes": _packed(matrix.codes, _LOWEST_INT6, INT6_LEVELS), "scales": matrix.scales}
        case GroupInt4():
            return {"codes": _packed(matrix.codes, _LOWEST_INT4, INT4_LEVELS), "scales": matrix.scales}
        case LowRank():
            factors = {"left": matrix.left, "right": matrix.right}
            return {f"{side}.{part}": tensor for side, one in factors.items() for part, tensor in _stored(one).items()}
    return matrix.tensors()


def _restored(name: str, entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Encoded:
    """The matrix of this name, from an entry and tensors that were checked."""
    rows, columns = entry["shape"]
    match entry["kind"]:
        case "dense" | "half":
            if not (values := tensors[f"{name}.values"]).float().abs().max() <= GREATEST:  # false for NaN too
                raise G2Error(f"the tensor {shown(name)} holds NaN or numbers beyond {GREATEST}")
            return Dense(values)
        case "grid":
            codes = _unpacked(tensors[f"{name}.codes"], rows, columns, entry["lowest"], entry["levels"])
            if (top := max(-int(codes.min()), int(codes.max()))) > HIGHEST_CODE:
                raise G2Error(f"the codes of {shown(name)} must be at most {HIGHEST_CODE}, got {top}")
            return Grid(torch.from_numpy(codes.astype(np.int8 if top <= 127 else np.int16)), entry["step"])
        case "int8":
            return RowIntegers(tensors[f"{name}.codes"], tensors[f"{name}.scales"])
        case "int6":
            codes = _unpacked(tensors[f"{name}.codes"], rows, columns, _LOWEST_INT6, INT6_LEVELS)
            return RowIntegers(torch.from_numpy(codes.astype(np.int8)), tensors[f"{name}.scales"], bits=6)
        case "int4":
            codes = _unpacked(tensors[f"{name}.codes"], rows, columns, _LOWEST_INT4, INT4_LEVELS)
            return GroupInt4(torch.from_numpy(codes.astype(np.int8)), tensors[f"{name}.scales"], entry["group"])
    left, right = (_restored(f"{name}.{side}", entry[side], tensors) for side in ("left", "right"))
    assert not isinstance(left, Grid | LowRank)
    assert not isinstance(right, Grid | LowRank)
    return LowRank(left, right)


def _packed(codes: Tensor, lowest: int, levels: int) -> Tensor:
    return torch.from_numpy(pack(codes.numpy(force=True).astype(np.int32) - lowest, levels))


def _unpacked(packed: Tensor, rows: int, columns: int, lowest: int, levels: int) -> NDArray[np.int32]:
    codes = unpack(packed.numpy(), rows * columns, levels)
    wide = codes.reshape(rows, columns).astype(np.int32)
    wide += lowest
    return wide


def _checksum(tensors: Mapping[str, Tensor], header: Mapping[str, Any], metadata: Mapping[str, str]) -> str:
    """Of all that a file says, but for the checksum itself."""
    told = {key: value for key, value in header.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps([told, dict(metadata)], sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), tensor.shape]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
