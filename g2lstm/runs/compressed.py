"""Compressed runs: run directories whose weights are compressed, used like any other but for training."""

import json
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from g2lstm.compression import storage
from g2lstm.compression.model import encoded_matrices, install_
from g2lstm.compression.spec import PRESETS, Spec
from g2lstm.errors import G2Error
from g2lstm.files import write_atomically
from g2lstm.runs.directory import COMPRESSED, RunDirectory
from g2lstm.runs.directory import TABLE as TABLE


def default_folder(run: Path, spec: str) -> Path:
    """Beside the run, named by it and the spec: runs/ptb-small+small, or runs/ptb-small+gates-round0.2_cell-int8."""
    named = spec.strip()
    if named not in PRESETS:
        named = re.sub("[=,]", "-", str(Spec.parse(spec)).replace("; ", "_").replace(":", ""))
    run = run if run.name not in ("", "..") else run.resolve()
    return run.with_name(f"{run.name}+{named}")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder under a temporary name that takes the name `path` only when all is in it; else there is no trace of it.

    Args:
        path: the final name, which must be free; folders above it are made.
    """
    if path.exists() or path.is_symlink():
        raise G2Error(f"{path} exists already; delete it, or choose another folder with --out")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise G2Error(f"{path} cannot be made: {error.strerror}; choose another folder with --out") from None
    try:
        yield temporary
        try:
            temporary.rename(path)
        except OSError as error:  # somebody else has made it meanwhile
            raise G2Error(f"{path} cannot be made: {error.strerror}; choose another folder with --out") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_compressible(run: RunDirectory) -> None:
    """Raises for a run without weights, or one that is compressed already."""
    if (spec := run.compression) is not None:
        raise G2Error(f"{run.path} is compressed already ({spec}); compress the run that it was made from")


def write_run(folder: Path, run: RunDirectory, model: nn.Module, spec: Spec) -> None:
    """Fills a folder with a compressed run.

    Args:
        folder: empty.
        run: what was compressed: its recipe, its tokenizers and the facts of its training are kept.
        model: the compressed model.
        spec: what it was compressed by.
    """
    metadata = run.training_facts() | {"version": str(COMPRESSED)}
    content = storage.save(encoded_matrices(model), dict(model.named_parameters()), spec, metadata)
    made = RunDirectory(folder)
    files = {path.name: path.read_bytes() for path in (run.recipe_file, *run.tokenizer_files)}
    for name, written in (files | {made.model_file.name: content}).items():
        with write_atomically(folder / name) as file:
            file.write(written)
    write_json(made.result_file, {"scores": []})


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """An object for people and programs."""
    with write_atomically(path) as file:
        file.write(json.dumps(values, indent=2).encode())


def fill_compressed(model: nn.Module, run: RunDirectory) -> None:
    """Gives a model, which may be on the meta device, the compressed weights of a run; they must fit."""
    stored = storage.load(run.model_file)
    try:
        install_(model, stored.matrices)
    except G2Error as error:
        raise G2Error(f"{run.model_file} does not fit the recipe and the tokenizer: {error}; use its own") from None
    expected = {name: (tuple(value.shape), value.dtype) for name, value in model.named_parameters()}
    found = {name: (tuple(value.shape), value.dtype) for name, value in stored.others.items()}
    if expected != found:
        wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))[0]
        raise G2Error(
            f"{run.model_file} does not fit the recipe and the tokenizer: {wrong} is {found.get(wrong, 'not there')}, "
            f"expected {expected.get(wrong, 'nothing')}; use its own"
        )
    model.load_state_dict(stored.others, strict=False, assign=True)
