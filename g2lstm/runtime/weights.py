"""A run as it is read without torch: what its recipe says, and its weights as encodings and arrays, by name."""

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import safetensors
from numpy.typing import NDArray

from g2lstm.compression import storage
from g2lstm.compression.encodings import Dense, Encoding
from g2lstm.compression.encodings.base import Array, brief
from g2lstm.compression.gate_weights import LayerWeights, Weight
from g2lstm.errors import G2Error
from g2lstm.files import read_bounded
from g2lstm.nn.kind import DEFAULT_TAU, EVAL_GATES, LSTM, gate_factors, temperature, usual_eval_gate
from g2lstm.recipes.sealed import MAX_BYTES, parse_tables

Value = TypeVar("Value", str, int, float, bool)


def check_is_run(path: Path) -> None:
    """Raises unless there is a run directory; what it holds may still be broken."""
    if os.path.isfile(path / "recipe.toml"):  # unlike Path.is_file, this never raises
        return
    what = "has no recipe.toml" if os.path.exists(path) else "does not exist"
    remedy = f"make one with `g2lstm train RECIPE --out {path}`"
    if os.path.isdir(path.parent):
        runs = [recipe.parent.name for recipe in path.parent.glob("*/recipe.toml")]
        remedy = next((f"did you mean {path.parent / run}?" for run in get_close_matches(path.name, runs, n=1)), remedy)
    if os.path.isfile(path):
        what, remedy = "is a file", "`g2lstm.load_into(model, path)` opens what `g2lstm.save` wrote"
        if os.path.isfile(path.parent / "recipe.toml"):
            remedy = f"give its folder, {path.parent}"
    if path.suffix == ".txt":
        remedy = f"make one with `g2lstm train {path}`"
    raise G2Error(f"{path} is not a run directory: it {what}; {remedy}")


class GateFacts(NamedTuple):
    """How the gates of all layers of a model are computed.

    Attributes:
        factors: for each gate i, f, g, o what its weights are multiplied by, such as 1 / tau.
        hard: the gates that are 1[a >= 0] instead of a sigmoid.
    """

    factors: list[float]
    hard: str


class RunRecipe:
    """The recipe.toml of a run.

    Attributes:
        task: "lm" or "mt".
    """

    def __init__(self, path: Path) -> None:
        self._source = str(path)
        self._tables = parse_tables(read_bounded(path, MAX_BYTES), self._source)
        self.task = self.get("task", "")

    def get(self, key: str, default: Value) -> Value:
        """The value of a key such as "model.residual", which must be of the type of its default."""
        value: Any = self._tables
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            return default
        kind = type(default)
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise G2Error(f"the recipe {self._source}: {key} must be of type {kind.__name__}, got {brief(value)}")
        return kind(value)

    def gates(self, eval_gate: str | None = None) -> GateFacts:
        """How the model computes its gates in evaluation; `eval_gate` replaces what the recipe says."""
        method = self._one_of("model.method", "gumbel", tuple(DEFAULT_TAU))
        gates = self._one_of("model.gates", "if", tuple(LSTM.sampled))
        own = self._one_of("model.eval_gate", usual_eval_gate(method), EVAL_GATES)
        if eval_gate is not None and eval_gate not in EVAL_GATES:
            raise G2Error(f"eval_gate must be one of {', '.join(map(repr, EVAL_GATES))}, got {eval_gate!r}")
        chosen = own if eval_gate is None else eval_gate
        tau = self.get("model.tau", DEFAULT_TAU[method])
        if not tau > 0:
            raise G2Error(f"the recipe {self._source}: model.tau must be above 0, got {tau}")
        return GateFacts(gate_factors(gates, temperature(method, tau, chosen)), gates if chosen == "hard" else "")

    def _one_of(self, key: str, default: str, allowed: tuple[str, ...]) -> str:
        if (value := self.get(key, default)) not in allowed:
            raise G2Error(f"the recipe {self._source}: {key} must be one of {', '.join(allowed)}, got {brief(value)}")
        return value


PLAIN, COMPRESSED = 1, 2  # versions of the file; a newer one is refused


def check_facts(path: Path, facts: Mapping[str, str]) -> None:
    """Raises unless the metadata of a run's file of weights says that this g2lstm can read it."""
    version = facts.get("version", "")
    if facts.get("format") != "g2lstm" or not version.isdecimal() or len(version) > 9:
        raise G2Error(f"{path} was not written by g2lstm")
    if int(version) > COMPRESSED:
        raise G2Error(f"{path} has version {version}, but this g2lstm reads up to {COMPRESSED}; install a newer one")


