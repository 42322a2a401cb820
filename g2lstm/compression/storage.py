"""Compressed weights in a safetensors file: packed tensors, and a readable header that says what they are.

The header is JSON: a version, the spec, and an entry for each matrix. Anyone may have written a file, so everything in
it is checked before anything is made from it: reading allocates at most some fifty bytes per byte of the file. A
checksum over everything finds accidental damage. Only writing needs torch.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import safetensors

from g2lstm.compression.encodings import Encoding, Entry
from g2lstm.compression.encodings.base import Array, bits_per_weight, brief, is_whole
from g2lstm.compression.spec import Spec
from g2lstm.errors import G2Error
from g2lstm.files import in_order, parse_json

if TYPE_CHECKING:
    from torch import Tensor

HEADER = "compression"  # where the header stands in the metadata of a file
STRUCTURE = "structure"  # where a file says how its layers follow each other, or why they don't
VERSION = 1  # newer ones are refused
_KEYS = {
    "spec": (str, "text"),
    "bits_per_weight": (float, "a decimal number"),
    "matrices": (dict, "an object"),
    "sha256": (str, "text"),
}
BFLOAT16 = np.dtype([("bfloat16", "<u2")])  # NumPy has no such type, so arrays hold its bits
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip  # as safetensors calls them, and as NumPy and torch do


class NewerVersionError(G2Error):
    """The file is fine, but a newer g2lstm wrote it."""


class Stored(NamedTuple):
    """The content of a file.

    Attributes:
        matrices: the encoded ones, by name.
        arrays: parameters that are not compressed, such as biases; those of bfloat16 as `BFLOAT16`.
        spec: that the matrices were encoded with; an empty one if it is not known.
        metadata: what else the file says.
    """

    matrices: dict[str, Encoding]
    arrays: dict[str, Array]
    spec: Spec
    metadata: dict[str, str]

    @property
    def others(self) -> "dict[str, Tensor]":
        """The arrays as tensors, which share their memory."""
        import torch

        def tensor(array: Array) -> "Tensor":
            if array.dtype == BFLOAT16:
                return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
            return torch.from_numpy(array)

        return {name: tensor(array) for name, array in self.arrays.items()}


def array_of(tensor: "Tensor") -> Array:
    """A tensor of any type as an array, which shares its memory if it can."""
    import torch

    tensor = tensor.detach().cpu().contiguous()
    return tensor.view(torch.int16).numpy().view(BFLOAT16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def save(
    matrices: Mapping[str, Encoding], others: "Mapping[str, Tensor]", spec: Spec, metadata: Mapping[str, str]
) -> bytes:
    """The content of a file, for `load`.

    Args:
        matrices: by name.
        others: parameters that are not compressed, by name.
        spec: the spec that the matrices were encoded with; an empty one if it is not known.
        metadata: further entries, stored as they are.
    """
    import torch
    from safetensors.torch import save as save_tensors

    tensors: dict[str, Tensor] = {}
    parts = [(f"{name}.{part}", one) for name, matrix in matrices.items() for part, one in matrix.packed.items()]
    plain = [(name, tensor.detach().cpu().contiguous()) for name, tensor in others.items()]
    for name, tensor in [*((name, torch.from_numpy(array)) for name, array in parts), *plain]:
        if name in tensors:
            raise G2Error(f"two tensors in the file would have the name {name!r}; rename the parameter")
        if str(tensor.dtype).removeprefix("torch.") not in _DTYPES.values() or not tensor.numel():
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
    header["sha256"] = _checksum({name: array_of(tensor) for name, tensor in tensors.items()}, header, metadata)
    return in_order(save_tensors(tensors, {**metadata, HEADER: json.dumps(header)}))


def load(path: Path, opened: Any = None) -> Stored:
    """Reads a file; raises if it is damaged, forged or too new.

    Args:
        path: the file.
        opened: the same file if it is open already, as `safetensors.safe_open` gives it for NumPy.
    """
    try:
        if opened is not None:
            return _load(path, opened)
        with safetensors.safe_open(path, framework="np") as file:
            return _load(path, file)
    except NewerVersionError as error:
        raise G2Error(f"{path}: {error}") from None
    except (safetensors.SafetensorError, OSError, G2Error) as error:
        raise G2Error(f"can't read {path}: {error}; restore it, or compress the original again") from None


def _load(path: Path, file: Any) -> Stored:
    metadata: dict[str, str] = file.metadata() or {}
    arrays = read_arrays(path, file)
    header = parse_header(metadata.pop(HEADER, ""))
    if header["sha256"] != _checksum(arrays, header, metadata):
        raise G2Error("it is damaged: its checksum does not match its content")
    matrices, others = unpack(arrays, header["matrices"])
    if broken := sorted(name for name, array in others.items() if not np.isfinite(as_floats(array)).all()):
        raise G2Error(f"the tensor {brief(broken[0])} holds NaN or infinity")
    if (bits := _bits_per_weight(matrices)) != header["bits_per_weight"]:
        raise G2Error(f"the header's bits_per_weight must be {bits}, got {header['bits_per_weight']}")
    return Stored(matrices, others, _spec_of(header["spec"]), metadata)


def read_arrays(path: Path, file: Any) -> dict[str, Array]:
    """All tensors of an open file; raises for types that weights don't have, before anything is read."""
    dtypes: dict[str, str] = {}
    for name in file.keys():  # noqa: SIM118  # it is no mapping
        dtypes[name], shape = (kept := file.get_slice(name)).get_dtype(), kept.get_shape()
        if dtypes[name] not in _DTYPES or 0 in shape:
            raise G2Error(f"{brief(name)} is {dtypes[name]} {brief(shape)}, which cannot be weights")
    arrays = {name: file.get_tensor(name) for name, dtype in dtypes.items() if dtype != "BF16"}
    if "BF16" in dtypes.values():  # which `safe_open` can't give to NumPy
        raw = dict(safetensors.deserialize(path.read_bytes()))
        halves = {name: raw[name] for name, dtype in dtypes.items() if dtype == "BF16"}
        arrays |= {name: np.frombuffer(one["data"], BFLOAT16).reshape(one["shape"]) for name, one in halves.items()}
    return arrays


