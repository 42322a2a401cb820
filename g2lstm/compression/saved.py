"""`save` and `load_into`: a compressed model in one safetensors file, which a runtime without torch can step too.

For it, the file holds the structure of the model: a list of steps, each a table with its kind and the names of its
weights. A model has one if its forward is a single chain of the kinds below, which torch.fx finds out.
"""

import inspect
import json
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from g2lstm.compression import storage
from g2lstm.compression.encodings.base import brief
from g2lstm.compression.model import copied, encoded_matrices, install_, refuse_scripted
from g2lstm.compression.modules import Compressed, CompressedConvolution, CompressedEmbedding, EncodedMatrix
from g2lstm.compression.recurrent import why_no_session
from g2lstm.compression.spec import Spec
from g2lstm.compression.stream import Streamable
from g2lstm.errors import G2Error
from g2lstm.files import write_whole
from g2lstm.nn.checks import check_module
from g2lstm.nn.convert import Model
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
    raise G2Error(f"its forward is more than a chain of layers: it computes {what}")


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
        raise G2Error(f"{name}, {type(module).__name__}, is not a layer of a plain chain")
    return {"kind": kind} if kind else {}


def save(model: nn.Module, path: str | Path) -> None:
    """Writes a compressed model to a safetensors file, packed: the file is as small as the encodings are.

    `load_into` puts it into a model again. If the model is a plain chain of layers, the file also records their
    order, so `g2lstm.runtime.load` can step it without torch.

    Args:
        model: from `compress`.
        path: the file; one that exists is replaced only when the new one is complete.
    """
    write_whole(Path(path), content_of(model))


def content_of(model: nn.Module) -> bytes:
    """What `save` writes."""
    check_module(model, "save")
    if not (matrices := encoded_matrices(model)):
        raise G2Error(
            f"{type(model).__name__} is not compressed; pass the result of g2lstm.compress, or save a plain model with "
            "safetensors.torch.save_model"
        )
    others = _plain_tensors(model)
    if broken := [name for name, tensor in others.items() if not tensor.isfinite().all()]:
        raise G2Error(f"{broken[0]} holds NaN or infinity, so the model can't be saved; replace those values first")
    return storage.save(matrices, others, Spec(), {storage.STRUCTURE: json.dumps(structure_of(model))})


def load_into(model: Model, path: str | Path) -> Model:
    """Gives a model the compressed weights of a file, in place; a file that does not fit changes nothing.

    Args:
        model: a model of the same architecture, as it was before `compress`; its weights are replaced.
        path: a file from `save`.

    Returns:
        The model in evaluation mode; if it is a recurrent layer itself, the new one.

    Examples:
        >>> g2lstm.save(small, "small.safetensors")
        >>> restored = g2lstm.load_into(MyModel(), "small.safetensors")
    """
    check_module(model, "load_into")
    refuse_scripted(model)
    if any(one.is_meta for one in (*model.parameters(), *model.buffers())):
        raise G2Error(
            f"{type(model).__name__} is on the meta device, where weights have no values; build it on the CPU"
        )
    stored = storage.load(Path(path))
    skeleton = install_(_without_weights(model), stored.matrices)  # the model itself must not be half replaced
    expected = {name: tuple(tensor.shape) for name, tensor in _plain_tensors(skeleton).items()}
    found = {name: tuple(tensor.shape) for name, tensor in stored.others.items()}
    if wrong := sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)):
        got, wanted = (shapes.get(wrong[0], "nothing") for shapes in (found, expected))
        raise G2Error(f"{path} does not fit {type(model).__name__}: {brief(wrong[0])} is {got}, expected {wanted}")
    made = install_(model, stored.matrices)
    made.load_state_dict(made.state_dict() | stored.others)
    return made.eval()


class HubMixin:
    """Lets `save_pretrained`, `push_to_hub` and `from_pretrained` of huggingface_hub take compressed models too.

    Put it before huggingface_hub's mixin, which does the rest. A folder then holds model.safetensors as `save` writes
    it, and `from_pretrained` returns the compressed model. Other models are saved and loaded as usual. A
    `PreTrainedModel` of transformers reads its files in another way: use `save` and `load_into` with it.

    Examples:
        >>> class Tagger(nn.Module, g2lstm.HubMixin, huggingface_hub.PyTorchModelHubMixin): ...
        >>> g2lstm.compress(Tagger(hidden=64), "small").save_pretrained("tagger")
        >>> small = Tagger.from_pretrained("tagger")
    """

    def _save_pretrained(self, save_directory: Path) -> None:
        assert isinstance(self, nn.Module)
        if encoded_matrices(self):
            save(self, save_directory / "model.safetensors")
        else:
            super()._save_pretrained(save_directory)  # type: ignore[misc]

    @classmethod
    def _load_as_safetensor(cls, model: Any, model_file: str, map_location: str, strict: bool) -> Any:
        with safetensors.safe_open(model_file, framework="pt") as file:
            is_packed = storage.HEADER in (file.metadata() or {})
        if is_packed:
            return load_into(model, model_file).to(map_location)
        loaded = super()._load_as_safetensor(model, model_file, map_location, strict)  # type: ignore[misc]
        return loaded.eval()  # before version 1, huggingface_hub forgets to

    def generate_model_card(self, *args: Any, **options: Any) -> Any:
        """The card of huggingface_hub, which also says how small the weights are."""
        assert isinstance(self, nn.Module)
        card = super().generate_model_card(*args, **options)  # type: ignore[misc]
        if matrices := encoded_matrices(self):
            weights = sum(one.shape[0] * one.shape[1] for one in matrices.values())
            bits = 8 * sum(one.stored_bytes for one in matrices.values()) / weights
            card.data.tags = sorted({*(card.data.tags or []), "g2lstm", "compressed"})
            card.text += (
                f"\ng2lstm packed its {weights:,} matrix weights into {bits:.2f} bits per weight. To load them, its "
                "class needs `g2lstm.HubMixin` before `PyTorchModelHubMixin`.\n"
            )
        return card


def _plain_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and persistent buffers that are not encoded; tied ones once."""
    kept = model.state_dict().keys()
    encoded = {
        id(tensor) for module in model.modules() if isinstance(module, EncodedMatrix) for tensor in module.buffers()
    }
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor for name, tensor in named if name in kept and id(tensor) not in encoded}


def _without_weights(model: Model) -> Model:
    """A copy on the meta device, which takes no memory."""
    memo: dict[int, object] = {
        id(p): nn.Parameter(p.detach().to("meta"), requires_grad=p.requires_grad) for p in model.parameters()
    }
    memo |= {id(buffer): buffer.detach().to("meta") for buffer in model.buffers()}
    return copied(model, memo)