class NamedWeights:
    """The weights of a model, compressed or not; whoever builds it takes them by name.

    Args:
        path: the file.
        matrices: the encoded ones.
        arrays: the others.
        remedy: what to do if they don't fit.
    """

    def __init__(
        self,
        path: Path,
        matrices: Mapping[str, Encoding],
        arrays: Mapping[str, Array],
        remedy: str = "use the recipe and the tokenizer it was trained with",
    ) -> None:
        self._path, self._matrices, self._arrays, self._remedy = path, dict(matrices), dict(arrays), remedy
        self._taken: set[str] = set()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Reads a model.safetensors; raises if it is damaged, forged or too new."""
        if not path.is_file():
            raise G2Error(f"{path.parent} has no trained model yet; train it with `g2lstm train ... --resume`")
        try:
            with safetensors.safe_open(path, framework="np") as file:
                facts = file.metadata() or {}
                check_facts(path, facts)
                if storage.HEADER in facts:
                    stored = storage.load(path, file)
                    return cls(path, stored.matrices, stored.arrays)
                arrays = storage.read_arrays(path, file)
        except (safetensors.SafetensorError, OSError) as error:
            raise G2Error(f"{path} can't be read: {error}; it is broken, so restore it from a copy") from None
        if broken := [name for name, array in arrays.items() if not np.isfinite(storage.as_floats(array)).all()]:
            raise G2Error(f"{path} is broken: {broken[0]} is not finite; train the model again")
        return cls(path, {}, arrays)

    def count(self, pattern: str) -> int:
        """How many numbers there are for the {} in names such as "layers.{}.weight_ih_l0"."""
        names = (re.sub(r"\.[a-z]$", "", name) if name in self._matrices else name for name in self._names)
        return len(set(names) & {pattern.format(number) for number in range(len(self._names))})

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def matrix(self, name: str) -> Encoding:
        """A matrix, encoded or dense."""
        self._taken.add(name)
        if name in self._matrices:
            return self._matrices[name]
        return Dense(self._array(name, 2))

    def vector(self, name: str, size: int) -> NDArray[np.float32]:
        """A vector of this size."""
        self._taken.add(name)
        if len(array := self._array(name, 1)) != size:
            raise self._does_not_fit(f"{name} has {len(array)} numbers, expected {size}")
        return array

    def layer(
        self, prefix: str, gates: GateFacts, ending: str = "_l0", *, letters: str = LSTM.letters, has_bias: bool = True
    ) -> LayerWeights:
        """One recurrent layer in one direction.

        Args:
            prefix: the name of the module, and a point.
            gates: how they are computed.
            ending: of the names of its parameters.
            letters: of its gates.
            has_bias: whether it has biases.
        """
        w_x, w_h = (self._gates(f"{prefix}weight_{part}{ending}", letters, gates.factors) for part in ("ih", "hh"))
        H = w_h[0].encoding.shape[1]
        rows = len(letters) * H
        names = [f"{prefix}bias_{part}{ending}" for part in ("ih", "hh")]
        b_x, b_h = (self.vector(name, rows) if has_bias else np.zeros(rows, np.float32) for name in names)
        shapes = {one.encoding.shape for one in w_x} | {one.encoding.shape for one in w_h}
        if shapes != {(H, w_x[0].encoding.shape[1]), (H, H)}:
            raise self._does_not_fit(f"the matrices of {prefix}weight_ih{ending} have the shapes {sorted(shapes)}")
        return LayerWeights(w_x, w_h, b_x, b_h, None, gates.hard)

    def check(self, sizes: Mapping[str, tuple[object, object]]) -> None:
        """Raises if something is not of the size that it must have, or if the file holds weights that nobody took.

        Args:
            sizes: for each name the size that was found, and the one that was expected.
        """
        for name, (found, expected) in sizes.items():
            if found != expected:
                raise self._does_not_fit(f"the size of {name} is {found}, expected {expected}")
        if unknown := sorted(self._names - self._taken):
            raise self._does_not_fit(f"it holds {brief(unknown[0])}, which this model has no place for")

    def _gates(self, name: str, letters: str, factors: list[float]) -> list[Weight]:
        each: list[Encoding]
        if name in self._arrays:
            self._taken.add(name)
            rows = self._array(name, 2)
            if len(rows) % len(letters):
                raise self._does_not_fit(f"{name} has {len(rows)} rows, which are not {len(letters)} gates")
            each = [Dense(gate) for gate in np.split(rows, len(letters))]
        else:
            each = [self.matrix(f"{name}.{letter}") for letter in letters]
        named = zip(letters, each, factors, strict=True)
        return [Weight(f"{name}.{letter}", one, factor) for letter, one, factor in named]

    @property
    def _names(self) -> set[str]:
        return {*self._matrices, *self._arrays}

    def _array(self, name: str, dimensions: int) -> NDArray[np.float32]:
        array = self._arrays.get(name)
        if array is None or array.ndim != dimensions or array.dtype != np.float32:
            got = "nothing" if array is None else f"{array.dtype} of shape {array.shape}"
            raise self._does_not_fit(f"{name} must be float32 with {dimensions} dimensions, got {got}")
        return array

    def _does_not_fit(self, why: str) -> G2Error:
        return G2Error(f"{self._path} does not fit its model: {why}; {self._remedy}")
