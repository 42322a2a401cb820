"""Finds the recurrent layers inside a model, and says which of them we can convert."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import nn

from g2lstm.errors import G2Error
from g2lstm.nn.cells import G2GRUCell, G2LSTMCell
from g2lstm.nn.checks import check_module
from g2lstm.nn.gate import GRU, LSTM, Kind
from g2lstm.nn.gated import Gated, WithParameters
from g2lstm.nn.gru import G2GRU
from g2lstm.nn.lstm import G2LSTM


def called(name: str) -> str:
    """A module's name for people; the model itself has none."""
    return name or "the model itself"


def aligned(rows: Sequence[Sequence[str]], place: Callable[[str, int], str] = str.ljust) -> str:
    """A table for a terminal, its columns as wide as their longest text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(place, row, widths)).rstrip() for row in rows)


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern, with `*` and `?`, matches a name or a module that contains it.

    "encoder" and "enc*" match "encoder" and "encoder.lstm"; "*.lstm" matches "encoder.lstm".
    """
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:count]), pattern) for count in range(1, len(parts) + 1))


def as_patterns(given: str | Iterable[str] | None) -> tuple[str, ...]:
    """One pattern, several or none as a tuple."""
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)


def check_patterns(patterns: Iterable[str], names: Iterable[str], what: str) -> None:
    """Raises if a pattern matches none of the names.

    Args:
        patterns: to check.
        names: those that exist.
        what: what has these names, in the plural, such as "recurrent layers".
    """
    names = list(names)
    for pattern in patterns:
        if any(matches(name, pattern) for name in names):
            continue
        near = get_close_matches(pattern, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        known = ", ".join(called(name) for name in names[:8]) + (", ..." if len(names) > 8 else "")
        raise G2Error(f"no {what} match {pattern!r}: there are {known or 'none'}{hint}")


# Which of our layers stands for which of torch's.
TWINS: dict[type[nn.Module], type[WithParameters]] = {
    nn.LSTM: G2LSTM, nn.GRU: G2GRU, nn.LSTMCell: G2LSTMCell, nn.GRUCell: G2GRUCell,
}  # fmt: skip

Status = Literal["converted", "convertible", "left alone"]


@dataclass(frozen=True)
class SurveyRow:
    """One recurrent layer of a model."""

    name: str  # inside the model; "" for the model itself
    kind: str  # its class
    status: Status
    why: str = ""  # it is left alone


class Survey(Sequence[SurveyRow]):
    """The recurrent layers of a model, in order; prints as a table."""

    def __init__(self, rows: Sequence[SurveyRow]) -> None:
        self._rows = tuple(rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        if not self._rows:
            return "no recurrent layers"
        rows = [(called(row.name), row.kind, row.status, row.why) for row in self._rows]
        return aligned([("layer", "kind", "status", "why"), *rows])


def survey(model: nn.Module) -> Survey:
    """Lists every recurrent layer inside a model: what is ours already, what `convert_` takes, what it leaves and why.

    Examples:
        >>> print(g2lstm.survey(model))
    """
    check_module(model, "survey")
    return Survey(list(_rows(model)))


def _rows(model: nn.Module) -> Iterator[SurveyRow]:
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, Gated):
            yield SurveyRow(name, kind, "converted")
        elif (drop := weight_drop(module)) is not None:
            inside.add(drop.layer)
            kind = f"{kind} of {type(drop.layer).__name__}"
            why = drop.why_not()
            yield SurveyRow(name, kind, "left alone" if why else "convertible", why or "")
        elif module not in inside and is_recurrent(module):
            why = why_not(module)
            yield SurveyRow(name, kind, "left alone" if why else "convertible", why or "")


def is_recurrent(module: nn.Module) -> bool:
    """Whether a module is one of torch's recurrent layers or cells, or derived from one."""
    if isinstance(module, torch.jit.ScriptModule):
        return any(word in str(module.original_name) for word in ("LSTM", "GRU", "RNN"))
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return True
    # Quantised layers have bases of their own.
    return any(base.__name__ in ("RNNBase", "RNNCellBase") for base in type(module).__mro__)


def kind_of(layer: nn.Module) -> Kind:
    """LSTM or GRU, of a layer or cell, torch's or ours."""
    return GRU if isinstance(layer, nn.GRU | nn.GRUCell) else LSTM


def twin_of(layer: WithParameters) -> type[nn.Module]:
    """The class of torch's that a layer of ours stands for."""
    return next(theirs for theirs, ours in TWINS.items() if isinstance(layer, ours))


def parameter_names(layer: nn.Module) -> list[str]:
    """The names of the parameters that a recurrent layer computes with, in torch's order."""
    if isinstance(layer, nn.RNNBase):
        return list(layer._flat_weights_names)
    return ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if layer.bias else [])]


