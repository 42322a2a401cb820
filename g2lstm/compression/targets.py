"""The matrices of a model that can be compressed, and what a spec with patterns says about each of them."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import filter as matching
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from g2lstm.compression.modules import CompressedAttention, CompressedEmbedding
from g2lstm.compression.recurrent import CompressedRecurrent
from g2lstm.compression.spec import GROUPS, Operations, Spec
from g2lstm.errors import G2Error
from g2lstm.nn.gated import Gated
from g2lstm.nn.survey import TWINS, called, kind_of, parameter_names, why_not

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
ATTENTION = CompressedAttention.matrices
LINEAR = (nn.Linear, NonDynamicallyQuantizableLinear)  # which is the last part of an attention, and computes the same


def is_dense(module: nn.Module) -> bool:
    """Whether a module is a recurrent layer, torch's or ours, whose weights are not encoded."""
    return isinstance(module, tuple(TWINS)) and not isinstance(module, CompressedRecurrent)


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

    @property
    def parameter(self) -> str:
        """The name of the parameter here."""
        return f"{self.name}.{self.attribute}".removeprefix(".")


class Target(NamedTuple):
    """A matrix that can be compressed: all rows of a parameter, or those of one gate.

    Attributes:
        uses: where the parameter is used.
        is_plain: whether it belongs to a recurrent layer of torch's own.
        is_convolution: whether it is the weights of a convolution, (outputs, ...), which only patterns are about.
    """

    group: str
    parameter: nn.Parameter
    uses: Sequence[Use]
    rows: slice = slice(None)
    gate: str = ""
    is_plain: bool = False
    is_convolution: bool = False

    @property
    def values(self) -> Tensor:
        """(rows, columns)."""
        return self.parameter.detach()[self.rows].flatten(1)


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
        layers: for each recurrent layer, the names of its matrices by their names inside the layer.
        skipped: what can't be compressed.
    """

    matrices: dict[str, Target] = field(default_factory=dict)
    layers: dict[nn.Module, dict[str, str]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)

    def together(self, encoded: Collection[str]) -> set[str]:
        """All matrices of the recurrent layers of which some are encoded; only a projection may then stay as it is."""
        every = [names for names in self.layers.values() if any(name in encoded for name in names.values())]
        return {name for names in every for key, name in names.items() if not key.startswith("weight_hr")}


def find_targets(model: nn.Module) -> Targets:
    """Looks through a model; what is compressed already does not appear.

    The weights of every `torch.nn.Embedding` belong to the group embedding, even where a linear layer shares them. The
    group softmax has the parameters that a module names in its attribute `softmax_parameters`, and in other modules
    the weights of every `torch.nn.Linear` with as many outputs as some embedding has rows. All other linear layers are
    the group linear, as are the projections of LSTMs and the matrices of every `torch.nn.MultiheadAttention`; so are
    convolutions, but only where a pattern covers them.
    """
    found = Targets()
    names = {parameter: name for name, parameter in model.named_parameters()}
    uses: dict[nn.Parameter, list[Use]] = {parameter: [] for parameter in names}
    for name, module in model.named_modules(remove_duplicate=False):
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                uses[parameter].append(Use(name, module, attribute))
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.Linear) and "weight" not in module._parameters:
            group = "embedding" if isinstance(module, nn.Embedding) else "linear"
            found.skipped.append(Skipped(name, (group,), "its weight is not a parameter (a hook computes it)"))
    _find_layers(model, found, names, uses)
    for parameter, group in _table_groups(model, uses).items():
        name = names[parameter]
        reasons = [reason for use in uses[parameter] if (reason := _why_no_table(use))]
        if reasons:
            found.skipped.append(Skipped(name, (group,), reasons[0]))
        else:
            found.matrices[name] = Target(group, parameter, uses[parameter])
    for parameter, places in uses.items():
        if all(type(use.module) is nn.MultiheadAttention and use.attribute in ATTENTION for use in places):
            found.matrices[names[parameter]] = Target("linear", parameter, places)
        if all(type(use.module) in CONVOLUTIONS and use.attribute == "weight" for use in places):
            found.matrices[names[parameter]] = Target("linear", parameter, places, is_convolution=True)
    return found


def _find_layers(
    model: nn.Module, found: Targets, names: dict[nn.Parameter, str], uses: dict[nn.Parameter, list[Use]]
) -> None:
    layers = {module: name for name, module in model.named_modules() if is_dense(module)}
    reasons: dict[nn.Module, str | None] = {layer: why_not(layer) for layer in layers}
    for layer, name in layers.items():
        reason = reasons[layer]
        if reason is None:
            own = [use for weight in _weights(layer) for use in uses[_parameter(layer, weight)]]
            others = [use for use in own if reasons.get(use.module, "no layer") or _facts(use.module) != _facts(layer)]
            reason = _shared(others[0]) if others else None
        if reason is not None:
            found.skipped.append(Skipped(name, ("gates", "cell", "plain"), reason))
            continue
        found.layers[layer] = {}
        letters, is_plain = _facts(layer)
        for weight in _weights(layer):
            parameter = _parameter(layer, weight)
            if weight.startswith("weight_hr"):
                found.layers[layer][weight] = names[parameter]
                found.matrices[names[parameter]] = Target("linear", parameter, uses[parameter], is_plain=is_plain)
                continue
            H = len(parameter) // len(letters)
            for gate, letter in enumerate(letters):
                full_name = f"{names[parameter]}.{letter}"
                found.layers[layer][f"{weight}.{letter}"] = full_name
                group = "gates" if letter in "ifrz" else "cell"
                rows = slice(gate * H, (gate + 1) * H)
                found.matrices[full_name] = Target(group, parameter, uses[parameter], rows, letter, is_plain)


def _parameter(layer: nn.Module, name: str) -> nn.Parameter:
    """The parameter itself, even where `prepare_` shows an encoded copy in its place."""
    found = layer._parameters[name]
    assert found is not None
    return found


def _weights(layer: nn.Module) -> list[str]:
    """W_x, W_h and the projection, if there is one, of every layer and direction."""
    return [name for name in parameter_names(layer) if name.startswith("weight_")]


def _facts(layer: nn.Module) -> tuple[str, bool]:
    """The letters of a recurrent layer's gates, and whether it is torch's own."""
    return kind_of(layer).letters, not isinstance(layer, Gated)


def _table_groups(model: nn.Module, uses: dict[nn.Parameter, list[Use]]) -> dict[nn.Parameter, str]:
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding | CompressedEmbedding)]
    groups = {p: "embedding" for m in embeddings if (p := m._parameters.get("weight")) is not None}
    sizes = {m.num_embeddings for m in embeddings}
    for parameter, places in uses.items():
        if any(use.is_softmax for use in places):
            groups.setdefault(parameter, "softmax")
    explicit = [m for m in model.modules() if hasattr(m, "softmax_parameters")]
    inside = {part for one in explicit for part in one.modules()}
    linears = [
        (m, p) for m in model.modules() if isinstance(m, nn.Linear) and (p := m._parameters.get("weight")) is not None
    ]
    for module, weight in linears:
        if type(module) is nn.Linear and module.out_features in sizes and module not in inside:
            groups.setdefault(weight, "softmax")
    for _, weight in linears:
        groups.setdefault(weight, "linear")
    return groups


def _why_no_table(use: Use) -> str | None:
    """Why weights that are used here can't be compressed; None if they can."""
    module = use.module
    for kind in (nn.Embedding, nn.Linear):
        if isinstance(module, kind) and type(module) not in (kind, *LINEAR):
            return f"{type(module).__name__} is a subclass of {kind.__name__} and may compute something else"
    if isinstance(module, nn.Embedding):
        return None if module.max_norm is None else "max_norm changes its weights whenever they are used"
    return None if isinstance(module, nn.Linear) or use.is_softmax else _shared(use)


