"""Writes a recipe out in full, names it by a hash, and says how two recipes differ."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import tomli_w
from pydantic import BaseModel


def recipe_to_toml(recipe: BaseModel) -> str:
    """The recipe with every default filled in, as TOML; reading it gives an equal recipe."""
    return tomli_w.dumps(recipe.model_dump(by_alias=True, exclude_none=True))


def recipe_hash(recipe: BaseModel) -> str:
    """Sixteen hexadecimal digits that are equal for equal recipes, however they were written."""
    return tables_hash(recipe.model_dump(by_alias=True, exclude_none=True))


def tables_hash(tables: Mapping[str, Any]) -> str:
    """The same of what a file says, whatever is the default of what it does not say."""
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:16]


def differences(before: BaseModel, now: BaseModel) -> list[str]:
    """What differs between two recipes, a phrase for each key: "train.epochs was 3, is now 4"."""
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
