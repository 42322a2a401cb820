"""Which matrices of a model can be compressed, what they are called, and which modules use them."""

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor, nn

from g2lstm.compression.lstm import CompressedLSTM, gate_rows
from g2lstm.compression.table import CompressedEmbedding
from g2lstm.nn.convert import why_not
from g2lstm.nn.lstm import G2LSTM
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.mt.model import TranslationModel

GATE_GROUPS = {"i": "gates", "f": "gates", "g": "cell", "o": "cell"}
SOFTMAX = "softmax_weight"  # of our own models: a parameter of the model itself


class Matrix(NamedTuple):
    """A matrix that can be compressed: all rows of a parameter, or some."""

    group: str
    parameter: nn.Parameter
    rows: slice

    @property
    def values(self) -> Tensor:
        """(rows, columns)."""
        return self.parameter.detach()[self.rows]


class Left(NamedTuple):
    """What is left alone although it belongs to these groups, and why."""

    name: str
    groups: tuple[str, ...]
    reason: str


class Use(NamedTuple):
    """Where a parameter is used."""

    name: str
    module: nn.Module
    attribute: str


@dataclass
class Survey:
    """What `survey` finds.

    Attributes:
        matrices: by name; one that several modules share has the first of its names only.
        lstms: each layer, with the name of each of its matrices by the name that it has in the layer.
        tables: for the names of all other matrices, where they are used.
        left: what is left alone.
    """

    matrices: dict[str, Matrix] = field(default_factory=dict)
    lstms: dict[nn.LSTM | G2LSTM, dict[str, str]] = field(default_factory=dict)
    tables: dict[str, list[Use]] = field(default_factory=dict)
    left: list[Left] = field(default_factory=list)


def survey(model: nn.Module) -> Survey:
    """Looks through a model. What is compressed already does not appear.

    The weights of every `torch.nn.Embedding` are of the group embedding, also where a linear layer shares them. Of the
    group softmax are the `softmax_weight` of our own models and, in others, the weights of every `torch.nn.Linear` that
    has as many outputs as some embedding has rows.
    """
    found = Survey()
    names = {parameter: name for name, parameter in model.named_parameters()}
    uses: dict[nn.Parameter, list[Use]] = {parameter: [] for parameter in names}
    for name, module in model.named_modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                uses[parameter].append(Use(name, module, attribute))
        if isinstance(module, nn.Embedding) and "weight" not in module._parameters:
            found.left.append(Left(name, ("embedding",), "its weight is not a parameter (a hook computes it)"))
    _survey_lstms(model, found, names, uses)
    for parameter, group in _table_groups(model).items():
        name = names[parameter]
        reasons = [reason for use in uses[parameter] if (reason := _why_no_table(use))]
        if reasons:
            found.left.append(Left(name, (group,), reasons[0]))
        else:
            found.matrices[name] = Matrix(group, parameter, slice(None))
            found.tables[name] = uses[parameter]
    return found


def _survey_lstms(
    model: nn.Module, found: Survey, names: dict[nn.Parameter, str], uses: dict[nn.Parameter, list[Use]]
) -> None:
    layers = {module: name for name, module in model.named_modules() if isinstance(module, nn.LSTM | G2LSTM)}
    reasons: dict[nn.Module, str | None] = {
        layer: why_not(layer, G2LSTM if isinstance(layer, G2LSTM) else nn.LSTM) for layer in layers
    }
    for layer, name in layers.items():
        if isinstance(layer, CompressedLSTM):
            continue
        reason = reasons[layer]
        if reason is None:
            weights = {weight: getattr(layer, weight) for weight, _ in gate_rows(layer).values()}
            others = [use for p in weights.values() for use in uses[p] if reasons.get(use.module, "no LSTM")]
            reason = _shared(others[0]) if others else None
        if reason is not None:
            found.left.append(Left(name, ("gates", "cell"), reason))
            continue
        found.lstms[layer] = {}
        for key, (weight, rows) in gate_rows(layer).items():
            called = f"{names[weights[weight]]}.{key[-1]}"
            found.lstms[layer][key] = called
            found.matrices[called] = Matrix(GATE_GROUPS[key[-1]], weights[weight], rows)


def _table_groups(model: nn.Module) -> dict[nn.Parameter, str]:
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding | CompressedEmbedding)]
    groups = {p: "embedding" for m in embeddings if (p := m._parameters.get("weight")) is not None}
    sizes = {m.num_embeddings for m in embeddings}
    ours = [m for m in model.modules() if isinstance(m, LanguageModel | TranslationModel)]
    inside = {part for one in ours for part in one.modules()}
    for one in ours:
        if isinstance(one.softmax_weight, nn.Parameter):
            groups.setdefault(one.softmax_weight, "softmax")
    for module in model.modules():
        if type(module) is nn.Linear and module.out_features in sizes and module not in inside:
            weight = module._parameters.get("weight")
            if weight is not None:
                groups.setdefault(weight, "softmax")
    return groups


def _why_no_table(use: Use) -> str | None:
    """Why a use of some weights keeps them from being compressed; None if it does not."""
    module = use.module
    if isinstance(module, nn.Embedding):
        if type(module) is not nn.Embedding:
            return f"{type(module).__name__} is a subclass of Embedding and may compute something else"
        return None if module.max_norm is None else "max_norm changes its weights whenever they are used"
    is_softmax = isinstance(module, LanguageModel | TranslationModel) and use.attribute == SOFTMAX
    return None if type(module) is nn.Linear or is_softmax else _shared(use)


def _shared(use: Use) -> str:
    return f"its weights are also {use.attribute!r} of {use.name or 'the model itself'}"