def _shared(use: Use) -> str:
    return f"its weights are also {use.attribute!r} of {called(use.name)}"


_WILDCARDS = re.compile(r"[*?]|\[[^]]*\]")


class Rule(NamedTuple):
    """The names that a pattern matches, of modules or of parameters, and what it says about them."""

    pattern: str
    names: set[str]
    spec: Spec


def choose(model: nn.Module, found: Targets, spec: Spec) -> tuple[dict[str, Operations], list[Skipped]]:
    """The operations for each matrix that the spec mentions, `keep` too; and what it asks for in vain.

    Raises:
        G2Error: if a pattern matches nothing that can be compressed, or if two places that share a weight get different
            operations.
    """
    rules = _rules(model, found.matrices.values(), spec.patterns)
    chosen: dict[str, Operations] = {}
    covered: set[str] = set().union(*(_around(one.name) for one in found.skipped))
    for name, target in found.matrices.items():
        said = {}
        for use in target.uses:
            names = {*_around(use.name), use.parameter, f"{use.parameter}.{target.gate}"}
            base = Spec() if target.is_convolution else spec
            said[use] = _operations(names, target.group, target.is_plain, rules, base)
            covered |= names
        if len(set(said.values())) > 1:
            one = target.uses[0]
            other = next(use for use in said if said[use] != said[one])
            got = ["nothing" if said[use] is None else said[use] for use in (one, other)]
            raise G2Error(
                f"{one.parameter} and {other.parameter} are the same weights, but the spec has {got[0]} for one and "
                f"{got[1]} for the other; give both the same"
            )
        if (operations := said[target.uses[0]]) is not None:
            chosen[name] = operations
    if idle := [rule.pattern for rule in rules if not rule.names & covered and rule.spec != Spec.parse("keep")]:
        raise G2Error(f"nothing that {idle[0]!r} matches has weights that can be compressed; leave this pattern out")
    in_vain = [
        one
        for one in found.skipped
        if any(_operations(_around(one.name), group, False, rules, spec) for group in one.groups)
    ]
    return chosen, in_vain


