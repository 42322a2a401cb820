"""The LSTMs inside a model: finds them, evaluates with them in one of three ways, and records their gates."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from g2lstm.errors import G2Error
from g2lstm.nn.convert import TWINS, retype, why_not
from g2lstm.nn.gate import Gates
from g2lstm.nn.gated import Gated
from g2lstm.nn.lstm import GatedLSTM


def lstms(model: nn.Module) -> list[GatedLSTM]:
    """Every LSTM with our gates inside a model, compressed ones too, in the order of the modules."""
    return [module for module in model.modules() if isinstance(module, GatedLSTM)]


def gated(model: nn.Module) -> list[Gated]:
    """Every layer with our gates inside a model: LSTMs, GRUs and cells."""
    return [module for module in model.modules() if isinstance(module, Gated)]


def set_eval_gate(model: nn.Module, eval_gate: str) -> None:
    """Sets how all layers compute their gates in evaluation: "soft", "tempered" or "hard"."""
    for layer in gated(model):
        layer.eval_gate = eval_gate


@contextmanager
def evaluating(model: nn.Module, eval_gate: str | None = None) -> Iterator[None]:
    """Puts the model into evaluation mode with these gates, and restores both at the end.

    Args:
        model: with or without `G2LSTM` layers.
        eval_gate: "soft", "tempered" or "hard"; None to leave them as they are.
    """
    layers = gated(model)
    modes, gates = [(module, module.training) for module in model.modules()], [layer.options() for layer in layers]
    try:
        model.eval()
        if eval_gate is not None:
            set_eval_gate(model, eval_gate)
        yield
    finally:
        model.train(modes[0][1])  # the model itself comes first; modules may do more in `train` than set their mode
        for module, was_training in modes:
            module.training = was_training
        for layer, gate in zip(layers, gates, strict=True):
            layer.eval_gate = gate["eval_gate"]


class GateRecord(Mapping[str, list[Gates]]):
    """The gates of each LSTM inside a model, by its name there: one `Gates` per forward call, in order.

    A model that is itself an LSTM has the name "".
    """

    def __init__(self, names: list[str]) -> None:
        self._calls: dict[str, list[Gates]] = {name: [] for name in names}

    def __getitem__(self, name: str) -> list[Gates]:
        return self._calls[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)


@contextmanager
def record_gates(model: nn.Module) -> Iterator[GateRecord]:
    """Records the gates of every LSTM, GRU and cell inside `model`, ours or torch's, while the block runs.

    Recording changes neither outputs nor gradients nor random numbers. The values are detached. A layer of torch's own
    with dropout between its layers can be recorded in evaluation only, because its masks are hidden.

    Examples:
        >>> with g2lstm.record_gates(model) as record:
        ...     model(x)
        >>> print(record["encoder.lstm"][0].forget[0].mean())
    """
    kinds: tuple[type[nn.Module], ...] = (Gated, *TWINS)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
    for name in list(layers):
        if not isinstance(layers[name], Gated) and (why := why_not(layers[name])) is not None:
            warnings.warn(f"the gates of {name or 'the model'} are not recorded: {why}", stacklevel=3)
            del layers[name]
    if not layers:
        raise G2Error(f"found no LSTM, GRU or cell inside {type(model).__name__}; there are no gates to record")
    record = GateRecord(list(layers))
    with ExitStack() as stack:
        for name, layer in layers.items():
            if isinstance(layer, Gated):
                if layer._gate_listener is not None:
                    raise G2Error(
                        f"the gates of {name or 'the model'} are already being recorded; end that block first"
                    )
                layer._gate_listener = record[name].append
                stack.callback(setattr, layer, "_gate_listener", None)
            else:
                hook = layer.register_forward_hook(partial(_record_plain, name, record[name]), with_kwargs=True)
                stack.callback(hook.remove)
        yield record


def _record_plain(
    name: str, calls: list[Gates], layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _output: Any
) -> None:
    if isinstance(layer, nn.RNNBase) and layer.training and layer.dropout > 0 and layer.num_layers > 1:
        raise G2Error(
            f"{name or 'the model'} is a torch.nn.{type(layer).__name__} in training with dropout between its layers, "
            "so its gates can't be seen from outside; call model.eval(), or g2lstm.convert_(model, method='sigmoid') "
            "first"
        )
    with torch.no_grad():
        *_, gates = retype(layer, TWINS[type(layer)], method="sigmoid")(*args, **kwargs, return_gates=True)
    calls.append(gates)
