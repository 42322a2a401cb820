"""Recipes: everything a training needs to know, as checked data."""

from g2lstm.config.lm import LmRecipe
from g2lstm.config.load import Recipe, ShippedRecipe, load_recipe, parse_recipe, shipped_recipes
from g2lstm.config.mt import MtRecipe
from g2lstm.config.write import recipe_hash, recipe_to_toml

__all__ = [
    "LmRecipe",
    "MtRecipe",
    "Recipe",
    "ShippedRecipe",
    "load_recipe",
    "parse_recipe",
    "recipe_hash",
    "recipe_to_toml",
    "shipped_recipes",
]
