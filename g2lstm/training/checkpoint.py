"""Checkpoints without pickle: tensors in safetensors, everything else in JSON, which holds the checksums of both.

`step-000120.safetensors` is written first, `step-000120.json` last. A checkpoint is whole if and only if its JSON
exists and both checksums in it are right.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.files import parse_json, read_bounded, write_atomically, write_whole

VERSION = 2
_MAX_JSON_BYTES = 2**26
KEPT = 2  # the newest, and the one before it in case the newest gets damaged on disk


class WrongVersionError(G2Error):
    """The checkpoint is intact, but another version of g2lstm wrote it."""


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any]) -> Path:
    """Writes a state of nested dicts and lists of tensors, numbers, strings, booleans and None; removes old ones.

    It also removes checkpoints of later steps, from which training would have resumed if they were whole, and whatever
    a killed process left half written.
    """
    path = folder / f"step-{step:08d}.json"
    write_state(path, state)
    kept = sorted(other for other in folder.glob("step-*.json") if other <= path)[-KEPT:]
    for pattern in ("step-*.json", "step-*.safetensors", ".step-*.tmp"):
        for file in folder.glob(pattern):
            if file.with_suffix(".json") not in kept:
                file.unlink()
    return path


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Writes a state as JSON to `path`, with its tensors beside it."""
    outline, content = _split(state)
    header = {"version": VERSION, "sha256": hashlib.sha256(content).hexdigest(), "state": outline}
    text = json.dumps({**header, "header_sha256": _digest(header)}, allow_nan=False)
    with write_atomically(path.with_suffix(".safetensors")) as file:
        file.write(content)
        file.flush()
        path.unlink(missing_ok=True)  # of the same step: it would be damaged until the new one is there
    write_whole(path, text.encode())


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads the checkpoint with this JSON, or raises if it is damaged."""
    try:
        header = parse_json(read_bounded(path, _MAX_JSON_BYTES))
        digest = header.pop("header_sha256")
        version, checksum, outline = header["version"], header["sha256"], header["state"]
        content = read_bounded(path.with_suffix(".safetensors"), psutil.virtual_memory().total)
        if _digest(header) != digest:
            raise G2Error("the checksum of its JSON is wrong")
        if version == VERSION and hashlib.sha256(content).hexdigest() != checksum:
            raise G2Error("the checksum of its tensors is wrong")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise G2Error(f"the checkpoint {path} is damaged: {error}") from None
    if version != VERSION:
        raise WrongVersionError(
            f"the checkpoint {path} has version {version}, but this g2lstm reads version {VERSION}; continue with the "
            "g2lstm that wrote it"
        )
    try:
        return _join(json.dumps(outline), content)
    except (SafetensorError, LookupError, TypeError) as error:  # anyone can make correct checksums
        raise G2Error(f"g2lstm did not write the checkpoint {path}: {error!r}") from None


def latest_checkpoint(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest whole checkpoint, or None if there are no checkpoints; and what is wrong with any newer ones.

    It is an error if there are checkpoints but none can be read, or if the newest has another version.
    """
    problems: list[str] = []
    for path in sorted(folder.glob("step-*.json"), reverse=True):
        try:
            return load_checkpoint(path), problems
        except WrongVersionError:
            raise
        except G2Error as error:
            problems.append(str(error))
    if problems:
        raise G2Error(f"{problems[0]}; no earlier checkpoint is intact, so start a new run with another --out")
    return None, problems


def pack(state: Mapping[str, Any]) -> bytes:
    """A state as bytes, to send to another process."""
    outline, content = _split(state)
    text = json.dumps(outline).encode()
    return len(text).to_bytes(8, "little") + text + content


def unpack(content: bytes) -> dict[str, Any]:
    """The state that `pack` was given."""
    end = 8 + int.from_bytes(content[:8], "little")
    return _join(content[8:end], content[end:])


def not_finite(state: Mapping[str, Any]) -> str | None:
    """The name of a tensor that holds an infinity or NaN, or None if there is none."""
    tensors: dict[str, Tensor] = {}
    _take_tensors(state, (), tensors)
    floats = ((name, tensor) for name, tensor in tensors.items() if tensor.is_floating_point())
    return next((name for name, tensor in floats if not tensor.isfinite().all()), None)


def _digest(header: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


def _split(state: Mapping[str, Any]) -> tuple[Any, bytes]:
    """The part for JSON, and the safetensors file."""
    tensors: dict[str, Tensor] = {}
    outline = _take_tensors(state, (), tensors)
    # Copies, because safetensors refuses tensors that share memory, and states may be views of one another.
    return outline, save({name: one.detach().cpu().clone().contiguous() for name, one in tensors.items()})


def _take_tensors(value: Any, names: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """Moves every tensor into `tensors`, and leaves {"tensor": name} in its place."""
    if isinstance(value, Tensor):
        name = ".".join(names)
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {key: _take_tensors(item, (*names, key), tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_take_tensors(item, (*names, str(index)), tensors) for index, item in enumerate(value)]
    return value


def _join(outline: str | bytes, content: bytes) -> dict[str, Any]:
    """The state that `_split` was given."""
    tensors = load(content)
    state: dict[str, Any] = json.loads(
        outline, object_hook=lambda item: tensors[item["tensor"]] if item.keys() == {"tensor"} else item
    )
    return state