def _rules(model: nn.Module, targets: Iterable[Target], patterns: Sequence[tuple[str, Spec]]) -> list[Rule]:
    """The most specific first; see `compression.spec`."""
    modules = [name for name, _ in model.named_modules(remove_duplicate=False)]
    parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    parameters += [f"{use.parameter}.{one.gate}" for one in targets if one.gate for use in one.uses]
    ranked: list[tuple[tuple[bool, int, int], Rule]] = []
    for number, (pattern, spec) in enumerate(patterns):
        named = matching(modules, pattern)
        matched = named or matching(parameters, pattern)
        if not matched:
            close = get_close_matches(pattern, [*modules, *parameters], n=3, cutoff=0.5)
            known = f"did you mean {', '.join(close)}?" if close else f"its modules: {', '.join(filter(None, modules))}"
            known = f"for the group, write {pattern}=..." if pattern in GROUPS else known
            raise G2Error(f"nothing in {type(model).__name__} has a name like {pattern!r}; {known}")
        ranked.append(((not named, len(_WILDCARDS.sub("", pattern)), number), Rule(pattern, set(matched), spec)))
    return [rule for _, rule in sorted(ranked, key=lambda pair: pair[0], reverse=True)]


def _around(name: str) -> set[str]:
    """A name and those of all modules that hold it; the model itself has none."""
    parts = name.split(".")
    return {"", *(".".join(parts[: k + 1]) for k in range(len(parts)))}


def _operations(names: set[str], group: str, is_plain: bool, rules: Iterable[Rule], base: Spec) -> Operations | None:
    for rule in rules:
        if names & rule.names and (said := rule.spec.operations(group, is_plain)) is not None:
            return said
    return base.operations(group, is_plain)
