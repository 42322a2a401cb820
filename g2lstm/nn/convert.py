"""Converts between torch's recurrent layers and ours, one or all in a model; outputs in evaluation stay the same."""

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from g2lstm.errors import G2Error
from g2lstm.nn.checks import check_module
from g2lstm.nn.gate import GateRule
from g2lstm.nn.gated import Gated, WithParameters
from g2lstm.nn.lstm import G2LSTM
from g2lstm.nn.survey import (
    TWINS,
    as_patterns,
    called,
    check_patterns,
    matches,
    parameter_names,
    survey,
    twin_of,
    weight_drop,
    why_not,
)

Model = TypeVar("Model", bound=nn.Module)
Recurrent = TypeVar("Recurrent", bound=nn.Module)

_OWN = (
    "method",
    "_tau",
    "noise_rate",
    "soft_rate",
    "gates",
    "_eval_gate",
    "weight_dropout",
    "backend",
    "_gate_listener",
)
_LISTS = ("_flat_weights", "_flat_weights_names", "_flat_weight_refs", "_all_weights")  # that torch keeps of parameters
_CELL = ("input_size", "hidden_size", "bias")
_GRU = (*_CELL, "num_layers", "batch_first", "dropout", "bidirectional")


def from_torch(module: nn.Module, kind: type[Recurrent], **options: Any) -> Recurrent:
    """A layer of ours with the same output in evaluation as torch's; see `G2LSTM.from_lstm`."""
    theirs = next(theirs for theirs, ours in TWINS.items() if issubclass(kind, ours))
    if not isinstance(module, theirs):
        raise G2Error(f"{kind.__name__} starts from a torch.nn.{theirs.__name__}, got {type(module).__name__}")
    if isinstance(module, Gated):
        raise G2Error(f"this layer already is a {type(module).__name__}; copy it with copy.deepcopy")
    if (why := why_not(module)) is not None:
        raise G2Error(f"this layer cannot be converted: {why}")
    layer = retype(module, kind, **options)
    _own_parameters(layer)
    _scale_rows([(layer, _evaluation_rule(layer))], invert=True)
    return layer


def to_torch(layer: WithParameters, kind: type[Recurrent]) -> Recurrent:
    """The layer of torch with the same output in evaluation; see `G2LSTM.to_lstm`."""
    if (why := why_not(layer)) is not None:
        raise G2Error(f"this layer cannot be turned into a torch.nn.{kind.__name__}: {why}")
    _refuse_hard(layer, "this layer")
    made = retype(layer, kind)
    _own_parameters(made)
    _scale_rows([(made, _evaluation_rule(layer))])
    return made


