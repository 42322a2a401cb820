"""Checkpoints without pickle: tensors in safetensors, all else in JSON, which holds the checksums of both.

`step-000120.safetensors` is written first, `step-000120.json` last: a checkpoint is whole if and only if its JSON is
there and the two checksums in it are right.
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

VERSION = 2  # 1 knew one process only, and had no checksum of the JSON
_LONGEST = 2**26  # bytes of the JSON
KEPT = 2  # the newest, and the one before in case that the newest is broken on disk


class WrongVersionError(G2Error):
    """A checkpoint that is not broken, but written by another g2lstm."""


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any]) -> Path:
    """Writes a state of nested dicts and lists of tensors, numbers, strings, booleans and None; then removes old ones.

    Later ones go too: training would have gone on from them if they were whole.
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
    for unfinished in folder.glob(".step-*.tmp"):  # of a process that was killed
        unfinished.unlink()
    return path


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Writes a state as JSON to `path`, and its tensors beside it."""
    outline, content = _parted(state)
    header = {"version": VERSION, "sha256": hashlib.sha256(content).hexdigest(), "state": outline}
    text = json.dumps({**header, "header_sha256": _digest(header)}, allow_nan=False)
    with write_atomically(path.with_suffix(".safetensors")) as file:
        file.write(content)
    with write_atomically(path) as file:
        file.write(text.encode())


def load_checkpoint(path: Path, limit: int | None = None) -> dict[str, Any]:
    """Reads one checkpoint by its JSON; a broken one is an error.

    Args:
        path: of the JSON.
        limit: bytes that its tensors may have; those of the machine's memory if not given.
    """
    memory = psutil.virtual_memory().total
    try:
        header = read_json(path, _LONGEST)
        version, checksum, outline = header["version"], header["sha256"], header["state"]
        content = read_bounded(path.with_suffix(".safetensors"), min(limit or memory, memory))
        digest = _digest({key: value for key, value in header.items() if key != "header_sha256"})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise G2Error(f"the checkpoint {path} cannot be read: {error}") from None
    is_first_version = version == 1 and "header_sha256" not in header
    if not is_first_version and header.get("header_sha256") != digest:
        raise G2Error(f"the checkpoint {path} is broken: its JSON does not have the checksum it was saved with")
    if version not in (1, VERSION):
        raise WrongVersionError(f"the checkpoint {path} is of version {version}, this g2lstm reads up to {VERSION}")
    if hashlib.sha256(content).hexdigest() != checksum:
        raise G2Error(f"the checkpoint {path} is broken: its tensors do not have the checksum they were saved with")
    try:
        state: dict[str, Any] = _put_tensors(outline, load(content))
        return _of_this_version(state) if is_first_version else state
    except (SafetensorError, KeyError, TypeError, AttributeError) as error:  # a stranger can make checksums too
        raise G2Error(f"the checkpoint {path} was not made by g2lstm: {error!r}") from None


def latest_checkpoint(folder: Path, limit: int | None = None) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest whole checkpoint, or None if there is none at all; and what was wrong with those newer than it.

    Args:
        folder: with all of them.
        limit: as for `load_checkpoint`.

    Raises:
        G2Error: there are checkpoints, but none can be read; or the newest is of another version.
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
        raise G2Error(f"{problems[0]}; no other is whole, so that training cannot go on; start anew with --out")
    return None, problems


def pack(state: Mapping[str, Any]) -> bytes:
    """A state as bytes, to be sent to another process."""
    outline, content = _parted(state)
    text = json.dumps(outline).encode()
    return len(text).to_bytes(8, "little") + text + content


def unpack(content: bytes) -> dict[str, Any]:
    """What `pack` took."""
    end = 8 + int.from_bytes(content[:8], "little")
    state: dict[str, Any] = _put_tensors(json.loads(content[8:end]), load(content[end:]))
    return state


def _digest(header: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


def _of_this_version(first: dict[str, Any]) -> dict[str, Any]:
    """A state of the first version, whose only process was not in a list."""
    own = {"task": first.pop("task"), "random": first.pop("random"), "random_device": first.pop("random_cuda")[:1]}
    return {**first, "processes": [own]}


def _parted(state: Mapping[str, Any]) -> tuple[Any, bytes]:
    """What goes into JSON, and the tensors' file."""
    tensors: dict[str, Tensor] = {}
    outline = _take_tensors(state, "", tensors)
    return outline, save(tensors)


def _take_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value with {"tensor": name} for every tensor, which goes into `tensors`."""
    if isinstance(value, Tensor):
        # A copy, because safetensors refuses tensors that share memory; states may be views of one another.
        tensors[name] = value.detach().cpu().clone().contiguous()
        return {"tensor": name}
    if isinstance(value, Mapping):
        if "tensor" in value or not all(isinstance(key, str) for key in value):
            raise TypeError(f"a checkpoint's keys are strings other than 'tensor', got {list(value)}")
        return {key: _take_tensors(item, f"{name}.{key}" if name else key, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_take_tensors(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__} at {name}")


def _put_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"tensor"}:
            return tensors[value["tensor"]]
        return {key: _put_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_put_tensors(item, tensors) for item in value]
    return value