def why_not(module: nn.Module) -> str | None:
    """Why a recurrent layer, ours or torch's, can't be treated as a plain one; None if it can, or is something else."""
    if not is_recurrent(module) or (isinstance(module, Gated) and not isinstance(module, WithParameters)):
        return None  # of ours, the compressed ones have no parameters
    if isinstance(module, torch.jit.ScriptModule):
        return "it is scripted; convert the model before torch.jit.script"
    plain = next((one for one in (*TWINS.values(), *TWINS) if isinstance(module, one)), None)
    if plain is None:
        return f"no layer of g2lstm replaces {type(module).__name__}"
    if type(module) is not plain:
        return f"{type(module).__name__} is a subclass of {plain.__name__} and may compute something else"
    names = parameter_names(module)
    missing = [name for name in names if name not in module._parameters]
    if missing:
        return f"its {missing[0]} is not a parameter (weight_norm or a similar hook computes it)"
    held = {name for name, value in module._parameters.items() if value is not None}
    own = {*held, *module._buffers, *module._modules} - set(names)
    return f"it holds {sorted(own)[0]!r}, which no {plain.__name__} has" if own else None


@dataclass(frozen=True)
class WeightDrop:
    """A module that wraps a layer to apply DropConnect, as awd-lstm-lm and fastai do.

    It keeps a weight under the name `weight_hh_l0_raw` and before each call puts a dropped copy into the layer.
    """

    layer: nn.Module
    raw: dict[str, nn.Parameter]  # by the names that the layer has for them
    rate: float
    is_variational: bool  # drops whole rows

    def why_not(self) -> str | None:
        """Why it can't become a layer with `weight_dropout`; None if it can."""
        if type(self.layer) not in TWINS:
            return f"no layer of g2lstm replaces {type(self.layer).__name__}"
        if self.is_variational:
            return "its dropout is variational: it drops whole rows of a weight, weight_dropout single elements"
        recurrent = {name for name in parameter_names(self.layer) if name.startswith("weight_hh")}
        if set(self.raw) != recurrent:
            odd = sorted(set(self.raw) ^ recurrent)[0]
            return f"weight_dropout covers exactly the recurrent weights, and this wrapper differs in {odd}"
        return None


def weight_drop(module: nn.Module) -> WeightDrop | None:
    """The parts of a wrapper that applies DropConnect; None if the module is none."""
    layer = dict(module.named_children()).get("module")
    if len(list(module.children())) != 1 or not isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        return None
    held = {**layer._parameters, **module._parameters}  # fastai's wrapper holds the raw weights itself
    raw = {
        name.removesuffix("_raw"): value for name, value in held.items() if name.endswith("_raw") and value is not None
    }
    rate = next(
        (value for name in ("weight_p", "dropout") if isinstance(value := getattr(module, name, None), float | int)),
        None,
    )
    if not raw or rate is None:
        return None
    return WeightDrop(layer, raw, float(rate), bool(getattr(module, "variational", False)))
