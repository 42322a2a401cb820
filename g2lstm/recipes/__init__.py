"""Recipes: everything a training run needs to know, as checked data."""
