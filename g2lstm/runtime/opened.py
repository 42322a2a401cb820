"""`load`: opens a run directory without torch, or a saved model, which is a `Stack` of layers."""

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from g2lstm.compression import storage
from g2lstm.compression.encodings import Encoding
from g2lstm.compression.encodings.base import is_whole
from g2lstm.compression.kernel import open_session
from g2lstm.compression.session import Array, Layer, Session, Vector
from g2lstm.errors import G2Error, needs
from g2lstm.files import parse_json
from g2lstm.nn.kind import GRU, LSTM, gate_factors
from g2lstm.runtime.language import LanguageModel, LanguageParts, language_parts
from g2lstm.runtime.translation import TranslationModel, TranslationParts, search_facts, translation_parts
from g2lstm.runtime.weights import GateFacts, NamedWeights, RunRecipe, check_is_run

if TYPE_CHECKING:
    from g2lstm.text.tokenize import Tokenizer


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": lambda x: (1 + np.tanh(x / 2)) / 2,
    "softmax": lambda x: np.exp(_log_softmax(x)),
    "log_softmax": lambda x: _log_softmax(x),
    "argmax": lambda x: x.argmax(axis=-1),
}


def _log_softmax(x: Array) -> Array:
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


class Stack:
    """A chain of layers that reads step by step and keeps its state, which is zero before the first step.

    A step is a vector (I,), or a token id if the first layer is an embedding. The output is the model's for that step,
    without batch and time.

    Args:
        path: a file of `g2lstm.save`.
        threads: at most this many in the compiled kernel.

    Attributes:
        inputs: I, the width of a vector; None if it reads token ids.
    """

    def __init__(self, path: Path, threads: int | None = None) -> None:
        stored = storage.load(path)
        steps = _structure(path, stored.metadata)
        weights = NamedWeights(path, stored.matrices, stored.arrays, "save the model again")
        self._steps: list[Callable[[Array], Array]] = []
        self._sessions: list[Session] = []
        self._embedding: Encoding | None = None
        self.inputs: int | None = None
        width = None
        for step in steps:
            width = self._add(step, width, weights, threads)
        weights.check({})

    def _add(self, step: dict[str, Any], width: int | None, weights: NamedWeights, threads: int | None) -> int | None:
        """Adds a layer that reads vectors of this width; returns the width of what it gives."""
        if step["kind"] in _FUNCTIONS:
            self._steps.append(_FUNCTIONS[step["kind"]])
            return width
        if step["kind"] == "embedding":
            self._embedding = weights.matrix(step["weight"])
            return self._embedding.shape[1]
        if step["kind"] == "linear":
            weight = weights.matrix(step["weight"])
            outputs, inputs = weight.shape
            none = np.zeros(outputs, np.float32)
            bias = none if step["bias"] is None else weights.vector(step["bias"], outputs)
            self._steps.append(open_session([], "", threads, Layer.softmax(weight, bias)).sequence)
        else:
            session, residual = _session(step, weights, threads), step.get("residual", False)
            outputs, inputs = session.outputs, session.inputs
            if residual and inputs != outputs:
                raise G2Error(f"a layer of its structure adds its {inputs} inputs to {outputs} outputs")
            self._sessions.append(session)
            self._steps.append(lambda x: x + session.sequence(x) if residual else session.sequence(x))
        if width is None:
            self.inputs = inputs
        elif inputs != width:
            raise G2Error(f"a layer of its structure reads {inputs} numbers, and the one before gives {width}")
        return outputs

    def step(self, x: Vector) -> Array:
        """Reads one step; returns the model's output of that step."""
        output: Array = self.sequence(np.asarray(x)[None])[0]
        return output

    def sequence(self, x: Vector) -> Array:
        """Reads many steps, (T, I) or T token ids; returns what that many calls of `step` would, stacked."""
        value: Array
        if self._embedding is None:
            value = np.asarray(x, np.float32)
            if value.ndim != 2 or value.shape[1] != self.inputs:
                raise G2Error(f"a step has the shape ({self.inputs},), got {value.shape[1:]}")
        else:
            value = self._embedding.rows(np.array([self._token(token) for token in np.asarray(x).tolist()], np.int64))
        for step in self._steps:
            value = step(value)
        return value

    def get_state(self) -> list[tuple[Array, ...]]:
        """Copies of h and c (H,) of each layer, of h alone in a GRU."""
        return list(chain.from_iterable(session.get_state() for session in self._sessions))

    def set_state(self, states: Sequence[tuple[Vector, ...]]) -> None:
        """Sets h and c (H,) of each layer, from which the next step continues."""
        if len(states) != (count := sum(len(session.units) for session in self._sessions)):
            raise G2Error(f"there are {count} layers with a state, got {len(states)} states")
        for session in self._sessions:
            own, states = states[: len(session.units)], states[len(session.units) :]
            session.set_state(own)

    def reset(self) -> None:
        """Sets all states to zero."""
        for session in self._sessions:
            session.reset()

    def _token(self, token: Any) -> int:
        assert self._embedding is not None
        size = self._embedding.shape[0]
        try:
            number = index(token)
        except TypeError:
            raise G2Error(f"a token id must be an integer, got {token!r}") from None
        if not 0 <= number < size:
            raise G2Error(f"token ids go from 0 to {size - 1}, got {number}")
        return number


