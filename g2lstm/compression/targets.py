"""The matrices of a model that can be compressed, their names, and the modules that use them."""

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor, nn

from g2lstm.compression.modules import CompressedEmbedding, gate_rows
from g2lstm.nn.convert import why_not
from g2lstm.nn.lstm import G2LSTM

GATE_GROUPS = {"i": "gates", "f": "gates", "g": "cell", "o": "cell"}


class Target(NamedTuple):
    """A matrix that can be compressed: all rows of a parameter, or some."""

    group: str
    parameter: nn.Parameter
    rows: slice

    @property
    def values(self) -> Tensor:
        """(rows, columns)."""
        return self.parameter.detach()[self.rows]


class Skipped(NamedTuple):
    """Something that belongs to these groups but can't be compressed, and why."""

    name: str
    groups: tuple[str, ...]
    reason: str


class Use(NamedTuple):
    """A place where a parameter is used."""

    name: str
    module: nn.Module
    attribute: str

    @property
    def is_softmax(self) -> bool:
        """Whether the module says that this parameter is the weights of its softmax: in `softmax_parameters`.

        A module that says so is taken at its word: no `torch.nn.Linear` inside it counts as a softmax.
        """
        return self.attribute in getattr(self.module, "softmax_parameters", ())


@dataclass
class Targets:
    """What `find_targets` finds.

    Attributes:
        matrices: by name; one that several modules share appears once, under its first name.
        lstms: for each layer, the names of its matrices by their names inside the layer.
        tables: for the other matrices, by name, where they are used.
        skipped: what can't be compressed.
    """

    matrices: dict[str, Target] = field(default_factory=dict)
    lstms: dict[nn.LSTM | G2LSTM, dict[str, str]] = field(default_factory=dict)
    tables: dict[str, list[Use]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)


def find_targets(model: nn.Module) -> Targets:
    """Looks through a model; what is compressed already does not appear.

    The weights of every `torch.nn.Embedding` belong to the group embedding, even where a linear layer shares them. The
    group softmax has the parameters that a module names in its attribute `softmax_parameters`, and in other modules
    the weights of every `torch.nn.Linear` with as many outputs as some embedding has rows.
    """
    found = Targets()
    names = {parameter: name for name, parameter in model.named_parameters()}
    uses: dict[nn.Parameter, list[Use]] = {parameter: [] for parameter in names}
    for name, module in model.named_modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                uses[parameter].append(Use(name, module, attribute))
        if isinstance(module, nn.Embedding) and "weight" not in module._parameters:
            found.skipped.append(Skipped(name, ("embedding",), "its weight is not a parameter (a hook computes it)"))
    _find_lstms(model, found, names, uses)
    for parameter, group in _table_groups(model, uses).items():
        name = names[parameter]
        reasons = [reason for use in uses[parameter] if (reason := _why_no_table(use))]
        if reasons:
            found.skipped.append(Skipped(name, (group,), reasons[0]))
        else:
            found.matrices[name] = Target(group, parameter, slice(None))
            found.tables[name] = uses[parameter]
    return found


def _find_lstms(
    model: nn.Module, found: Targets, names: dict[nn.Parameter, str], uses: dict[nn.Parameter, list[Use]]
) -> None:
    layers = {module: name for name, module in model.named_modules() if isinstance(module, nn.LSTM | G2LSTM)}
    reasons: dict[nn.Module, str | None] = {
        layer: why_not(layer, G2LSTM if isinstance(layer, G2LSTM) else nn.LSTM) for layer in layers
    }
    for layer, name in layers.items():
        reason = reasons[layer]
        if reason is None:
            weights = {weight: getattr(layer, weight) for weight, _ in gate_rows(layer).values()}
            others = [use for p in weights.values() for use in uses[p] if reasons.get(use.module, "no LSTM")]
            reason = _shared(others[0]) if others else None
        if reason is not None:
            found.skipped.append(Skipped(name, ("gates", "cell"), reason))
            continue
        found.lstms[layer] = {}
        for key, (weight, rows) in gate_rows(layer).items():
            full_name = f"{names[weights[weight]]}.{key[-1]}"
            found.lstms[layer][key] = full_name
            found.matrices[full_name] = Target(GATE_GROUPS[key[-1]], weights[weight], rows)


def _table_groups(model: nn.Module, uses: dict[nn.Parameter, list[Use]]) -> dict[nn.Parameter, str]:
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding | CompressedEmbedding)]
    groups = {p: "embedding" for m in embeddings if (p := m._parameters.get("weight")) is not None}
    sizes = {m.num_embeddings for m in embeddings}
    for parameter, places in uses.items():
        if any(use.is_softmax for use in places):
            groups.setdefault(parameter, "softmax")
    explicit = [m for m in model.modules() if hasattr(m, "softmax_parameters")]
    inside = {part for one in explicit for part in one.modules()}
    for module in model.modules():
        if type(module) is nn.Linear and module.out_features in sizes and module not in inside:
            weight = module._parameters.get("weight")
            if weight is not None:
                groups.setdefault(weight, "softmax")
    return groups


def _why_no_table(use: Use) -> str | None:
    """Why weights that are used here can't be compressed; None if they can."""
    module = use.module
    if isinstance(module, nn.Embedding):
        if type(module) is not nn.Embedding:
            return f"{type(module).__name__} is a subclass of Embedding and may compute something else"
        return None if module.max_norm is None else "max_norm changes its weights whenever they are used"
    return None if type(module) is nn.Linear or use.is_softmax else _shared(use)


def _shared(use: Use) -> str:
    return f"its weights are also {use.attribute!r} of {use.name or 'the model itself'}"
