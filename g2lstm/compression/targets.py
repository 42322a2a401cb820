"""The matrices of a model that can be compressed, their names, and the modules that use them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor, nn

from g2lstm.compression.modules import LETTERS, CompressedEmbedding
from g2lstm.nn.lstm import G2LSTM
from g2lstm.nn.survey import why_not


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


class Target(NamedTuple):
    """A matrix that can be compressed: all rows of a parameter, or some.

    Attributes:
        uses: of an embedding or a softmax, where the parameter is used.
    """

    group: str
    parameter: nn.Parameter
    rows: slice = slice(None)
    uses: Sequence[Use] = ()

    @property
    def values(self) -> Tensor:
        """(rows, columns)."""
        return self.parameter.detach()[self.rows]


class Skipped(NamedTuple):
    """Something that belongs to these groups but can't be compressed, and why."""

    name: str
    groups: tuple[str, ...]
    reason: str


@dataclass
class Targets:
    """What `find_targets` finds.

    Attributes:
        matrices: by name; one that several modules share appears once, under its first name.
        lstms: for each layer, the names of its matrices by their names inside the layer.
        skipped: what can't be compressed.
    """

    matrices: dict[str, Target] = field(default_factory=dict)
    lstms: dict[nn.LSTM | G2LSTM, dict[str, str]] = field(default_factory=dict)
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
            found.matrices[name] = Target(group, parameter, uses=uses[parameter])
    return found


def _find_lstms(
    model: nn.Module, found: Targets, names: dict[nn.Parameter, str], uses: dict[nn.Parameter, list[Use]]
) -> None:
    layers = {module: name for name, module in model.named_modules() if isinstance(module, nn.LSTM | G2LSTM)}
    reasons: dict[nn.Module, str | None] = {layer: why_not(layer) for layer in layers}
    for layer, name in layers.items():
        weights = [weight for weight in layer._flat_weights_names if weight.startswith(("weight_ih", "weight_hh"))]
        reason = reasons[layer]
        if reason is None:
            own = [use for weight in weights for use in uses[getattr(layer, weight)]]
            others = [use for use in own if reasons.get(use.module, "no LSTM")]
            reason = _shared(others[0]) if others else None
        if reason is not None:
            found.skipped.append(Skipped(name, ("gates", "cell"), reason))
            continue
        found.lstms[layer] = {}
        for weight in weights:
            parameter, H = getattr(layer, weight), layer.hidden_size
            for gate, letter in enumerate(LETTERS):
                full_name = f"{names[parameter]}.{letter}"
                found.lstms[layer][f"{weight}.{letter}"] = full_name
                group = "gates" if letter in "if" else "cell"
                found.matrices[full_name] = Target(group, parameter, slice(gate * H, (gate + 1) * H))


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
