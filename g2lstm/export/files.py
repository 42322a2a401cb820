"""What all exports share: a plain copy of the model, and files that get their names together or not at all."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from g2lstm.compression.model import copied
from g2lstm.errors import G2Error


def plain(model: nn.Module) -> nn.Module:
    """The model in float32 on the CPU, or a copy of it."""
    is_plain = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())
    return model if is_plain else copied(model, {}).to("cpu", torch.float32)


def refuse_existing(folder: Path, names: Sequence[str]) -> None:
    """Raises if one of these files exists."""
    taken = [name for name in names if (folder / name).exists()]
    if taken:
        raise G2Error(
            f"{folder / taken[0]} exists already; choose another name, or replace it: --force, or force=True in Python"
        )


@contextmanager
def folder_for(path: Path) -> Iterator[Path]:
    """A temporary folder beside the final files; it is removed at the end, and after an error nothing remains."""
    parent = path.parent
    is_new = not parent.exists()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=parent) as folder:
            yield Path(folder)
    except OSError as error:
        raise G2Error(f"can't write {path}: {error.strerror or error}; choose another place with --out") from None
    finally:
        if is_new and parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()


def write(path: Path, content: bytes) -> None:
    """Writes a new file, to the disk."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
