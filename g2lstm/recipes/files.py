"""Recipe files: read within limits, with single keys overridden; written out in full, and named by a hash."""

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel

from g2lstm.errors import G2Error
from g2lstm.files import read_bounded
from g2lstm.recipes.sealed import MAX_BYTES, parse_tables
from g2lstm.recipes.sealed import seal as seal
from g2lstm.recipes.sections import GateSection

_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){0,9}")
# Setting the first drops what was chosen for its old value, or for its default.
_DISCARDS = {
    "data.name": ["data.path"],
    "data.path": ["data.name"],
    "data.tokenizer": ["data.vocabulary"],
    "model.method": ["model.tau", "model.noise_rate", "model.eval_gate", "train.gates"],
    "train.batch_size": ["train.batch_tokens"],
    "train.batch_tokens": ["train.batch_size"],
}
_DEFAULTS = {"data.tokenizer": "bpe", "model.method": GateSection.model_fields["method"].default}


def shipped_recipes() -> dict[str, str]:
    """The names of the recipes that come with the package, each with the first line of its comment."""
    shipped = sorted(_shipped_files().items())
    return {name: file.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for name, file in shipped}


def read_tables(name_or_path: str | Path) -> dict[str, Any]:
    """What a recipe says; only the version and the last line of a run's recipe are checked."""
    source = str(name_or_path)
    return parse_tables(_read(source), source)


def is_own_text(source: str) -> bool:
    """Whether this is a text or a folder with texts, rather than a recipe."""
    path = Path(os.path.expanduser(source))
    if source in _shipped_files() or path.suffix == ".toml" or os.path.isfile(path / "recipe.toml"):
        return False
    if not os.path.isfile(path):
        return os.path.exists(path)  # a folder; or a pipe or a device, which is refused like any text
    try:
        return "task" not in tomllib.loads(read_bounded(path, MAX_BYTES).decode())  # a recipe by another name
    except (G2Error, ValueError, RecursionError):
        return True


def recipe_to_toml(recipe: BaseModel) -> str:
    """The recipe with every default filled in, as TOML; reading it gives an equal recipe."""
    return tomli_w.dumps(recipe.model_dump(by_alias=True, exclude_none=True))


def recipe_hash(recipe: BaseModel) -> str:
    """Sixteen hexadecimal digits that are equal for equal recipes, however they were written."""
    return tables_hash(recipe.model_dump(by_alias=True, exclude_none=True))


def tables_hash(tables: Mapping[str, Any]) -> str:
    """The hash of what a file says, whatever the defaults of other keys are."""
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:16]


def differences(before: BaseModel, now: BaseModel) -> list[str]:
    """What differs between two recipes, one phrase per key: "train.epochs was 3, is now 4"."""
    old, new = (dict(_flat(one.model_dump(by_alias=True))) for one in (before, now))
    changed = [key for key in old | new if old.get(key) != new.get(key)]
    return [f"{key} was {_written(old.get(key))}, is now {_written(new.get(key))}" for key in changed]


def _written(value: Any) -> str:
    return "not set" if value is None else json.dumps(value)


def _flat(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tables.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def apply_overrides(tables: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    """Sets keys in `tables`, in place, from texts such as `model.tau=0.5`, and returns what is wrong with them.

    If a key made sense only with the old value of another, it is dropped unless it is set too: `data.path` and
    `data.name`, and `train.batch_size` and `train.batch_tokens`, exclude each other; `data.vocabulary` belongs to
    `data.tokenizer`, `model.tau`, `model.noise_rate`, `model.eval_gate` and `train.gates` to `model.method`, and an
    optimiser's settings to `train.optimizer.name`.
    """
    if isinstance(overrides, str | Mapping):
        raise G2Error(f'overrides must be a list such as ["train.epochs=1"], got a {type(overrides).__name__}')
    problems = []
    settings: dict[str, Any] = {}
    for override in overrides:
        key, equals, value = (part.strip() for part in override.partition("="))
        if equals and _KEY.fullmatch(key):
            settings[key] = parse_value(value) if value else None
        else:
            problems.append(f"the override {override!r} does not have the form a.b=value, such as train.epochs=3")
    for key, now in settings.items():
        before, default = _get(tables, key), _DEFAULTS.get(key)
        if (default if now is None else now) != (default if before is None else before):
            for former in _discarded(tables, key):
                if former not in settings:
                    _set(tables, former, None)
    for key, now in settings.items():
        if not _set(tables, key, now):
            problems.append(f"{key} cannot be set, because {key.rpartition('.')[0]} is a value, not a section")
    return problems


def parse_value(text: str) -> Any:
    """A number, truth value, list or quoted text as TOML writes it; anything else is plain text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # tomllib raises more than TOMLDecodeError
        return text
    value = parsed["value"]
    return text if len(parsed) > 1 or isinstance(value, date | time) else value


def _discarded(tables: dict[str, Any], key: str) -> list[str]:
    if key == "train.optimizer.name" and isinstance(optimizer := _get(tables, "train.optimizer"), dict):
        return [f"train.optimizer.{name}" for name in optimizer if name != "name"]
    return _DISCARDS.get(key, [])


def _get(tables: dict[str, Any], key: str) -> Any:
    value: Any = tables
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _set(tables: dict[str, Any], key: str, value: Any) -> bool:
    """Sets a key, or removes it if the value is None; False if what should be its section is a value."""
    *sections, last = key.split(".")
    table: Any = tables
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            return False
    if value is None:
        table.pop(last, None)
    else:
        table[last] = value
    return True


def _shipped_files() -> dict[str, Traversable]:
    folder = files("g2lstm") / "recipes"
    return {file.name.removesuffix(".toml"): file for file in folder.iterdir() if file.name.endswith(".toml")}


def _read(source: str) -> bytes:
    shipped = _shipped_files()
    if source in shipped:
        return shipped[source].read_bytes()
    path = Path(os.path.expanduser(source))
    if os.path.isfile(path):  # raises for no name, unlike Path.is_file
        return read_bounded(path, MAX_BYTES)
    if os.path.isfile(path / "recipe.toml"):
        raise G2Error(f"{source} is a folder; to use the recipe in it, give {Path(source) / 'recipe.toml'}")
    if path.suffix == ".txt" or ("/" in source and path.suffix != ".toml"):
        raise G2Error(
            f"there is no file or folder {source}; give a text, a folder with train.txt or pairs such as train.de and "
            "train.en, or a recipe, which `g2lstm train list` shows"
        )
    close = get_close_matches(source, shipped, n=1)
    guess = f"; did you mean {close[0]!r}?" if close else "."
    raise G2Error(
        f"there is no recipe {source!r}, neither a file nor a shipped one{guess} Shipped recipes: "
        f"{', '.join(sorted(shipped))}"
    )
