"""The layers with our gates inside a model: finds them, sets how they evaluate, records and shows their gates."""

import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from html import escape
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

from g2lstm.errors import G2Error
from g2lstm.nn.checks import check_module
from g2lstm.nn.convert import retype
from g2lstm.nn.gate import Gates
from g2lstm.nn.gated import Gated
from g2lstm.nn.lstm import GatedLSTM
from g2lstm.nn.survey import TWINS, aligned, called, why_not


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
        model: with or without layers of ours.
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
    """The gates of each recurrent layer inside a model, by its name there: one `Gates` per forward call, in order.

    A model that is itself such a layer has the name "".
    """

    def __init__(self, names: list[str]) -> None:
        self._calls: dict[str, list[Gates]] = {name: [] for name in names}

    def __getitem__(self, name: str) -> list[Gates]:
        return self._calls[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def show(self) -> None:
        """Shows how open the gates were: a table with histograms, as HTML in a notebook, as text elsewhere."""
        notebook = sys.modules.get("IPython")
        if notebook is not None and "ZMQ" in type(notebook.get_ipython()).__name__:
            notebook.display.display(self)
        else:
            print(self)  # noqa: T201  (this is what it is for)

    @property
    def saturation(self) -> float:
        """The share of sampled gates (input and forget; reset and update) below 0.1 or above 0.9; NaN before a call."""
        near = total = 0
        for gates in chain.from_iterable(self.values()):
            for name in ("input", "forget", "reset", "update"):
                for values in gates.named.get(name, ()):
                    near += int(((values < 0.1) | (values > 0.9)).sum())
                    total += int((~values.isnan()).sum())
        return near / total if total else math.nan


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
    check_module(model, "record_gates")
    kinds: tuple[type[nn.Module], ...] = (Gated, *TWINS)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, kinds)}
    for name in list(layers):
        if not isinstance(layers[name], Gated) and (why := why_not(layers[name])) is not None:
            warnings.warn(f"the gates of {called(name)} are not recorded: {why}", stacklevel=3)
            del layers[name]
    if not layers:
        raise G2Error(f"found no LSTM, GRU or cell inside {type(model).__name__}; there are no gates to record")
    record = GateRecord(list(layers))
    with ExitStack() as stack:
        for name, layer in layers.items():
            if isinstance(layer, Gated):
                if layer._gate_listener is not None:
                    raise G2Error(f"the gates of {called(name)} are already being recorded; end that block first")
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
            f"{called(name)} is a torch.nn.{type(layer).__name__} in training with dropout between its layers, "
            "so its gates can't be seen from outside; call model.eval(), or g2lstm.convert_(model, method='sigmoid') "
            "first"
        )
    with torch.no_grad():
        *_, gates = retype(layer, TWINS[type(layer)], method="sigmoid")(*args, **kwargs, return_gates=True)
    calls.append(gates)


_BINS = 20
_BARS = " ▁▂▃▄▅▆▇█"
HEADINGS = ("layer", "gate", "mean", "below 0.1", "above 0.9", "0 … 1")


class GateRow(NamedTuple):
    """One gate of one layer and direction, over all recorded calls."""

    layer: str
    gate: str
    mean: float
    near_zero: float  # share
    near_one: float
    histogram: tuple[float, ...]  # shares of equal bins from 0 to 1
    is_binary: bool  # whether all values are 0 or 1

    def cells(self) -> tuple[str, ...]:
        """All but the histogram, as text."""
        return (self.layer, self.gate, f"{self.mean:.2f}", f"{self.near_zero:.0%}", f"{self.near_one:.0%}")


def gate_rows(record: Mapping[str, Sequence[Gates]]) -> Iterator[GateRow]:
    """A row for each gate that lies between 0 and 1."""
    for name, calls in record.items():
        for gate in [gate for gate in (calls[0].named if calls else ()) if gate != "candidate"]:
            each = list(zip(*(call.named[gate] for call in calls), strict=True))  # by layer and direction
            for index, tensors in enumerate(each):
                values = torch.cat([tensor.flatten() for tensor in tensors]).float()
                values = values[~values.isnan()]
                if len(values):
                    label = called(name) + (f"[{index}]" if len(each) > 1 else "")
                    counts = torch.histc(values, _BINS, 0.0, 1.0) / len(values)
                    zero, one = ((near / len(values)).item() for near in ((values < 0.1).sum(), (values > 0.9).sum()))
                    is_binary = bool(((values == 0) | (values == 1)).all())
                    yield GateRow(label, gate, values.mean().item(), zero, one, tuple(counts.tolist()), is_binary)


def as_text(record: Mapping[str, Sequence[Gates]]) -> str:
    """The table for a terminal."""
    rows = [HEADINGS, *((*row.cells(), _bars(row)) for row in gate_rows(record))]
    return aligned(rows) if len(rows) > 1 else "no gates recorded yet"


def as_html(record: Mapping[str, Sequence[Gates]]) -> str:
    """The table for a notebook."""
    rows = [f"<tr>{''.join(f'<th>{escape(text)}</th>' for text in HEADINGS)}</tr>"]
    for row in gate_rows(record):
        cells = "".join(f"<td>{escape(text)}</td>" for text in row.cells())
        rows.append(f"<tr>{cells}<td>{_picture(row)}</td></tr>")
    return f"<table>{''.join(rows)}</table>" if len(rows) > 1 else "<p>no gates recorded yet</p>"


def _bars(row: GateRow) -> str:
    if row.is_binary:
        open_bins = round(row.mean * _BINS)
        return f"closed {'░' * (_BINS - open_bins)}{'█' * open_bins} open"
    top = max(row.histogram) or 1.0
    return "".join(_BARS[round(share / top * (len(_BARS) - 1))] for share in row.histogram)


def _picture(row: GateRow) -> str:
    """Bars for the bins; for a binary gate two, as wide as they are frequent: closed pale, open dark."""
    width = 8 * _BINS
    if row.is_binary:
        closed = f'<rect y="8" width="{width * (1 - row.mean):.1f}" height="16" opacity="0.2"/>'
        bars = f'{closed}<rect x="{width * (1 - row.mean):.1f}" y="8" width="{width * row.mean:.1f}" height="16"/>'
    else:
        top = max(row.histogram) or 1.0
        bars = "".join(
            f'<rect x="{8 * k}" y="{32 * (1 - share / top):.1f}" width="7" height="{32 * share / top:.1f}"/>'
            for k, share in enumerate(row.histogram)
        )
    return f'<svg width="{width}" height="32" fill="currentColor">{bars}</svg>'
