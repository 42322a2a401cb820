"""Gates that change while a model trains: `set_gates_` at once, `GateSchedule` plain at first and sampled later."""

from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from torch import nn

from g2lstm.errors import G2Error
from g2lstm.nn.checks import NOISY_METHODS, check_module, checked_option
from g2lstm.nn.gated import WithParameters
from g2lstm.nn.kind import DEFAULT_NOISE_RATE, DEFAULT_TAU
from g2lstm.nn.survey import as_patterns, check_patterns, matches

Model = TypeVar("Model", bound=nn.Module)
Course = float | tuple[float, float]  # one value, or the first and the last


class GateSchedule:
    """How the gates of all our layers inside a model change while it trains.

    Until `start`, the layers are plain LSTMs or GRUs. From then on they have `method`, and noise rate, temperature and
    the share of soft elements each change linearly. Binary gates need this: they become binary one by one, whereas a
    model all of whose gates are binary from the first update ends worse. Choose the best weights among those after
    `start`: before it, evaluation sees a different function.

    Args:
        method: as in `G2LSTM`; not "sigmoid".
        start: the share of the training, in [0, 1), after which the method begins.
        noise_rate: one value, or the values at `start` and at the end; 0.2 for "gumbel", 0 for "binary" unless given.
        tau: likewise; the method's own unless given.
        soft_rate: likewise, the share of the elements of binary gates that stay soft; from 1 to 0 unless given.
        eval_gate: as in `G2LSTM`; the method's own unless given.

    Examples:
        >>> schedule = g2lstm.GateSchedule("binary")
        >>> for step, batch in enumerate(batches):
        ...     schedule.apply_(model, step / len(batches))
        ...     train_on(batch)
    """

    def __init__(
        self,
        method: str = "binary",
        *,
        start: float = 0.0,
        noise_rate: Course | None = None,
        tau: Course | None = None,
        soft_rate: Course = (1.0, 0.0),
        eval_gate: Literal["soft", "tempered", "hard"] | None = None,
    ) -> None:
        self.method = str(checked_option("method", method))
        if method == "sigmoid":
            raise G2Error("a schedule with the method 'sigmoid' changes nothing; choose 'binary' or 'gumbel'")
        if not 0 <= start < 1:
            raise G2Error(f"the start of a schedule is a share of the training, at least 0 and below 1, got {start}")
        self.start, self.eval_gate = start, eval_gate
        if eval_gate is not None:
            checked_option("eval_gate", eval_gate)
        self.noise_rate = _both("noise_rate", DEFAULT_NOISE_RATE[method] if noise_rate is None else noise_rate)
        self.soft_rate = _both("soft_rate", soft_rate)
        self.tau = _both("tau", DEFAULT_TAU[method] if tau is None else tau)

    def check_frozen(self, freeze: bool) -> None:
        """Raises before training if its result can't be frozen after it."""
        if freeze and (self.eval_gate == "hard" or (self.method == "binary" and self.eval_gate is None)):
            raise G2Error("torch's own layers have no binary gates, so the model can't be frozen; pass freeze=False")

    def has_begun(self, share: float) -> bool:
        """Whether more than the first part, up to and including `start`, is done; a start of 0 has no first part."""
        return share > self.start or self.start == 0

    def options(self, share: float) -> dict[str, Any]:
        """The options of every layer once this share of the training is done."""
        if not self.has_begun(share):
            return {"method": "sigmoid", "tau": None, "eval_gate": None}
        done = min((share - self.start) / (1 - self.start), 1.0)
        options = {"method": self.method, "tau": _between(self.tau, done), "eval_gate": self.eval_gate}
        if self.method in NOISY_METHODS:
            options["noise_rate"] = _between(self.noise_rate, done)
        if self.method == "binary":
            options["soft_rate"] = _between(self.soft_rate, done)
        return options

    def apply_(self, model: nn.Module, share: float) -> bool:
        """Sets the gates of a model that has done this share of its training; says whether the method has begun.

        Args:
            model: with layers of ours inside.
            share: in [0, 1].
        """
        if not 0 <= share <= 1:
            raise G2Error(f"the share of the training that is done lies between 0 and 1, got {share}")
        layers = [layer for layer in model.modules() if isinstance(layer, WithParameters)]
        if not layers:
            raise G2Error(f"found no layer of g2lstm inside {type(model).__name__}; call g2lstm.convert_ first")
        wanted = self.options(share)
        for layer in layers:
            if (current := layer.options()) != {**current, **wanted}:
                for name, value in wanted.items():
                    setattr(layer, name, value)
        return self.has_begun(share)


def _both(name: str, course: Course) -> tuple[float, float]:
    first, last = course if isinstance(course, tuple) else (course, course)
    return float(checked_option(name, first)), float(checked_option(name, last))


def _between(course: tuple[float, float], done: float) -> float:
    first, last = course
    return last if done == 1 or first == last else first + (last - first) * done


def set_gates_(model: Model, *, only: str | Iterable[str] | None = None, **options: Any) -> Model:
    """Changes how all our layers inside a model compute their gates, at any point in training.

    Args:
        model: with layers of ours inside.
        only: pattern or patterns of the layers to change.
        **options: method, tau, noise_rate, soft_rate, eval_gate, weight_dropout. A new method brings its own default
            for tau and eval_gate unless they are given.

    Returns:
        The model.
    """
    check_module(model, "set_gates_")
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, WithParameters)}
    if not layers:
        raise G2Error(f"found no layer of g2lstm inside {type(model).__name__}; call g2lstm.convert_ first")
    patterns = as_patterns(only)
    check_patterns(patterns, layers, "layers of g2lstm")
    allowed = ("method", "tau", "noise_rate", "soft_rate", "eval_gate", "weight_dropout")
    if wrong := sorted(options.keys() - set(allowed)):
        raise G2Error(f"set_gates_ has no option {wrong[0]!r}; it takes {', '.join(allowed)}")
    chosen = [layer for name, layer in layers.items() if not patterns or any(matches(name, one) for one in patterns)]
    if "method" in options:  # it brings its own temperature and evaluation
        options = {"tau": None, "eval_gate": None, **options}
    for layer in chosen:  # a wrong value is reported before anything is changed
        type(layer)(1, 1, device="meta", **{**layer.options(), **options})
    for layer in chosen:
        for name, value in options.items():
            setattr(layer, name, value)
    return model
