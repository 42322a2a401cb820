"""Between `torch.nn.LSTM` and `G2LSTM`, one layer or a whole model, with the same output in evaluation."""

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from g2lstm.errors import G2Error
from g2lstm.nn.gate import GateRule
from g2lstm.nn.lstm import G2LSTM

Model = TypeVar("Model", bound=nn.Module)

_SHAPE = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size")
_HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


def from_lstm(lstm: nn.LSTM, **options: Any) -> G2LSTM:
    """See `G2LSTM.from_lstm`."""
    layer = adopt(lstm, **options)
    _own_parameters(layer)
    _scale_rows(layer, _evaluation_rule(layer), invert=True)
    return layer


def to_lstm(layer: G2LSTM) -> nn.LSTM:
    """See `G2LSTM.to_lstm`."""
    rule = _evaluation_rule(layer)
    _refuse_hard(layer, "this layer")
    lstm = _abandon(layer)
    _own_parameters(lstm)
    _scale_rows(lstm, rule)
    return lstm


def convert_(model: Model, **options: Any) -> Model:
    """Turns every `torch.nn.LSTM` inside `model` into a `G2LSTM`, in place, with the same output in evaluation.

    The parameters stay the same objects, so that an optimiser made before goes on working; a method or `eval_gate`
    that has a temperature in evaluation ("sharpened", "tempered") scales their gate rows to keep the output. Modules
    used in several places stay shared. Subclasses of `nn.LSTM` and layers under a parametrisation may compute
    something else, so they are left alone, with a warning that names them.

    Args:
        model: any module. If it is an `nn.LSTM` itself, use the returned layer.
        **options: arguments of `G2LSTM`: method, tau, noise_rate, gates, eval_gate, weight_dropout, backend.

    Returns:
        The model.
    """
    for name, module in model.named_modules():
        if (why := _why_not(module)) is not None:
            warnings.warn(f"convert_ leaves {name or 'the model itself'} alone: {why}", stacklevel=2)
        elif type(module) is nn.LSTM:
            adopt(module, **options)  # a wrong option shows before anything is changed
    found = any(isinstance(module, nn.LSTM | G2LSTM) for module in model.modules())
    if not found:
        raise G2Error(f"found no torch.nn.LSTM inside {type(model).__name__}; there is nothing to convert")

    scaled: set[nn.Parameter] = set()

    def replace(lstm: nn.LSTM) -> G2LSTM:
        layer = adopt(lstm, **options)
        _move_hooks(lstm, layer)
        _scale_rows(layer, _evaluation_rule(layer), invert=True, scaled=scaled)
        return layer

    return _replace_all(model, lambda m: replace(m) if type(m) is nn.LSTM and _why_not(m) is None else m)


def freeze_(model: Model) -> Model:
    """Turns every `G2LSTM` inside `model` into a `torch.nn.LSTM` with the same output in evaluation, in place.

    The opposite of `convert_`, for deployment: what is left needs no g2lstm. The parameters stay the same objects.

    Returns:
        The model; if it is a `G2LSTM` itself, the new layer.
    """
    for name, module in model.named_modules():
        if isinstance(module, G2LSTM):
            _refuse_hard(module, name or "the model itself")

    scaled: set[nn.Parameter] = set()

    def replace(layer: G2LSTM) -> nn.LSTM:
        lstm = _abandon(layer)
        _move_hooks(layer, lstm)
        _scale_rows(lstm, _evaluation_rule(layer), scaled=scaled)
        return lstm

    return _replace_all(model, lambda m: replace(m) if isinstance(m, G2LSTM) else m)


def _why_not(module: nn.Module) -> str | None:
    """Why an LSTM cannot be converted; None for one that can, and for other modules."""
    if not isinstance(module, nn.LSTM):
        return None
    if type(module) is not nn.LSTM:
        return f"{type(module).__name__} is a subclass of torch.nn.LSTM and may compute something else"
    missing = [name for name in module._flat_weights_names if name not in module._parameters]
    if missing:
        return f"its {missing[0]} is not a parameter (weight_norm or a like hook computes it)"
    return None


def adopt(lstm: nn.LSTM, **options: Any) -> G2LSTM:
    """A G2LSTM that holds the very parameters of `lstm`, unscaled."""
    return _retype(lstm, G2LSTM, **options)


def _abandon(layer: G2LSTM) -> nn.LSTM:
    """An nn.LSTM that holds the very parameters of `layer`, unscaled."""
    return _retype(layer, nn.LSTM)


Recurrent = TypeVar("Recurrent", nn.LSTM, G2LSTM)


def _retype(old: nn.RNNBase, kind: Callable[..., Recurrent], **options: Any) -> Recurrent:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # dropout with one layer: said when `old` was made
        new = kind(**{name: getattr(old, name) for name in _SHAPE}, device="meta", **options)
    for name in old._flat_weights_names:
        setattr(new, name, getattr(old, name))
    new.train(old.training)
    new.flatten_parameters()
    return new


def _move_hooks(old: nn.Module, new: nn.Module) -> None:
    for name in _HOOKS:
        getattr(new, name).update(getattr(old, name))


def _own_parameters(layer: nn.RNNBase) -> None:
    """Gives the layer copies of the parameters it shares with the one it was made from."""
    for name in layer._flat_weights_names:
        parameter = getattr(layer, name)
        setattr(layer, name, nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad))
    layer.flatten_parameters()


def _evaluation_rule(layer: G2LSTM) -> GateRule:
    """The layer's gates in evaluation, whatever mode it is in."""
    tau = (
        layer.tau
        if layer.method == "sharpened" or (layer.method == "gumbel" and layer.eval_gate == "tempered")
        else 1.0
    )
    return GateRule(tau, layer.gates)


@torch.no_grad()
def _scale_rows(
    layer: nn.RNNBase, rule: GateRule, invert: bool = False, scaled: set[nn.Parameter] | None = None
) -> None:
    """Folds the rule's temperature into the gate rows of all weights and biases, in place; or takes it out again.

    Parameters in `scaled` are left as they are, and those done are added: layers may share their weights.
    """
    scaled = set() if scaled is None else scaled
    for name in layer._flat_weights_names:
        parameter = getattr(layer, name)
        if rule.is_plain or name.startswith("weight_hr") or parameter in scaled:
            continue
        rows = rule.row_scale(layer.hidden_size, parameter)
        rows = rows.reciprocal() if invert else rows
        parameter.mul_(rows if parameter.dim() == 1 else rows.unsqueeze(1))
        scaled.add(parameter)


def _refuse_hard(layer: G2LSTM, name: str) -> None:
    if layer.eval_gate == "hard":
        raise G2Error(
            f"{name} evaluates hard gates, 1[a >= 0], which torch.nn.LSTM cannot express; "
            "set eval_gate='soft' first, or keep the G2LSTM"
        )


def _replace_all(model: Model, replacement: Callable[[nn.Module], nn.Module]) -> Model:
    """Puts replacement(m) in the place of every module m; one used in several places is replaced once."""
    made: dict[int, nn.Module] = {}

    def once(module: nn.Module) -> nn.Module:
        if id(module) not in made:
            made[id(module)] = replacement(module)
        return made[id(module)]

    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and (new := once(child)) is not child:
                parent._modules[name] = new
    return once(model)  # type: ignore[return-value]
