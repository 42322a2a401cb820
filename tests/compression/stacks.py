"""Random layers with encoded weights, and how far a session that rounds its vectors may be from exact arithmetic."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from g2lstm.compression.encodings import Dense, Encoding, Entropy, Grid, Integers, Levels, LowRank
from g2lstm.compression.session import Layer, PlainSession, Session, Term

FORMS = [
    "dense",
    "five levels",
    "eight levels",
    "grid",
    "wide grid",
    "int8",
    "int6",
    "int4",
    "int4 by 64",
    "row levels",
    "three levels",
    "int2",
    "int3",
    "int2 by 32",
    "int3 by 64",
    "three levels by 32",
    "entropy",
]
FACTORS = [("dense", "dense"), ("int8", "int4"), ("int4", "int8"), ("dense", "int4"), ("int2", "int3")]
LEVELS = {"row levels": 5, "three levels": 3, "int2": 4, "int3": 8}
LARGEST = 127 * 256 + 127  # what the kernel rounds the largest element of a vector to


def matrix(form: str, rows: int, columns: int, rng: np.random.Generator) -> Encoding:
    """Weights of about ±1 / columns, so that pre-activations stay around 1 and errors do not grow from step to step."""
    most = 2 / columns
    if form.startswith("low rank"):
        left, right = form.split()[2:]
        rank = min(rows, columns, 11)
        return LowRank(matrix(left, rows, rank, rng), matrix(right, rank, columns, rng))
    if form == "entropy":
        codes = np.clip(np.rint(rng.normal(size=(rows, columns)) * rng.choice([0.3, 2.0, 9.0], (rows, 1))), -99, 99)
        return Entropy(codes.astype(np.int8), np.full(4, most / 99 / np.sqrt(rows + 50), np.float32), 50)
    if form == "dense":
        return Dense(rng.uniform(-most, most, (rows, columns)).astype(np.float32))
    ranges = {
        "five levels": (-2, 2),
        "eight levels": (-4, 3),
        "wide grid": (-300, 300),
        "int8": (-128, 127),
        "int6": (-32, 31),
    }
    least, greatest = ranges.get(form, (-8, 7))
    drawn = rng.integers(least, greatest, (rows, columns), endpoint=True)
    codes = drawn.astype(np.int16 if form == "wide grid" else np.int8)
    if (kind := form.partition(" by ")[0]) in LEVELS:
        levels, group = LEVELS[kind], int(form.partition(" by ")[2] or 0) or None
        codes = rng.integers(0, levels, (rows, columns)) * (1 if levels % 2 else 2)
        highest = levels // 2 if levels % 2 else levels - 1
        scales = rng.uniform(0.2, 1, (rows, -(-columns // group)) if group else rows) * most / highest
        return Levels((codes - highest).astype(np.int8), scales.astype(np.float16), levels, group)
    if "grid" in form or "levels" in form:
        return Grid(codes, most / greatest)
    if form in ("int8", "int6"):
        bits = int(form[-1])
        return Integers(codes, (rng.uniform(0.2, 1, rows) * most / 2 ** (bits - 1)).astype(np.float32), bits)
    group = 64 if form.endswith("64") else 32
    scales = rng.uniform(0.2, 1, (rows, -(-columns // group))) * most / 8
    return Integers(codes, scales.astype(np.float16), 4, group)


def layer(inputs: int, hidden: int, form: str, rng: np.random.Generator) -> Layer:
    """All eight matrices in one form; the gates not in their order."""
    terms = [Term(matrix(form, hidden, inputs, rng), "x", gate) for gate in range(4)]
    terms += [Term(matrix(form, hidden, hidden, rng), "h", gate, 1 / 0.9 if gate < 2 else 1.0) for gate in (0, 1, 3, 2)]
    return Layer(inputs, tuple(terms), rng.normal(size=4 * hidden).astype(np.float32))


def mixed(inputs: int, hidden: int, rng: np.random.Generator) -> Layer:
    """Gates and cell, W_x and W_h in different forms."""
    terms = [Term(matrix("int4", hidden, inputs, rng), "x", gate) for gate in (2, 3)]
    terms += [Term(matrix("five levels", hidden, inputs, rng), "x", gate, 1 / 0.9) for gate in (0, 1)]
    forms = ("low rank int8 int8", "low rank dense int4", "int8", "dense")
    terms += [Term(matrix(form, hidden, hidden, rng), "h", gate) for gate, form in enumerate(forms)]
    return Layer(inputs, tuple(terms), rng.normal(size=4 * hidden).astype(np.float32))


def softmax(rows: int, columns: int, form: str, rng: np.random.Generator) -> Layer:
    return Layer.softmax(matrix(form, rows, columns, rng), rng.normal(size=rows).astype(np.float32))


def random_state(layers: list[Layer], rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(rng.uniform(-1, 1, one.hidden), rng.normal(size=one.hidden)) for one in layers]


def dense_of(one: Encoding) -> np.ndarray:
    return one.decode().astype(np.float64)


def product_error(one: Encoding, v: np.ndarray, error: np.ndarray) -> np.ndarray:
    """How far `one` times v may be off, if v is off by `error` already: see the bound of one rounding at the end."""
    if isinstance(one, LowRank):
        middle = product_error(one.right, v, error)
        return product_error(one.left, dense_of(one.right) @ v, middle)
    weights = np.abs(dense_of(one))
    # Rounding to multiples of a step makes an error of half of it; float32 adds a hundredth to that.
    step = 0 if isinstance(one, Dense) else np.max(np.abs(v) + error) / LARGEST
    return weights @ (error + 0.51 * step) + 1e-6 * (weights @ np.abs(v) + 1e-3)


class Near(NamedTuple):
    """A value in exact arithmetic, and how far from it a session's may be."""

    value: np.ndarray
    bound: np.ndarray

    def check(self, found: np.ndarray) -> None:
        off = np.abs(found - self.value)
        assert (off <= self.bound).all(), f"off by {np.max(off / self.bound):.3g} times the bound"


