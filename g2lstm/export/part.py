"""`Part`: a model, or one part of it, as a function of named tensors. Each part becomes one ONNX graph."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from itertools import combinations, islice
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from g2lstm.errors import G2Error
from g2lstm.export.layers import Layer, state_widths

Tensors = dict[str, Tensor]
Shape = tuple[int | str, ...]  # a name stands for a size that may differ in each call
_MOST_TRIES = 256  # which dimensions of size 1 may be larger
NEXT = "_next"  # the ending of outputs that the next call takes


class Part(nn.Module, ABC):
    """What one graph computes.

    Args:
        model: the model; its parameters become constants.
        inputs: an example of each input, in the order of the graph's.
        shapes: of the inputs, where they are known before tracing.

    Attributes:
        carried: outputs that the next call takes, with the inputs that they become.
    """

    def __init__(self, model: nn.Module, inputs: Tensors, shapes: Mapping[str, Shape] | None = None) -> None:
        super().__init__()
        self.model, self.inputs, self.shapes = model, inputs, dict(shapes or {})
        self.carried: dict[str, str] = {}

    @abstractmethod
    def compute(self, inputs: Tensors) -> Tensors:
        """From inputs to outputs, both by their names."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """As torch traces it."""
        return tuple(self.compute(dict(zip(self.inputs, inputs, strict=True))).values())

    def draw(self, sizes: Mapping[str, int], generator: torch.Generator) -> Tensors:
        """Random inputs of these sizes, made of the numbers that the examples hold."""
        drawn = {}
        for name, example in self.inputs.items():
            shape = [size if isinstance(size, int) else sizes[size] for size in self.shapes[name]]
            drawn[name] = example.flatten()[torch.randint(example.numel(), shape, generator=generator)]
        return drawn


class Exporter(ABC):
    """How one kind of model becomes parts.

    A model that knows its parts has a method `onnx_exporter()` that returns one. So can a trained model, which adds its
    tokenizers.

    Args:
        module: the model.

    Attributes:
        example: lines of Python that run the export, with {path} and {stem} for its name with and without its ending,
            and {begin} and {end} for the tokens that begin the output and end the input; None for a plain call.
        names: of the parts, each of which becomes a file.
        files: the content of further files, by the ending of their names.
        facts: what else is known about the model, for the description; a table of tokens may name those files.
    """

    example: ClassVar[str | None] = None
    names: ClassVar[tuple[str, ...]] = ("model",)

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.files: dict[str, bytes] = {}
        self.facts: dict[str, Any] = {}

    @abstractmethod
    def parts(self) -> dict[str, Part]:
        """The parts of the module, which is in evaluation mode, in float32 on the CPU."""


class LayerExporter(Exporter):
    """Exports a layer by itself, or several on top of each other."""

    example = """\
