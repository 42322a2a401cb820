"""How the layers of a model follow each other, for files that a runtime without torch can step.

A structure is a list of steps, each a table with its kind and the names of its weights in the file. A model has one if
its forward is a single chain of the kinds below, which torch.fx finds out.
"""

import inspect
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from g2lstm.compression.layers import why_no_session
from g2lstm.compression.model import copied, encoded_matrices
from g2lstm.compression.modules import Compressed, CompressedConvolution, CompressedEmbedding, EncodedMatrix
from g2lstm.compression.stream import Streamable
from g2lstm.errors import G2Error
from g2lstm.nn.gate import GateRule
from g2lstm.nn.gated import Gated
from g2lstm.nn.survey import kind_of

Step = dict[str, Any]

_LAYERS = nn.RNNBase | nn.RNNCellBase | nn.Embedding | nn.Linear | Compressed
# What is not here is no part of a chain; what becomes nothing does nothing in evaluation.
_FUNCTIONS: dict[Any, str] = {
    torch.relu: "relu", functional.relu: "relu", torch.tanh: "tanh", functional.tanh: "tanh",
    torch.sigmoid: "sigmoid", functional.sigmoid: "sigmoid", torch.softmax: "softmax", functional.softmax: "softmax",
    torch.log_softmax: "log_softmax", functional.log_softmax: "log_softmax", torch.argmax: "argmax",
    functional.dropout: "",
}  # fmt: skip
_METHODS = {name: name for name in ("relu", "tanh", "sigmoid", "softmax", "log_softmax", "argmax")} | {"contiguous": ""}
_MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.Softmax: "softmax", nn.LogSoftmax: "log_softmax",
    nn.Dropout: "", nn.Identity: "",
}  # fmt: skip
_OVER_FEATURES = ("softmax", "log_softmax", "argmax")
_LAST_STEP = (-1, (slice(None), -1), (slice(None), -1, slice(None)), (Ellipsis, -1, slice(None)))


def structure_of(model: nn.Module) -> list[Step] | str:
    """The structure of a compressed model, or for people why it has none."""
    names = {id(encoding): name for name, encoding in encoded_matrices(model).items()}
    names |= {id(parameter): name for name, parameter in model.named_parameters()}
    try:
        if isinstance(model, Streamable):
            return _token_steps(model, names)
        if isinstance(model, nn.RNNBase):
            return [_recurrent("", model)]
        # A forward that keeps something in the model would keep what fx gives it, so it gets a copy.
        own = copied(model, {id(one): one for one in (*model.parameters(), *model.buffers())})
        own_names = dict(zip(map(id, encoded_matrices(own).values()), encoded_matrices(model), strict=True))
        return _chain(own, names | own_names)
    except G2Error as error:
        return str(error)
    except Exception:  # whatever a user's forward does with what fx gives it
        return "its forward is more than a chain of layers"


def _token_steps(model: Streamable, names: Mapping[int, str]) -> list[Step]:
    assert isinstance(model, nn.Module)
    parts, modules = model.stream_parts(), {module: name for name, module in model.named_modules()}
    steps: list[Step] = [{"kind": "embedding", "weight": _weight_of(parts.embedding, names)}]
    for layer, residual in zip(parts.layers, parts.residual, strict=True):
        steps.append(_recurrent(modules[layer], layer) | {"residual": residual})
    softmax = {"kind": "linear", "weight": _weight_of(parts.softmax, names), "bias": names[id(parts.bias)]}
    return [*steps, softmax, {"kind": "log_softmax"}]


def _recurrent(name: str, layer: nn.Module) -> Step:
    if isinstance(layer, nn.RNNCellBase) or (why := why_no_session(layer)):
        reason = "a cell is a loop's, not a chain's" if isinstance(layer, nn.RNNCellBase) else why
        raise G2Error(f"{name or type(layer).__name__}: {reason}")
    kind = kind_of(layer)
    rule = layer.gate_rule(training=False) if isinstance(layer, Gated) else GateRule(gates=next(iter(kind.sampled)))
    facts = {"layers": layer.num_layers, "bias": layer.bias, "gates": rule.gates, "tau": rule.tau, "hard": rule.hard}
    return {"kind": kind.name.lower(), "name": name, **facts}


def _weight_of(table: nn.Module | Tensor, names: Mapping[int, str]) -> str:
    one = getattr(table, "encoded", table)
    held = one.encoding if isinstance(one, EncodedMatrix) else one if isinstance(one, Tensor) else one.weight
    return names[id(held)]


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Layers are the steps of a chain; what holds them is looked into."""
        return isinstance(m, _LAYERS) or super().is_leaf_module(m, module_qualified_name)


def _chain(model: nn.Module, names: Mapping[int, str]) -> list[Step]:
    """The steps from a model's first argument to what it returns."""
    _, *others = inspect.signature(model.forward).parameters.values()
    graph = _Tracer().trace(model, {one.name: one.default for one in others})
    modules, steps = dict(model.named_modules()), []
    node = next(node for node in graph.nodes if node.op == "output").args[0]
    while isinstance(node, tuple | list):
        node = node[0]
    while node.op != "placeholder":
        steps.append(_step(node, modules, names))
        node = node.args[0]
    chain = [step for step in reversed(steps) if step]
    if any(step["kind"] == "embedding" for step in chain[1:]):
        raise G2Error("an embedding is not its first layer")
    return chain


def _step(node: fx.Node, modules: Mapping[str, nn.Module], names: Mapping[int, str]) -> Step:
    """What a node does, with its first argument; nothing if it does nothing."""
    if node.op == "call_module":
        return _module_step(str(node.target), modules[str(node.target)], names)
    if node.target is operator.getitem:
        if node.args[1] == 0 or node.args[1] in _LAST_STEP:
            return {}
    elif node.op in ("call_function", "call_method"):
        kind = _FUNCTIONS.get(node.target) if node.op == "call_function" else _METHODS.get(str(node.target))
        dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
        if kind is not None and (kind not in _OVER_FEATURES or dim == -1):
            return {"kind": kind} if kind else {}
    what = getattr(node.target, "__name__", node.target)
    raise G2Error(f"its forward is more than a chain of layers, it computes {what}")


def _module_step(name: str, module: nn.Module, names: Mapping[int, str]) -> Step:
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return _recurrent(name, module)
    if isinstance(module, nn.Embedding | CompressedEmbedding):
        return {"kind": "embedding", "weight": _weight_of(module, names)}
    if type(module) is nn.Linear or (isinstance(module, Compressed) and not isinstance(module, CompressedConvolution)):
        bias = getattr(module, "bias", None)
        weight = _weight_of(module, names)
        return {"kind": "linear", "weight": weight, "bias": None if bias is None else names[id(bias)]}
    kind = _MODULES.get(type(module))
    if kind is None or (kind in _OVER_FEATURES and getattr(module, "dim", None) != -1):
        raise G2Error(f"{name}, {type(module).__name__}, is no layer of a plain chain")
    return {"kind": kind} if kind else {}