def as_floats(array: Array) -> Array:
    """An array of bfloat16 in float32; any other as it is."""
    if array.dtype != BFLOAT16:
        return array
    return (array["bfloat16"].astype(np.uint32) << 16).view(np.float32)


def unpack(arrays: Mapping[str, Array], entries: Mapping[str, Any]) -> tuple[dict[str, Encoding], dict[str, Array]]:
    """The matrices that the entries of a header describe, and the arrays that belong to none of them."""
    matrices, others = {}, dict(arrays)
    for name, facts in entries.items():
        entry, packed = Entry(name, facts), {}
        for part in entry.outlines:
            full_name = f"{name}.{part}"
            array = others.pop(full_name, None)
            if array is None and full_name in arrays:
                raise G2Error(f"two matrices in its header have the tensor {brief(full_name)}")
            if array is not None:
                packed[part] = array
        matrices[name] = entry.unpack(packed)
    return matrices, others


def parse_header(text: str) -> dict[str, Any]:
    """The header, from JSON; `unpack` checks the entries of its matrices."""
    try:
        header = parse_json(text, _without_repetition, allow_nan=False)
    except ValueError as error:
        raise G2Error(f"its header is not usable JSON: {brief(str(error))}") from None
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


def _checksum(arrays: Mapping[str, Array], header: Mapping[str, Any], metadata: Mapping[str, str]) -> str:
    """The checksum over everything in a file except the checksum itself."""
    covered = {key: value for key, value in header.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps([covered, dict(metadata)], sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        dtype = "bfloat16" if array.dtype == BFLOAT16 else array.dtype.name
        digest.update(json.dumps([name, f"torch.{dtype}", array.shape]).encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