class Step(NamedTuple):
    out: Near
    states: list[tuple[Near, Near]]


def exact_steps(
    layers: list[Layer], x: np.ndarray, states: list, hard: str = "", softmax: Layer | None = None
) -> Iterator[Step]:
    """What float64 gives for each step, with bounds for float32 and vectors of 16 bits.

    If the pre-activations of a unit are off by at most (i, f, g, o), then the slopes of sigmoid (1/4) and of tanh (1)
    give c = σ(f) c' + σ(i) tanh(g) an error of at most that of c' + |c'| f/4 + i/4 + g, and h = σ(o) tanh(c) one of
    o/4 + that of c. The logarithm of a sum of powers is off by no more than the worst of the powers.
    """
    exact = PlainSession(layers, hard, softmax, np.float64)
    exact.set_state(states)
    errors = [(np.zeros(one.hidden), np.zeros(one.hidden)) for one in layers]
    for value in x.astype(np.float64):
        before, out, after = exact.get_state(), exact.step(value), exact.get_state()
        error = np.zeros(len(value))
        for k, (one, (h, c)) in enumerate(zip(layers, before, strict=True)):
            off = np.full(4 * one.hidden, 2e-6)
            for term in one.terms:
                rows = slice(term.gate * one.hidden, (term.gate + 1) * one.hidden)
                source = (value, error) if term.source == "x" else (h, errors[k][0])
                off[rows] += abs(term.factor) * product_error(term.matrix, *source)
            i, f, g, o = off.reshape(4, -1)
            c_error = errors[k][1] + (np.abs(c) * f + i) / 4 + g
            errors[k] = (c_error + o / 4, c_error)
            below, below_error = (value, error) if one.residual else (0.0, 0.0)
            value = after[k][0] + below
            error = errors[k][0] + below_error + (1e-7 * np.abs(value) if one.residual else 0.0)
        if softmax is not None:
            off = product_error(softmax.terms[0].matrix, value, error) + 1e-6 * (1 + np.abs(softmax.bias) + np.abs(out))
            error = off + off.max()
        near = [tuple(map(Near, state, bounds)) for state, bounds in zip(after, errors, strict=True)]
        yield Step(Near(out, error), near)


def assert_within_bounds(
    session: Session, layers: list[Layer], x: np.ndarray, hard: str = "", softmax: Layer | None = None
) -> None:
    """Runs a session from its present state and checks each step's output, h and c."""
    for value, exact in zip(x, exact_steps(layers, x, session.get_state(), hard, softmax), strict=True):
        exact.out.check(session.step(value.astype(np.float32)))
        for (h, c), (h_near, c_near) in zip(session.get_state(), exact.states, strict=True):
            h_near.check(h)
            c_near.check(c)
