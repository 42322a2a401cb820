"""What a run's recipe says about its model, read without pydantic; a key that an old run lacks has its default."""

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from g2lstm.compression.encodings.base import brief
from g2lstm.errors import G2Error
from g2lstm.files import read_bounded
from g2lstm.nn.kind import DEFAULT_TAU, EVAL_GATES, LSTM, gate_factors, temperature, usual_eval_gate
from g2lstm.recipes.sealed import MAX_BYTES, parse_tables

Value = TypeVar("Value", str, int, float, bool)


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
