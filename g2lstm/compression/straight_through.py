"""Weights in training that forward calls see as they will be stored, while the optimiser sees them in full.

Each parameter stays what and where it is. Its encoded and decoded copy is an attribute of the same name, which Python
finds before the parameter, with a gradient that goes straight through to the parameter. Hooks renew the copy before a
forward call if the parameter has changed.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from g2lstm.compression.encodings import Encoding
from g2lstm.compression.spec import Operations, Spec, encode
from g2lstm.errors import G2Error
from g2lstm.nn.convert import Model


class Part(NamedTuple):
    """A matrix inside a parameter: its name, its rows and what is done to them."""

    name: str
    rows: slice
    operations: Operations


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, decoded: Tensor) -> Tensor:
        return decoded.view_as(decoded)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def _copy(decoded: Tensor, memo: Any) -> Tensor:
    return decoded.clone()


class Master:
    """A parameter in training, and its encoded copy.

    Args:
        module: a module that has the parameter.
        attribute: its name there.
        parts: its matrices that are encoded; other rows stay as they are.
    """

    def __init__(self, module: nn.Module, attribute: str, parts: list[Part]) -> None:
        self.module, self.attribute, self.parts = module, attribute, parts
        self.encodings: dict[int | None, Encoding] = {}  # by the first row of each part
        self._encoded: Tensor | None = None  # the values that were encoded
        self._decoded = self._seen = torch.empty(0)

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter as it is now; torch replaces the object in some conversions."""
        found = self.module._parameters[self.attribute]
        assert found is not None
        return found

    def seen(self) -> Tensor:
        """The decoded values of the parameter as it is now, with a straight-through gradient."""
        parameter, before = self.parameter, self._encoded
        values = parameter.detach()
        is_alike = before is not None and (before.device, before.dtype) == (values.device, values.dtype)
        # Counters of versions would not do: fused optimisers, and whoever changes `p.data`, leave them as they are.
        if before is None or not is_alike or not torch.equal(values, before):
            self._encode(values)
        elif self._seen.requires_grad == parameter.requires_grad:
            return self._seen
        with torch.inference_mode(False), torch.enable_grad():
            self._seen = _StraightThrough.apply(parameter, self._decoded)
        # Torch copies no tensor with a history; the copy of a module gets a new one at its first call.
        self._seen.__deepcopy__ = partial(_copy, self._decoded)  # type: ignore[method-assign]
        return self._seen

    def _encode(self, values: Tensor) -> None:
        with torch.inference_mode(False), torch.no_grad():
            encoded, decoded = values.clone(), values.clone()
            for part in self.parts:
                try:
                    one = encode(values[part.rows].flatten(1), part.operations, quickly=True)
                except G2Error as error:
                    raise G2Error(f"can't compress {part.name}: {error}") from None
                decoded[part.rows] = torch.from_numpy(one.decode()).to(decoded).view_as(decoded[part.rows])
                self.encodings[part.rows.start] = one
        self._encoded, self._decoded = encoded, decoded


class Preparation:
    """The hooks of a prepared model: they show encoded weights to its forward calls, and to those of its parts.

    Args:
        model: the model.
        spec: what it is prepared for.
        modules: for each module that uses encoded parameters, which, by attribute.
    """

    def __init__(self, model: nn.Module, spec: Spec, modules: Mapping[nn.Module, Mapping[str, Master]]) -> None:
        self.model, self.spec = model, spec
        self._modules = {module: dict(attributes) for module, attributes in modules.items()}
        self._is_inside = False  # a call of the model itself, before which everything was renewed
        self.renew()
        self._handles = [one.register_forward_pre_hook(self._before_part, prepend=True) for one in modules]
        self._handles.append(model.register_forward_pre_hook(self._before_model, prepend=True))
        self._handles.append(model.register_forward_hook(self._after_model, always_call=True))

    def renew(self) -> None:
        """Encodes what has changed."""
        for module in self._modules:
            self._renew(module)

    @torch._disable_dynamo  # type: ignore[attr-defined]  # unlike torch.compiler.disable it does not import the compiler now
    def _renew(self, module: nn.Module) -> None:
        for attribute, master in self._modules[module].items():
            _show(module, attribute, master.seen())

    def _before_model(self, model: nn.Module, _: Any) -> None:
        self.renew()
        self._is_inside = True

    def _after_model(self, model: nn.Module, *_: Any) -> None:
        self._is_inside = False

    def _before_part(self, module: nn.Module, _: Any) -> None:
        if not self._is_inside:
            self._renew(module)

    def encoding(self, parameter: nn.Parameter, rows: slice) -> Encoding | None:
        """What forward calls see of these rows of a parameter, as it is now; None if that is the parameter itself."""
        for attributes in self._modules.values():
            for master in attributes.values():
                if master.parameter is parameter:
                    master.seen()
                    return master.encodings.get(rows.start)
        return None

    def remove(self) -> None:
        """Takes the hooks away, so that forward calls see the parameters themselves."""
        for handle in self._handles:
            handle.remove()
        for module, attributes in self._modules.items():
            for attribute, master in attributes.items():
                vars(module).pop(attribute, None)
                _show(module, attribute, master.parameter)


def preparations(model: nn.Module) -> list[Preparation]:
    """Those of a model and of its parts."""
    hooks = [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
    owners = (getattr(hook, "__self__", None) for hook in hooks)
    return list({id(one): one for one in owners if isinstance(one, Preparation)}.values())


def _show(module: nn.Module, attribute: str, tensor: Tensor) -> None:
    if not isinstance(tensor, nn.Parameter):
        vars(module)[attribute] = tensor
    if isinstance(module, nn.RNNBase):  # torch's own read their weights from this list
        module._flat_weights[module._flat_weights_names.index(attribute)] = tensor


def unprepare_(model: Model) -> Model:
    """Undoes `prepare_`, in place: forward calls see the parameters themselves again, as training has left them."""
    for one in preparations(model):
        one.remove()
    return model
