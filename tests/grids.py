"""Grids of parameters that are too large to be tried whole every time."""

import itertools

import pytest


def pairwise(indirect=(), **axes):
    """Tries a grid: every two values of different axes meet in a test by default, the other points in a slow one."""
    grid = list(itertools.product(*(range(len(values)) for values in axes.values())))
    pairs = {point: set(itertools.combinations(enumerate(point), 2)) for point in grid}
    missing, chosen = set().union(*pairs.values()), set()
    while missing:
        best = max(grid, key=lambda point: len(pairs[point] & missing))
        chosen.add(best)
        missing -= pairs[best]
    values = [[list(axis)[k] for axis, k in zip(axes.values(), point, strict=True)] for point in grid]
    marks = [() if point in chosen else pytest.mark.slow for point in grid]
    names = ["-".join(map(_name, point)) for point in values]
    points = [pytest.param(*one, id=name, marks=mark) for one, name, mark in zip(values, names, marks, strict=True)]
    return pytest.mark.parametrize(list(axes), points, indirect=list(indirect))


def _name(value):
    return "-".join(map(str, value.values())) or "default" if isinstance(value, dict) else str(value)
