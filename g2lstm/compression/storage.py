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
from g2lstm.compression.encodings.base import bits_per_weight, brief, is_whole
from g2lstm.compression.spec import Spec
from g2lstm.errors import G2Error
from g2lstm.files import parse_json

HEADER = "compression"  # where the header stands in the metadata of a file
VERSION = 1  # newer ones are refused
_KEYS = {
    "spec": (str, "text"),
    "bits_per_weight": (float, "a decimal number"),
    "matrices": (dict, "an object"),
    "sha256": (str, "text"),
}
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip  # as safetensors calls them


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
        spec: the spec that the matrices were encoded with; an empty one if it is not known.
        metadata: further entries, stored as they are.
    """
    tensors: dict[str, Tensor] = {}
    parts = [(f"{name}.{part}", one) for name, matrix in matrices.items() for part, one in matrix.packed.items()]
    plain = [(name, tensor.detach().cpu().contiguous()) for name, tensor in others.items()]
    for name, tensor in [*((name, torch.from_numpy(array)) for name, array in parts), *plain]:
        if name in tensors:
            raise G2Error(f"two tensors in the file would have the name {name!r}; rename the parameter")
        if tensor.dtype not in _DTYPES.values() or not tensor.numel():
            raise G2Error(
                f"{name} is {tensor.dtype} {tuple(tensor.shape)}, which a file can't hold; if it is a buffer that can "
                "be made again, register it with persistent=False"
            )
        tensors[name] = tensor
    header = {
        "version": VERSION,
        "spec": str(spec),
        "bits_per_weight": _bits_per_weight(matrices),
        "matrices": {name: matrix.describe() for name, matrix in matrices.items()},
    }
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
    if header["sha256"] != _checksum(tensors, header, metadata):
        raise G2Error("it is damaged: its checksum does not match its content")
    matrices, others = unpack(tensors, header["matrices"])
    if broken := sorted(name for name, tensor in others.items() if not tensor.isfinite().all()):
        raise G2Error(f"the tensor {brief(broken[0])} holds NaN or infinity")
    if (bits := _bits_per_weight(matrices)) != header["bits_per_weight"]:
        raise G2Error(f"the header's bits_per_weight must be {bits}, got {header['bits_per_weight']}")
    return Stored(matrices, others, _spec_of(header["spec"]))


def unpack(tensors: Mapping[str, Tensor], entries: Mapping[str, Any]) -> tuple[dict[str, Encoding], dict[str, Tensor]]:
    """The matrices that the entries of a header describe, and the tensors that belong to none of them."""
    matrices, others = {}, dict(tensors)
    for name, facts in entries.items():
        entry, packed = Entry(name, facts), {}
        for part in entry.outlines:
            full_name = f"{name}.{part}"
            tensor = others.pop(full_name, None)
            if tensor is None and full_name in tensors:
                raise G2Error(f"two matrices in its header have the tensor {brief(full_name)}")
            if tensor is not None:
                # NumPy has no bfloat16, and no part has that type.
                packed[part] = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
        matrices[name] = entry.unpack(packed)
    return matrices, others


def parse_header(text: str) -> dict[str, Any]:
    """The header, from JSON; `unpack` checks the entries of its matrices."""
    try:
        header = parse_json(text, _without_repetition, allow_nan=False)
    except ValueError as error:
        raise G2Error(f"its header is not JSON that can be used: {brief(str(error))}") from None
    if not isinstance(header, dict):
        raise G2Error(f"its header must be a table, got {brief(header)}")
    if not is_whole(version := header.get("version"), 1, 2**31 - 1):
        raise G2Error("its header has no version")
    if version > VERSION:
        raise NewerVersionError(
            f"it is in version {version} of the format, and this g2lstm reads up to {VERSION}; install a newer g2lstm"
        )
    if unknown := sorted(header.keys() - {"version", *_KEYS}):
        raise G2Error(f"its header has an unknown key, {brief(unknown[0])}")
    for key, (kind, what) in _KEYS.items():
        if not isinstance(value := header.get(key), kind):
            raise G2Error(f"its header must have {what} as its {key}, got {brief(value)}")
    if str(_spec_of(header["spec"])) != header["spec"]:
        raise G2Error(f"its header must name a spec, got {brief(header['spec'])}")
    return header


def _spec_of(text: str) -> Spec:
    return Spec.parse(text) if text else Spec()


def _bits_per_weight(matrices: Mapping[str, Encoding]) -> float:
    size = sum(matrix.stored_bytes for matrix in matrices.values())
    return bits_per_weight(size, sum(math.prod(matrix.shape) for matrix in matrices.values()))


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