layer = ort.InferenceSession({path!r})
x, *state = (np.zeros([1 if isinstance(n, str) else n for n in one.shape], np.float32) for one in layer.get_inputs())
output, *state = layer.run(None, dict(zip([one.name for one in layer.get_inputs()], [x, *state])))"""

    def parts(self) -> dict[str, Part]:
        """One, with the inputs and outputs of the layer."""
        return {"model": _LayerPart(self.module)}


class _LayerPart(Part):
    def __init__(self, layer: Any) -> None:
        order = ("batch", "time") if layer.batch_first else ("time", "batch")
        shapes: dict[str, Shape] = {"input": (*order, layer.input_size)}
        count = layer.num_layers * (2 if layer.bidirectional else 1)
        shapes |= {letter: (count, "batch", width) for letter, width in state_widths(layer).items()}
        sizes = [[3 if isinstance(size, str) else size for size in shape] for shape in shapes.values()]
        super().__init__(layer, dict(zip(shapes, (torch.rand(size) * 2 - 1 for size in sizes), strict=True)), shapes)
        self.carried = {f"{name}{NEXT}": name for name in shapes if name != "input"}

    def compute(self, inputs: Tensors) -> Tensors:
        x, *state = inputs.values()
        out, last = self.model(x, _as_given(state))
        return dict(zip(("output", *self.carried), (out, *_each(last)), strict=True))


class Call(Part):
    """One call of anyone's model.

    Args:
        model: any module.
        example: its arguments: a tensor, a tuple of arguments, or a dictionary of named ones.
        states: whether layers that the model calls without states get inputs and outputs for these; None for yes if
            the model has only layers that read forwards.
    """

    def __init__(self, model: nn.Module, example: Any, states: bool | None) -> None:
        named = example if isinstance(example, Mapping) else {}
        places = () if named else example if isinstance(example, tuple) else (example,)
        try:
            bound = inspect.signature(model.forward).bind(*places, **named)
        except TypeError as error:
            raise G2Error(f"the example does not fit {type(model).__name__}.forward: {error}") from None
        leaves, form = pytree.tree_flatten_with_path(dict(bound.arguments))
        given = {_name(path): leaf.detach().cpu() for path, leaf in leaves if isinstance(leaf, Tensor)}
        if not given:
            raise G2Error("the example holds no tensor; pass the arguments that the model is called with")
        super().__init__(model, {name: one.float() if one.is_floating_point() else one for name, one in given.items()})
        self._bound, self._leaves, self._form = bound, leaves, form
        self._hidden: dict[str, nn.Module] = {}
        try:
            first, again = (self.compute(self.inputs) for _ in range(2))
        except Exception as error:
            raise G2Error(f"{type(model).__name__} can't read the example: {error}") from error
        changed = [name for name, one in first.items() if not torch.allclose(one, again[name], equal_nan=True)]
        if changed:
            raise G2Error(
                f"{type(model).__name__} returns a different {changed[0]} when it reads the example again: it is "
                "random, or keeps states between its calls; export a forward that takes and returns the states"
            )
        self._widen()
        self._find_hidden(states)

    def compute(self, inputs: Tensors) -> Tensors:
        """Calls the model."""
        leaves = [inputs.get(_name(path), leaf) for path, leaf in self._leaves]
        self._bound.arguments.update(pytree.tree_unflatten(leaves, self._form))
        ends: Tensors = {}
        with ExitStack() as stack:
            for name, layer in self._hidden.items():
                own = {letter: f"{name}.{letter}" for letter in state_widths(layer)}
                state = _as_given([inputs[f"{one}0"] for one in own.values()])

                def begin(_: Any, args: Any, kwargs: Any, state: Any = state) -> Any:
                    return (args[0] if args else kwargs["input"], state), {}

                def end(_: Any, args: Any, output: Any, own: Any = own) -> None:
                    ends.update(zip((f"{one}n" for one in own.values()), _each(output[1]), strict=True))

                stack.callback(layer.register_forward_pre_hook(begin, with_kwargs=True).remove)
                stack.callback(layer.register_forward_hook(end).remove)
            result = self.model(*self._bound.args, **self._bound.kwargs)
        outputs = {}
        for path, leaf in pytree.tree_flatten_with_path(result)[0]:
            if isinstance(leaf, Tensor):
                is_named = bool(path) and not isinstance(path[0], pytree.SequenceKey)
                name = _name(path if is_named else ("output", *path))
                if name in self.inputs:
                    self.carried[f"{name}{NEXT}"] = name
                outputs[f"{name}{NEXT}" if name in self.inputs else name] = leaf
        return {name: one.clone() for name, one in (outputs | ends).items()}  # a model may return one tensor twice

    def _widen(self) -> None:
        """Makes sizes of 1 larger where the model allows it: torch would take a size of 1 for a constant."""
        ones = [(name, axis) for name, one in self.inputs.items() for axis in range(one.dim()) if one.size(axis) == 1]
        tries = (some for count in range(len(ones), 0, -1) for some in combinations(ones, count))
        for some in islice(tries, _MOST_TRIES):
            wide = dict(self.inputs)
            for name, axis in some:
                wide[name] = wide[name].repeat_interleave(2, axis)
            with suppress(Exception):  # whatever a model raises for sizes that it does not take
                self.compute(wide)
                self.inputs = wide
                return

    def _find_hidden(self, states: bool | None) -> None:
        """Adds inputs for the states of layers that the model calls once, without states."""
        layers = {name: module for name, module in self.model.named_modules() if isinstance(module, Layer)}
        both_ways = [name for name, layer in layers.items() if layer.bidirectional]
        if states and both_ways:
            raise G2Error(
                f"{both_ways[0]} reads in both directions, so the model can't be continued from a state; leave out "
                "states=True to export it for whole sequences"
            )
        if states is False or both_ways:
            return
        calls: dict[nn.Module, list[Any]] = {layer: [] for layer in layers.values()}

        def note(layer: nn.Module, args: Any, kwargs: Any) -> None:
            calls[layer].append([one for one in (*args, *kwargs.values()) if one is not None])

        with ExitStack() as stack:
            for layer in layers.values():
                stack.callback(layer.register_forward_pre_hook(note, with_kwargs=True).remove)
            self.compute(self.inputs)
        for name, layer in layers.items():
            if len(calls[layer]) != 1 or len(calls[layer][0]) != 1:
                continue
            [[x]] = calls[layer]
            if isinstance(x, PackedSequence):
                batch = int(x.batch_sizes[0])
            elif x.dim() == 3:
                batch = x.size(0 if layer.batch_first else 1)
            else:
                continue
            self._hidden[name] = layer
            for letter, width in state_widths(layer).items():
                self.inputs[f"{name}.{letter}0"] = torch.rand(layer.num_layers, batch, width) * 2 - 1
                self.carried[f"{name}.{letter}n"] = f"{name}.{letter}0"


class CallExporter(Exporter):
    """Exports one call of anyone's model."""

    def __init__(self, module: nn.Module, example: Any, states: bool | None) -> None:
        super().__init__(module)
        self._example, self._states = example, states

    def parts(self) -> dict[str, Part]:
        """One, with the arguments and results of the call."""
        return {"model": Call(self.module, self._example, self._states)}


def _as_given(state: list[Tensor]) -> Any:
    """States as a layer takes them: h alone, or h and c."""
    return state[0] if len(state) == 1 else tuple(state)


def _each(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (state,) if isinstance(state, Tensor) else tuple(state)


def _name(path: tuple[Any, ...]) -> str:
    """A name from the keys that lead to a tensor."""
    keys = (getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path)
    return "_".join(map(str, keys))
