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
from g2lstm.files import read_bounded, read_json, write_atomically

VERSION = 2
_MAX_JSON_BYTES = 2**26
KEPT = 2  # the newest, and the one before it in case the newest gets damaged on disk


class WrongVersionError(G2Error):
    """The checkpoint is intact, but another version of g2lstm wrote it."""


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any]) -> Path:
    """Writes a state of nested dicts and lists of tensors, numbers, strings, booleans and None; removes old ones.

    Checkpoints of later steps go too: training would have resumed from them if they were whole.
    """
    path = folder / f"step-{step:08d}.json"
    write_state(path, state)
    others = sorted(other for other in folder.glob("step-*.json") if other != path)
    earlier = [other for other in others if other < path]
    for old in set(others) - set(earlier[len(earlier) - (KEPT - 1) :]):
        old.unlink()
    for tensors in folder.glob("step-*.safetensors"):
        if not tensors.with_suffix(".json").exists():
            tensors.unlink()
    for unfinished in folder.glob(".step-*.tmp"):  # left by a process that was killed
        unfinished.unlink()
    return path


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Writes a state as JSON to `path`, with its tensors beside it."""
    outline, content = _split(state)
    header = {"version": VERSION, "sha256": hashlib.sha256(content).hexdigest(), "state": outline}
    text = json.dumps({**header, "header_sha256": _digest(header)}, allow_nan=False)
    with write_atomically(path.with_suffix(".safetensors")) as file:
        file.write(content)
    with write_atomically(path) as file:
        file.write(text.encode())


def load_checkpoint(path: Path, limit: int | None = None) -> dict[str, Any]:
    """Reads the checkpoint with this JSON, or raises if it is damaged.

    Its tensors may take `limit` bytes; by default, and at most, as many as the machine has memory.
    """
    memory = psutil.virtual_memory().total
    try:
        header = read_json(path, _MAX_JSON_BYTES)
        version, checksum, outline = header["version"], header["sha256"], header["state"]
        content = read_bounded(path.with_suffix(".safetensors"), min(limit or memory, memory))
        digest = _digest({key: value for key, value in header.items() if key != "header_sha256"})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise G2Error(f"cannot read the checkpoint {path}: {error}") from None
    if header.get("header_sha256") != digest:
        raise G2Error(f"the checkpoint {path} is damaged: the checksum of its JSON is wrong")
    if version != VERSION:
        raise WrongVersionError(
            f"the checkpoint {path} has version {version}, but this g2lstm reads version {VERSION}; continue with the "
            "g2lstm that wrote it"
        )
    if hashlib.sha256(content).hexdigest() != checksum:
        raise G2Error(f"the checkpoint {path} is damaged: the checksum of its tensors is wrong")
    try:
        state: dict[str, Any] = _put_tensors(outline, load(content))
    except (SafetensorError, KeyError, TypeError, AttributeError) as error:  # anyone can make correct checksums
        raise G2Error(f"g2lstm did not write the checkpoint {path}: {error!r}") from None
    return state


def latest_checkpoint(folder: Path, limit: int | None = None) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest whole checkpoint, or None if there are no checkpoints; and what is wrong with any newer ones.

    It is an error if there are checkpoints but none can be read, or if the newest has another version.
    """
    problems: list[str] = []
    for path in sorted(folder.glob("step-*.json"), reverse=True):
        try:
            return load_checkpoint(path, limit), problems
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
    state: dict[str, Any] = _put_tensors(json.loads(content[8:end]), load(content[end:]))
    return state


def _digest(header: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


def _split(state: Mapping[str, Any]) -> tuple[Any, bytes]:
    """The part for JSON, and the safetensors file."""
    tensors: dict[str, Tensor] = {}
    outline = _take_tensors(state, "", tensors)
    return outline, save(tensors)


def _take_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Moves every tensor into `tensors`, and leaves {"tensor": name} in its place."""
    if isinstance(value, Tensor):
        # A copy, because safetensors refuses tensors that share memory, and states may be views of one another.
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {"tensor": name}
    if isinstance(value, Mapping):
        if "tensor" in value or not all(isinstance(key, str) for key in value):
            raise TypeError(f"the keys of a checkpoint must be strings other than 'tensor', got {list(value)}")
        return {key: _take_tensors(item, f"{name}.{key}" if name else key, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_take_tensors(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint cannot hold the {type(value).__name__} at {name}")


def _put_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"tensor"}:
            return tensors[value["tensor"]]
        return {key: _put_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_put_tensors(item, tensors) for item in value]
    return value