def _session(step: dict[str, Any], weights: NamedWeights, threads: int | None) -> Session:
    kind = LSTM if step["kind"] == "lstm" else GRU
    gates = GateFacts(gate_factors(step["gates"], step["tau"]), step["gates"] if step["hard"] else "")
    name = f"{step['name']}." if step["name"] else ""
    each = [
        weights.layer(name, gates, f"_l{k}", letters=kind.letters, has_bias=step["bias"]) for k in range(step["layers"])
    ]
    return open_session([one.session_layer() for one in each], each[0].session_hard, threads)


def _structure(path: Path, metadata: Mapping[str, str]) -> list[dict[str, Any]]:
    """What a file says about its layers; anyone may have written it."""
    try:
        steps = parse_json(metadata.get(storage.STRUCTURE, '"it was saved by an older g2lstm"'))
    except ValueError as error:
        raise G2Error(f"can't read {path}: its structure is not JSON: {error}; save the model again") from None
    if isinstance(steps, str):
        raise G2Error(
            f"{path} can't be stepped without torch: {steps[:200]!r}; put it into its model with g2lstm.load_into"
        )
    if not isinstance(steps, list) or not all(map(_is_step, steps)):
        raise G2Error(f"can't read {path}: its structure is not one that g2lstm writes; save the model again")
    return steps


def _is_step(step: Any) -> bool:
    if not isinstance(step, dict):
        return False
    if (kind := step.get("kind")) in ("lstm", "gru"):
        gates = (LSTM if kind == "lstm" else GRU).sampled
        facts = is_whole(step.get("layers"), 1, 1000) and step.get("gates") in list(gates)
        flags = all(type({"residual": False, **step}.get(key)) is bool for key in ("bias", "hard", "residual"))
        return facts and flags and isinstance(step.get("name"), str) and _is_temperature(step.get("tau"))
    if kind in ("embedding", "linear"):
        has_bias = kind == "embedding" or isinstance(step.get("bias", 0), str | None)
        return isinstance(step.get("weight"), str) and has_bias
    return isinstance(kind, str) and kind in _FUNCTIONS


def _is_temperature(tau: Any) -> bool:
    return isinstance(tau, float) and 0 < tau < float("inf")


def load(path: str | Path, *, threads: int | None = None, eval_gate: str | None = None) -> Any:
    """Opens the model of a run, compressed or not, or a compressed model from a file, to use it without torch.

    Args:
        path: a run directory, from `g2lstm train` or `g2lstm compress`; or a file of `g2lstm.save`, if its model is one
            chain of embedding, LSTM or GRU and linear layers with the usual activations.
        threads: at most this many in the compiled kernel; one per processor if not given. Small models use fewer.
        eval_gate: of a run: "soft", "tempered" or "hard"; None for the model's own.

    Returns:
        A `LanguageModel` or a `TranslationModel` of this package, depending on the run; for a file, a `Stack`.

    Examples:
        >>> from g2lstm.runtime import load
        >>> model = load("runs/ptb-small+small")
        >>> model.generate("the company said", tokens=20, seed=1)
        >>> load("runs/multi30k-small+small").translate("ein mann schläft .")
    """
    run = Path(path)
    if os.path.isfile(run):
        if eval_gate is not None:
            raise G2Error(f"eval_gate is for runs; the gates of {run} are as they were saved")
        return Stack(run, threads)
    opened = open_run(run, eval_gate)
    if isinstance(opened.parts, LanguageParts):
        return LanguageModel(opened.parts, opened.tokenizers[0], threads)
    source, target = opened.tokenizers
    return TranslationModel(opened.parts, search_facts(opened.recipe), source, target, threads)


class OpenedRun(NamedTuple):
    """A run directory that was read: its recipe, its tokenizers by the order of its task, and its model."""

    recipe: RunRecipe
    tokenizers: "list[Tokenizer]"
    parts: LanguageParts | TranslationParts


def open_run(run: Path, eval_gate: str | None = None) -> OpenedRun:
    """Reads a run directory without torch; the arguments are those of `load`."""
    check_is_run(run)
    recipe = RunRecipe(run / "recipe.toml")
    if recipe.task not in _TASKS:
        raise G2Error(
            f"{run} is a run of task {recipe.task!r}, and the runtime knows {', '.join(_TASKS)}; install a newer g2lstm"
        )
    names, take_apart = _TASKS[recipe.task]
    with needs("text", "a run with its tokenizer"):
        from g2lstm.text.tokenize import Tokenizer
    tokenizers = [Tokenizer.load(run / name) for name in names]
    weights = NamedWeights.open(run / "model.safetensors")
    return OpenedRun(recipe, tokenizers, take_apart(recipe, weights, *tokenizers, eval_gate=eval_gate))


# For each task the files of its tokenizers, and what takes its models apart.
_TASKS: dict[str, tuple[tuple[str, ...], Callable[..., LanguageParts | TranslationParts]]] = {
    "lm": (("tokenizer.json",), language_parts),
    "mt": (("tokenizer.source.json", "tokenizer.target.json"), translation_parts),
}
