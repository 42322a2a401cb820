"""Compressed weights in a safetensors file: packed tensors, and a readable header that says what they are.

The header is JSON: a version, the spec, and an entry for each matrix. Anyone may have written a file, so everything in
it is checked before anything is made from it: reading allocates at most some fifty bytes per byte of the file. A
checksum over everything finds accidental damage.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from g2lstm.compression.encodings import Encoding, Entry
from g2lstm.compression.encodings.base import Array, Outline, bits_per_weight, brief, is_whole
from g2lstm.compression.spec import Spec
from g2lstm.errors import G2Error
from g2lstm.files import parse_json

HEADER = "compression"  # where the header stands in the metadata of a file
VERSION = 1  # newer ones are refused
_DTYPES = ("F64", "F32", "F16", "BF16", "I8", "U8")  # the types of weights and codes, as safetensors calls them


class NewerVersionError(G2Error):
    """The file is fine, but a newer g2lstm wrote it."""


class Stored(NamedTuple):
    """The content of a file."""

    matrices: dict[str, Encoding]
    others: dict[str, Tensor]  # parameters that are not compressed, such as biases
    spec: Spec


def save(
    matrices: Mapping[str, Encoding], others: Mapping[str, Tensor], spec: Spec, metadata: Mapping[str, str]
) -> bytes:
    """The content of a file, for `load`.

    Args:
        matrices: by name.
        others: parameters that are not compressed, by name.
        spec: the spec that the matrices were encoded with.
        metadata: further entries, stored as they are.
    """
    packed, described = pack(matrices)
    if clash := sorted(packed.keys() & others.keys()):
        raise G2Error(f"two tensors in the file would have the name {clash[0]!r}; rename the parameter")
    tensors = {name: torch.from_numpy(array) for name, array in packed.items()}
    tensors |= {name: tensor.detach().cpu().contiguous() for name, tensor in others.items()}
    header = {"version": described["version"], "spec": str(spec), **described}
    header["sha256"] = _checksum(tensors, header, metadata)
    return save_tensors(tensors, {**metadata, HEADER: json.dumps(header)})


def load(path: Path, opened: Any = None) -> Stored:
    """Reads a file; raises if it is damaged, forged or too new.

    Args:
        path: the file.
        opened: the same file if it is open already, as `safetensors.safe_open` gives it.
    """
    try:
        if opened is not None:
            return _load(opened)
        with safetensors.safe_open(path, framework="pt") as file:
            return _load(file)
    except NewerVersionError as error:
        raise G2Error(f"{path}: {error}") from None
    except (safetensors.SafetensorError, OSError, G2Error) as error:
        raise G2Error(f"can't read {path}: {error}; restore it, or compress the original again") from None


def _load(file: Any) -> Stored:
    metadata: dict[str, str] = file.metadata() or {}
    names = list(file.keys())
    for name in names:
        dtype, shape = (kept := file.get_slice(name)).get_dtype(), kept.get_shape()
        if dtype not in _DTYPES or 0 in shape:
            raise G2Error(f"{brief(name)} is {dtype} {brief(shape)}, which no weights are")
    tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in names}
    header = parse_header(metadata.pop(HEADER, ""))
    own = {f"{name}.{part}" for name, entry in _entries(header).items() for part in entry.outlines()}
    if header.get("sha256") != _checksum(tensors, header, metadata):
        raise G2Error("it is damaged: its checksum does not match its content")
    matrices = unpack({name: tensors[name].numpy() for name in own & tensors.keys()}, header)
    others = {name: tensors[name] for name in tensors.keys() - own}
    if broken := sorted(name for name, tensor in others.items() if not tensor.isfinite().all()):
        raise G2Error(f"the tensor {brief(broken[0])} holds NaN or infinity")
    return Stored(matrices, others, spec_of(header))


def pack(matrices: Mapping[str, Encoding]) -> tuple[dict[str, Array], dict[str, Any]]:
    """What a file holds of matrices: tensors named after the matrix and its part, and the header."""
    arrays: dict[str, Array] = {}
    for name, matrix in matrices.items():
        for part, array in matrix.packed.items():
            if f"{name}.{part}" in arrays:
                raise G2Error(f"two tensors in the file would have the name {name}.{part}; rename the parameter")
            arrays[f"{name}.{part}"] = array
    return arrays, _describe(matrices)


def unpack(arrays: Mapping[str, Array], header: Mapping[str, Any]) -> dict[str, Encoding]:
    """Restores the matrices that `pack` was given.

    Raises:
        G2Error: `pack` can't have produced this header, or these are not its tensors.
    """
    entries = _entries(header)
    expected: dict[str, Outline] = {}
    for name, entry in entries.items():
        for part, outline in entry.outlines().items():
            if f"{name}.{part}" in expected:
                raise G2Error(f"two matrices in its header have the tensor {brief(f'{name}.{part}')}")
            expected[f"{name}.{part}"] = outline
    if wrong := sorted(expected.keys() ^ arrays.keys()):
        what = "is missing" if wrong[0] in expected else "belongs to no matrix"
        raise G2Error(f"the tensor {brief(wrong[0])} {what}")
    for name, outline in expected.items():
        if (found := Outline(str(arrays[name].dtype), arrays[name].shape)) != outline:
            raise G2Error(f"the tensor {brief(name)} must be {outline}, got {found}")
    matrices = {}
    for name, entry in entries.items():
        matrices[name] = entry.unpack({part: arrays[f"{name}.{part}"] for part in entry.outlines()})
        if matrices[name].describe() != entry.facts:
            raise G2Error(f"what the header says about {brief(name)} is not true of its tensors")
    if (bits := _describe(matrices)["bits_per_weight"]) != header["bits_per_weight"]:
        raise G2Error(f"the header's bits_per_weight must be {bits}, got {header['bits_per_weight']}")
    return matrices


def parse_header(text: str) -> dict[str, Any]:
    """The header, from JSON; its matrices are checked by `unpack`."""
    try:
        header = parse_json(text, _without_repetition, allow_nan=False)
    except ValueError as error:
        raise G2Error(f"its header is not JSON that can be used: {brief(str(error))}") from None
    if not isinstance(header, dict):
        raise G2Error(f"its header must be a table, got {brief(header)}")
    _check_version(header)
    return header


def spec_of(header: Mapping[str, Any]) -> Spec:
    """The spec that a header names."""
    text = header.get("spec")
    if not isinstance(text, str) or str(spec := Spec.parse(text)) != text:
        raise G2Error(f"its header must name a spec, got {brief(text)}")
    return spec


def _describe(matrices: Mapping[str, Encoding]) -> dict[str, Any]:
    size = sum(matrix.stored_bytes for matrix in matrices.values())
    weights = sum(math.prod(matrix.shape) for matrix in matrices.values())
    entries = {name: matrix.describe() for name, matrix in matrices.items()}
    return {"version": VERSION, "bits_per_weight": bits_per_weight(size, weights), "matrices": entries}


def _entries(header: Mapping[str, Any]) -> dict[str, Entry]:
    """The entries of a header, if it has everything that a header must have."""
    _check_version(header)
    if missing := {"version", "bits_per_weight", "matrices"} - header.keys():
        raise G2Error(f"its header has no {sorted(missing)[0]}")
    if surplus := header.keys() - {"version", "spec", "bits_per_weight", "matrices", "sha256"}:
        raise G2Error(f"its header has an unknown key, {brief(sorted(surplus)[0])}")
    if not isinstance(header["matrices"], dict) or not isinstance(header["bits_per_weight"], float):
        raise G2Error("its header must have a table of matrices and a decimal number as its bits_per_weight")
    if wrong := [key for key in ("spec", "sha256") if not isinstance(header.get(key, ""), str)]:
        raise G2Error(f"its header's {wrong[0]} must be text")
    return {name: Entry(name, facts) for name, facts in header["matrices"].items()}


def _check_version(header: Mapping[str, Any]) -> None:
    if not is_whole(version := header.get("version"), 1, 2**31 - 1):
        raise G2Error("its header has no version")
    if version > VERSION:
        raise NewerVersionError(
            f"it is in version {version} of the format, and this g2lstm reads up to {VERSION}; install a newer g2lstm"
        )


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key appears twice")
    return found


def _checksum(tensors: Mapping[str, Tensor], header: Mapping[str, Any], metadata: Mapping[str, str]) -> str:
    """The checksum over everything in a file except the checksum itself."""
    covered = {key: value for key, value in header.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps([covered, dict(metadata)], sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), tensor.shape]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
