"""The kinds of recurrent layers, and how each method computes gates in evaluation; none of this needs torch."""

from collections.abc import Mapping
from dataclasses import dataclass

EVAL_GATES = ("soft", "tempered", "hard")
DEFAULT_TAU = {"gumbel": 0.9, "binary": 0.5, "sharpened": 0.2, "sigmoid": 1.0}  # by method
# In the course of training, by method. Binary gates that harden one by one need none.
DEFAULT_NOISE_RATE = {"gumbel": 0.2, "binary": 0.0, "sharpened": 0.2, "sigmoid": 0.2}
MIN_TAU = 1e-6  # gradients grow with 1 / tau, and far below this they overflow


@dataclass(frozen=True)
class Kind:
    """What tells one recurrent layer from another.

    Attributes:
        name: as torch calls it.
        gates: their names, in the order of torch's rows.
        letters: of the gates, in the same order.
        sampled: the choices of the option `gates`, and which gates each of them pushes towards 0 or 1.
        states: the letters of the states.
    """

    name: str
    gates: tuple[str, ...]
    letters: str
    sampled: Mapping[str, tuple[int, ...]]
    states: str


LSTM = Kind("LSTM", ("input", "forget", "candidate", "output"), "ifgo", {"if": (0, 1), "ifo": (0, 1, 3)}, "hc")
GRU = Kind("GRU", ("reset", "update", "candidate"), "rzn", {"rz": (0, 1)}, "h")


def kind_with(gates: str) -> Kind:
    """The kind of layer that has this choice of sampled gates."""
    return GRU if gates in GRU.sampled else LSTM


def gate_factors(gates: str, tau: float) -> list[float]:
    """What each gate's rows of W_x, W_h and b are multiplied by, so that a plain layer has the temperature `tau`."""
    kind = kind_with(gates)
    return [1 / tau if number in kind.sampled[gates] else 1.0 for number in range(len(kind.gates))]


def usual_eval_gate(method: str) -> str:
    """How a method computes gates in evaluation, unless told otherwise."""
    return "hard" if method == "binary" else "soft"


def temperature(method: str, tau: float, eval_gate: str, training: bool = False) -> float:
    """What pre-activations are divided by.

    A sharpened model has its temperature in evaluation too; for a G2 model that is one way to read its gates.
    """
    has_one = training or eval_gate == "tempered" or method == "sharpened"
    return tau if has_one and method != "sigmoid" else 1.0
