"""Writes a recipe out in full, and names it by a hash."""

import hashlib
import json
from collections.abc import Mapping
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
