"""Checkpoints without pickle: tensors in safetensors, all else in JSON, which holds the tensors' checksum.

`step-000120.safetensors` is written first, `step-000120.json` last: a checkpoint is whole if and only if its JSON is
there and the checksum in it is that of the tensors.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from g2lstm.data.cache import write_atomically
from g2lstm.errors import G2Error

VERSION = 1
KEPT = 2  # the newest, and the one before in case that the newest is broken on disk


class WrongVersionError(G2Error):
    """A checkpoint that is not broken, but written by another g2lstm."""


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any]) -> Path:
    """Writes a state of nested dicts and lists of tensors, numbers, strings, booleans and None; removes old ones."""
    tensors: dict[str, Tensor] = {}
    outline = _take_tensors(state, "", tensors)
    content = save(tensors)
    name = f"step-{step:08d}"
    header = {"version": VERSION, "sha256": hashlib.sha256(content).hexdigest(), "state": outline}
    with write_atomically(folder / f"{name}.safetensors") as file:
        file.write(content)
    path = folder / f"{name}.json"
    with write_atomically(path) as file:
        file.write(json.dumps(header).encode())
    earlier = sorted(old for old in folder.glob("step-*.json") if old.stem < name)
    for old in earlier[: len(earlier) - (KEPT - 1)]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)
    return path


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads one checkpoint by its JSON; a broken one is an error."""
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        version, checksum, outline = header["version"], header["sha256"], header["state"]
        content = path.with_suffix(".safetensors").read_bytes()
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise G2Error(f"the checkpoint {path} cannot be read: {error}") from None
    if version != VERSION:
        raise WrongVersionError(f"the checkpoint {path} is of version {version}, this g2lstm reads version {VERSION}")
    if hashlib.sha256(content).hexdigest() != checksum:
        raise G2Error(f"the checkpoint {path} is broken: its tensors do not have the checksum they were saved with")
    state: dict[str, Any] = _put_tensors(outline, load(content))
    return state


def latest_checkpoint(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest whole checkpoint, or None if there is none at all; and what was wrong with those newer than it.

    Raises:
        G2Error: there are checkpoints, but none can be read; or the newest is of another version.
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
        raise G2Error(f"{problems[0]}; no other is whole, so that training cannot go on; start anew with --out")
    return None, problems


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
