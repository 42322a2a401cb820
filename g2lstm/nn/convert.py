"""Converts between `torch.nn.LSTM` and `G2LSTM`, one layer or a whole model, and keeps the output in evaluation."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from g2lstm.errors import G2Error
from g2lstm.nn.cells import G2GRUCell, G2LSTMCell
from g2lstm.nn.gate import GateRule
from g2lstm.nn.gated import Gated, WithParameters
from g2lstm.nn.gru import G2GRU
from g2lstm.nn.lstm import G2LSTM, GatedLSTM

Model = TypeVar("Model", bound=nn.Module)
Recurrent = TypeVar("Recurrent", bound=nn.Module)

TWINS: dict[type[nn.Module], type[WithParameters]] = {
    nn.LSTM: G2LSTM, nn.GRU: G2GRU, nn.LSTMCell: G2LSTMCell, nn.GRUCell: G2GRUCell,
}  # fmt: skip
_OWN = ("method", "_tau", "noise_rate", "gates", "_eval_gate", "weight_dropout", "backend", "_gate_listener")
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


def convert_(model: Model, **options: Any) -> Model:
    """Turns every `torch.nn.LSTM` inside `model` into a `G2LSTM`, in place, with the same output in evaluation.

    The parameters stay the same objects, so an optimiser made before still works. A method or `eval_gate` with a
    temperature in evaluation ("sharpened", "tempered") scales their gate rows to keep the output; hard gates change
    it, with a warning. Modules used in several places stay shared, but references that torch does not know of, such as
    those in a plain list, still point to the old layer. Subclasses of `nn.LSTM`, parametrised layers and layers with
    parts of their own may compute something else, so they are left alone, with a warning that names them; so are
    layers that already are `G2LSTM`.

    Args:
        model: any module. If it is itself an `nn.LSTM`, use the returned layer.
        **options: arguments of `G2LSTM`: method, tau, noise_rate, gates, eval_gate, weight_dropout, backend.

    Returns:
        The model.
    """
    G2LSTM(1, 2, **options, device="meta")  # reports a wrong option before anything is changed
    wanted = dict(_convertible(model, nn.LSTM, "convert_"))
    for name, module in model.named_modules():
        if isinstance(module, G2LSTM) and options:
            warnings.warn(f"convert_ leaves {_called(name)} alone: it already is a G2LSTM", stacklevel=2)
    if not any(isinstance(module, nn.LSTM | G2LSTM) for module in model.modules()):
        raise G2Error(f"found no torch.nn.LSTM inside {type(model).__name__}; there is nothing to convert")
    if wanted and options.get("eval_gate") == "hard":
        warnings.warn("hard gates change the output in evaluation: no torch.nn.LSTM has them", stacklevel=2)
    made: dict[nn.Module, nn.Module] = {lstm: retype(lstm, G2LSTM, **options) for lstm in wanted.values()}
    rules = [(layer, _evaluation_rule(layer)) for layer in made.values()]
    _refuse_tied_elsewhere(model, set(made), rules)
    _scale_rows(rules, invert=True)
    return replace_all(model, made)


def freeze_(model: Model) -> Model:
    """Turns every `G2LSTM` inside `model` into a `torch.nn.LSTM` with the same output in evaluation, in place.

    The opposite of `convert_`, for deployment: the result does not need g2lstm. The parameters stay the same objects,
    so compressed layers, which have none, are refused.

    Returns:
        The model; if it is itself a `G2LSTM`, the new layer.
    """
    for name, module in model.named_modules():
        if isinstance(module, GatedLSTM) and not isinstance(module, G2LSTM):
            raise G2Error(
                f"{_called(name)} is a {type(module).__name__}, which has no parameters that a torch.nn.LSTM could go "
                "on with; its to_lstm() makes new ones, or freeze the model that it was made from"
            )
    wanted = dict(_convertible(model, G2LSTM, "freeze_"))
    for name, layer in wanted.items():
        _refuse_hard(layer, _called(name))
    made: dict[nn.Module, nn.Module] = {layer: retype(layer, nn.LSTM) for layer in wanted.values()}
    rules = [(layer, _evaluation_rule(layer)) for layer in wanted.values()]
    _refuse_tied_elsewhere(model, set(made), rules)
    _scale_rows(rules)
    return replace_all(model, made)


def why_not(module: nn.Module, kind: type[nn.Module] = nn.Module) -> str | None:
    """Why a recurrent layer of this kind can't be treated as a plain one; None if it can, or is something else."""
    plain = next((one for one in (*TWINS.values(), *TWINS) if isinstance(module, one)), None)
    if plain is None or not isinstance(module, kind):
        return None
    if type(module) is not plain:
        return f"{type(module).__name__} is a subclass of {plain.__name__} and may compute something else"
    names = parameter_names(module)
    missing = [name for name in names if name not in module._parameters]
    if missing:
        return f"its {missing[0]} is not a parameter (weight_norm or a similar hook computes it)"
    biases = () if module.bias else ("bias_ih", "bias_hh")  # those of a cell are there, but None
    own = {*module._parameters, *module._buffers, *module._modules} - {*names, *biases}
    if own:
        return f"it holds {sorted(own)[0]!r}, which no {plain.__name__} has"
    return None


def parameter_names(layer: nn.Module) -> list[str]:
    """The names of the parameters that a recurrent layer computes with, in torch's order."""
    if isinstance(layer, nn.RNNBase):
        return list(layer._flat_weights_names)
    return ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if layer.bias else [])]


def _called(name: str) -> str:
    return name or "the model itself"


def _convertible(model: nn.Module, kind: type[Recurrent], action: str) -> Iterator[tuple[str, Recurrent]]:
    """The layers of this kind by name; warns of those that are left alone."""
    for name, module in model.named_modules():
        if not isinstance(module, kind) or (isinstance(module, Gated) and not issubclass(kind, Gated)):
            continue
        if (why := why_not(module)) is not None:
            warnings.warn(f"{action} leaves {_called(name)} alone: {why}", stacklevel=3)
        else:
            yield name, module


def shape_of(layer: nn.Module) -> dict[str, Any]:
    """The arguments that a layer of torch and ours of the same kind share, as this one has them."""
    names = _GRU if isinstance(layer, nn.GRU) else (*_GRU, "proj_size")
    return {name: getattr(layer, name) for name in (_CELL if isinstance(layer, nn.RNNCellBase) else names)}


def retype(old: nn.Module, kind: Callable[..., Recurrent], **options: Any) -> Recurrent:
    """A layer of another class that holds the very parameters of `old`, unscaled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about dropout with one layer: it came when `old` was made
        new = kind(**shape_of(old), device="meta", **options)
    for name in parameter_names(old):
        setattr(new, name, getattr(old, name))
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
    is_tempered = layer.method == "gumbel" and layer.eval_gate == "tempered"
    return GateRule(layer.tau if layer.method == "sharpened" or is_tempered else 1.0, layer.gates)


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
                    f"the weights of an LSTM are also {_called(module_name)}'s {name}, and a temperature in evaluation "
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
            if is_foreign or (name in _LISTS and not isinstance(new, nn.RNNBase)):
                continue
            is_hooks = name.endswith("_hooks") or "_hooks_" in name or name == "_is_full_backward_hook"
            if is_hooks or name not in vars(new):
                new.__dict__[name] = value  # the dicts themselves: handles from before can still remove their hooks
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in made:
                parent._modules[name] = made[child]
    return made.get(model, model)  # type: ignore[return-value]
