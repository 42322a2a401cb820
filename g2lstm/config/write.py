"""Writes a recipe out in full, and names it by a hash."""

import hashlib
import json

import tomli_w
from pydantic import BaseModel


def recipe_to_toml(recipe: BaseModel) -> str:
    """The recipe with every default filled in, as TOML; reading it gives an equal recipe."""
    return tomli_w.dumps(recipe.model_dump(by_alias=True, exclude_none=True))


def recipe_hash(recipe: BaseModel) -> str:
    """Sixteen hexadecimal digits that are equal for equal recipes, however they were written."""
    canonical = json.dumps(recipe.model_dump(by_alias=True, exclude_none=True), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