def convert_(
    model: Model,
    *,
    only: str | Iterable[str] | None = None,
    skip: str | Iterable[str] | None = None,
    strict: bool = False,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> Model:
    """Turns every `nn.LSTM`, `nn.GRU`, `nn.LSTMCell` and `nn.GRUCell` inside `model` into ours, in place.

    The output in evaluation stays the same, and so do the parameters as objects, so an optimiser made before still
    works. A method or `eval_gate` with a temperature in evaluation ("sharpened", "tempered") scales the gate rows to
    keep the output; hard gates change it, with a warning. DropConnect wrappers (`WeightDrop` of awd-lstm-lm,
    `WeightDropout` of fastai) give way to the layer inside, with their rate as its `weight_dropout`. Modules used in
    several places stay shared, but references that torch does not know of, such as those in a plain list, still point
    to the old layer.

    Nothing is skipped silently: a warning names each recurrent layer that may compute something else, such as a
    subclass or a parametrised layer, and is therefore left alone. `survey(model)` lists them all.

    Args:
        model: any module, or a single layer.
        only: pattern or patterns; only layers whose names match are converted. "encoder" and "enc*" match
            "encoder.lstm" too.
        skip: pattern or patterns of layers to leave as they are.
        strict: raise instead of warning if a layer cannot be converted; the model is then unchanged.
        overrides: options for layers whose names match a pattern, on top of the others.
        **options: arguments of `G2LSTM`: method, tau, noise_rate, gates, eval_gate, weight_dropout, backend.

    Returns:
        The model.

    Examples:
        >>> g2lstm.convert_(model, skip="decoder", noise_rate=0.1)
        >>> g2lstm.convert_(model, overrides={"encoder.*": {"tau": 0.5}})
    """
    check_module(model, "convert_")
    plans = _plan(model, as_patterns(only), as_patterns(skip), strict, options, overrides or {})
    made: dict[nn.Module, Any] = {}
    for old, chosen in plans:
        drop = weight_drop(old)
        if drop is None:
            made[old] = retype(old, TWINS[type(old)], **chosen)
        else:
            made[old] = retype(drop.layer, TWINS[type(drop.layer)], drop.raw, **{"weight_dropout": drop.rate, **chosen})
            made[old].train(old.training)
    if any(layer.eval_gate == "hard" for layer in made.values()):
        warnings.warn("hard gates change the output in evaluation: torch's layers do not have them", stacklevel=2)
    rules = [(layer, _evaluation_rule(layer)) for layer in made.values()]
    _refuse_tied_elsewhere(model, set(made), rules)
    _scale_rows(rules, invert=True)
    return _become(model, replace_all(model, made))


def _plan(
    model: nn.Module,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    strict: bool,
    options: Mapping[str, Any],
    overrides: Mapping[str, Mapping[str, Any]],
) -> list[tuple[nn.Module, dict[str, Any]]]:
    """The modules to convert, each with its options; raises or warns about everything else before any change."""
    if isinstance(model, torch.jit.ScriptModule):
        raise G2Error(f"{type(model).__name__} is scripted; call convert_ on the model before torch.jit.script")
    found = survey(model)
    if not found:
        raise G2Error(f"found no recurrent layer inside {type(model).__name__}; there is nothing to convert")
    names: dict[nn.Module, list[str]] = {model.get_submodule(row.name): [] for row in found}
    for name, module in model.named_modules(remove_duplicate=False):  # a shared module has several names
        if module in names:
            names[module].append(name)
    check_patterns((*only, *skip, *overrides), [name for each in names.values() for name in each], "recurrent layers")
    plans, left, converted = [], [], []
    for row, (module, called_so) in zip(found, names.items(), strict=True):
        if (only and not _is_about(only, called_so)) or _is_about(skip, called_so):
            continue
        chosen = _options_of(called_so, options, overrides)
        if row.status == "left alone":
            left.append((called(row.name), row.why))
            continue
        drop = weight_drop(module)
        kind = type(module) if drop is None else type(drop.layer)
        try:  # a wrong option is reported before anything is changed
            TWINS.get(kind, G2LSTM)(1, 1, device="meta", **chosen)
        except G2Error as error:
            raise G2Error(f"{called(row.name)}: {error}; overrides= gives some layers other options") from None
        if row.status == "convertible":
            plans.append((module, chosen))
        elif chosen:
            converted.append((called(row.name), f"it already is a {row.kind}"))
    if left and strict:
        each = "; ".join(f"{name}: {why}" for name, why in left)
        raise G2Error(f"cannot convert {each}. Nothing was changed; leave them out with skip=")
    for name, why in (*left, *converted):
        warnings.warn(f"convert_ leaves {name} alone: {why}", stacklevel=3)
    return plans


def _is_about(patterns: Iterable[str], names: Iterable[str]) -> bool:
    return any(matches(name, pattern) for pattern in patterns for name in names)


def _options_of(
    names: list[str], options: Mapping[str, Any], overrides: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The options of a layer; raises if it is shared under names that ask for different ones."""
    each = []
    for name in names:
        chosen = dict(options)
        for pattern, more in overrides.items():
            if matches(name, pattern):
                chosen |= more
        each.append(chosen)
    if any(one != each[0] for one in each):
        raise G2Error(f"{' and '.join(names)} are one shared layer, but overrides= gives them different options")
    return each[0]


def freeze_(model: Model) -> Model:
    """Turns every layer of ours inside `model` into torch's own with the same output in evaluation, in place.

    The opposite of `convert_`, for deployment: the result does not need g2lstm. The parameters stay the same objects,
    so compressed layers, which have none, are refused.

    Returns:
        The model.
    """
    check_module(model, "freeze_")
    wanted: dict[str, Any] = {}
    for name, module in model.named_modules():
        if not isinstance(module, Gated):
            continue
        if not isinstance(module, WithParameters):
            raise G2Error(
                f"{called(name)} is a {type(module).__name__}, which has no parameters that a layer of torch's could "
                "take over; its to_dense() makes new ones, or freeze the model that it was made from"
            )
        if (why := why_not(module)) is not None:
            warnings.warn(f"freeze_ leaves {called(name)} alone: {why}", stacklevel=2)
        else:
            wanted[name] = module
    for name, layer in wanted.items():
        _refuse_hard(layer, called(name))
    made: dict[nn.Module, nn.Module] = {layer: retype(layer, twin_of(layer)) for layer in wanted.values()}
    rules = [(layer, _evaluation_rule(layer)) for layer in wanted.values()]
    _refuse_tied_elsewhere(model, set(made), rules)
    _scale_rows(rules)
    return _become(model, replace_all(model, made))


def _become(model: Model, new: nn.Module) -> Model:
    """Turns the very object `model` into `new`, if it is another: a layer by itself has no parent to be replaced in."""
    if new is not model:
        object.__setattr__(model, "__dict__", vars(new))
        object.__setattr__(model, "__class__", type(new))
    return model


def shape_of(layer: nn.Module) -> dict[str, Any]:
    """The arguments that a layer of torch and ours of the same kind share, as this one has them."""
    names = _GRU if isinstance(layer, nn.GRU) else (*_GRU, "proj_size")
    return {name: getattr(layer, name) for name in (_CELL if isinstance(layer, nn.RNNCellBase) else names)}


def retype(
    old: nn.Module, kind: Callable[..., Recurrent], raw: Mapping[str, nn.Parameter] | None = None, **options: Any
) -> Recurrent:
    """A layer of another class that holds the very parameters of `old`, unscaled; those in `raw` instead of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about dropout with one layer: it came when `old` was made
        new = kind(**shape_of(old), device="meta", **options)
    for name in parameter_names(old):
        if name in vars(old) and name in old._parameters:
            raise G2Error(
                f"the {type(old).__name__} is prepared for compression, so its {name} is not what is trained; call "
                "g2lstm.unprepare_ on the model first"
            )
        setattr(new, name, raw[name] if raw and name in raw else getattr(old, name))
    new.train(old.training)
    if isinstance(new, nn.RNNBase):
        new.flatten_parameters()
    return new


def _own_parameters(layer: nn.Module) -> None:
    """Gives the layer copies of the parameters it shares with the one it was made from."""
    for name in parameter_names(layer):
        parameter = getattr(layer, name)
        setattr(layer, name, nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad))
    if isinstance(layer, nn.RNNBase):
        layer.flatten_parameters()


def _evaluation_rule(layer: Any) -> GateRule:
    """The gates of a layer of ours in evaluation, whatever its mode, as far as weights can express them."""
    return dataclasses.replace(layer.gate_rule(training=False), hard=False)


def _scaled_names(layer: nn.Module) -> list[str]:
    return [name for name in parameter_names(layer) if not name.startswith("weight_hr")]


@torch.no_grad()
def _scale_rows(rules: list[tuple[Any, GateRule]], invert: bool = False) -> None:
    """Folds each layer's temperature into its gate rows, in place, or takes it out again; shared weights only once."""
    done: set[nn.Parameter] = set()
    for layer, rule in rules:
        for name in _scaled_names(layer):
            parameter = getattr(layer, name)
            if rule.is_plain or parameter in done:
                continue
            rows = rule.row_scale(layer.hidden_size, parameter)
            rows = rows.reciprocal() if invert else rows
            parameter.mul_(rows if parameter.dim() == 1 else rows.unsqueeze(1))
            done.add(parameter)


def _refuse_tied_elsewhere(model: nn.Module, replaced: set[nn.Module], rules: list[tuple[Any, GateRule]]) -> None:
    """Raises if a weight that will be scaled has another use, which would change too."""
    rule_of: dict[nn.Parameter, GateRule] = {}
    for layer, rule in rules:
        for name in _scaled_names(layer):
            other = rule_of.setdefault(getattr(layer, name), rule)
            if other != rule and not (other.is_plain and rule.is_plain):
                raise G2Error(
                    f"two layers share their {name} but not their temperature in evaluation, so no weights suit both; "
                    "give them the same method, tau and eval_gate first"
                )
    for module_name, module in model.named_modules():
        if module in replaced:
            continue
        for name, parameter in module._parameters.items():
            if parameter is not None and not rule_of.get(parameter, GateRule()).is_plain:
                raise G2Error(
                    f"the weights of a layer are also {called(module_name)}'s {name}, and a temperature in evaluation "
                    "would scale them there too; untie them first, or use a method and eval_gate without one"
                )


def _refuse_hard(layer: Gated, name: str) -> None:
    if layer.eval_gate == "hard":
        raise G2Error(
            f"{name} evaluates hard gates, 1[a >= 0], which torch's layers cannot express; "
            f"set eval_gate='soft' first, or keep the {type(layer).__name__}"
        )


def replace_all(model: Model, made: Mapping[nn.Module, nn.Module]) -> Model:
    """Puts each new module in the place of its old one, wherever that is used, with its hooks and attributes."""
    for old, new in made.items():
        for name, value in vars(old).items():
            is_foreign = name in _OWN and not isinstance(new, Gated)
            if is_foreign or (name in _LISTS and not issubclass(type(new), nn.RNNBase)):
                continue
            is_hooks = name.endswith("_hooks") or "_hooks_" in name or name == "_is_full_backward_hook"
            if is_hooks or name not in vars(new):
                new.__dict__[name] = value  # the dicts themselves: handles from before can still remove their hooks
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in made:
                parent._modules[name] = made[child]
    return made.get(model, model)  # type: ignore[return-value]
