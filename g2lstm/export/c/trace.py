"""Reads anyone's model as a `Step`: torch traces one call of its forward, and each operation becomes a statement."""

import operator
import warnings
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.rnn import PackedSequence

from g2lstm.compression.causal import Kept
from g2lstm.compression.model import copied
from g2lstm.compression.modules import EncodedMatrix
from g2lstm.compression.recurrent import layer_weights
from g2lstm.compression.stream import StreamParts, encoding_of
from g2lstm.errors import G2Error
from g2lstm.export.c.operations import OPERATIONS, STATE, TOKEN, Call
from g2lstm.export.c.program import Buffer, Function, Piece, Program, Value, whole
from g2lstm.export.c.step import Step
from g2lstm.nn.convert import replace_all
from g2lstm.nn.survey import why_not


def layer_step(layer: Any) -> Step:
    """An LSTM or a GRU, from x to the last layer's h."""
    function = Function(Program())
    x = whole(Buffer(layer.input_size, "x"))
    states = run_layers(function, x, layer, "")
    return Step(function, states[-1][0], layer.input_size, what="the last layer's h")


def token_step(parts: StreamParts) -> Step:
    """A model of tokens, from a token to the log-probabilities of the next."""
    function = Function(Program())
    embedding = encoding_of(parts.embedding)
    x = function.lookup(embedding, "embedding")
    for number, (layer, residual) in enumerate(zip(parts.layers, parts.residual, strict=True)):
        out = run_layers(function, x, layer, f"layer {number}")[-1][0]
        x = function.each("{0} + {1}", x, out) if residual else out
    own = embedding if parts.softmax is parts.embedding else encoding_of(parts.softmax)
    logits = function.linear(x, own, parts.bias.float().numpy(force=True), "softmax")
    out = function.log_softmax(logits)
    what = "the log-probabilities of the next token"
    return Step(function, out, embedding.shape[0], is_token=True, what=what)


def run_layers(function: Function, x: Value, layer: Any, name: str, initial: Any = None) -> list[list[Value]]:
    """The layers of one module, each on top of the one before; returns the states of each."""
    check_layer(layer, name)
    states: list[list[Value]] = []
    for number, weights in enumerate(layer_weights(layer)):
        own = name or "layer" if getattr(layer, "num_layers", 1) == 1 else f"{name} layer {number}".strip()
        given = None if initial is None else [one[number] for one in initial]
        states.append(function.recurrent(x, weights, own, given))
        x = states[-1][0]
    return states


def check_layer(layer: nn.Module, name: str) -> None:
    """Raises for a layer that can't become C."""
    if getattr(layer, "bidirectional", False):
        raise G2Error(
            f"{name or 'this layer'} can't stream: its second direction begins at the end of the sequence; export the "
            "model to ONNX, for whole sequences"
        )
    if (why := why_not(layer)) is not None:
        raise G2Error(f"can't export {name or 'this layer'}: {why}")


def traced_step(model: nn.Module, arguments: tuple[Any, ...]) -> Step:
    """One step of a model in evaluation mode.

    Args:
        model: any module with recurrent layers.
        arguments: those of its forward, for one step: a token or a vector, with batch and time, and states.
    """
    own = copied(model, {}).eval()
    layers = {name: one for name, one in own.named_modules() if isinstance(one, nn.RNNBase | nn.RNNCellBase)}
    for name, layer in layers.items():
        check_layer(layer, name)
    own = replace_all(own, {one: _Traced(one, name, k) for k, (name, one) in enumerate(layers.items())})
    encodings = {one.weight.data_ptr(): one.encoding for one in own.modules() if isinstance(one, EncodedMatrix)}
    program = _export(own, arguments)
    is_token = not arguments[0].is_floating_point()
    return _Reading(program, list(layers.items()), encodings, None if is_token else arguments[0].numel()).step()


def _export(model: nn.Module, arguments: tuple[Any, ...]) -> torch.export.ExportedProgram:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(model, arguments, strict=False)
    except G2Error:
        raise
    except Exception as error:  # whatever a user's forward raises, and all that torch does
        shape, why = tuple(arguments[0].shape), (str(error).splitlines() or [type(error).__name__])[0]
        raise G2Error(
            f"one step of {type(model).__name__} can't be traced with an input of shape {shape}: {why}"
        ) from error


class _Traced(Kept):
    """Stands for a recurrent layer while its model is traced."""

    def __init__(self, layer: nn.Module, name: str, number: int) -> None:
        nn.Module.__init__(self)
        self.__dict__["layer"] = layer
        self.name, self.number, self.was_called = name or type(layer).__name__, number, False
        self._is_cell, self._batch = isinstance(layer, nn.RNNCellBase), 1

    def forward(self, input: Any, hx: Any = None) -> Any:
        """As the layer, for a single step."""
        layer = self.__dict__["layer"]
        if self.was_called:
            raise G2Error(f"{self.name} is called more than once in a step, so it has no single state to keep")
        if isinstance(input, PackedSequence) or input.numel() != input.size(-1):
            raise G2Error(f"{self.name} must get one step at a time; export a forward without a PackedSequence")
        self.was_called = True
        given = [] if hx is None else list(hx) if isinstance(hx, tuple | list) else [hx]
        is_lstm = isinstance(layer, nn.LSTM | nn.LSTMCell)
        count = 1 if self._is_cell else layer.num_layers
        h, c = getattr(layer, "proj_size", 0) or layer.hidden_size, layer.hidden_size
        sizes = [h, count * h, count * c] if is_lstm else [h, count * h]
        out, *states = _step(input, given, self.number, sizes)
        leading = input.shape[:-1] if self._is_cell else (count, *((1,) if input.dim() == 3 else ()))
        states = [one.view(*leading, -1) for one in states]
        state = tuple(states) if is_lstm else states[0]
        return state if self._is_cell else (out.view(*input.shape[:-1], -1), state)


@torch.library.custom_op(  # with a schema, since older torch does not know list[Tensor]
    "g2lstm::step_of_layer", mutates_args=(), schema="(Tensor x, Tensor[] states, int number, int[] sizes) -> Tensor[]"
)
def _step(x: Tensor, states: list[Tensor], number: int, sizes: list[int]) -> list[Tensor]:
    """One step of a layer, as a trace shows it: its output and its states."""
    return [x.new_zeros(size) for size in sizes]


@_step.register_fake
def _(x: Tensor, states: list[Tensor], number: int, sizes: list[int]) -> list[Tensor]:
    return [x.new_empty(size) for size in sizes]


class _Reading:
    """Turns a traced graph into a `Step`."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        layers: list[tuple[str, nn.Module]],
        encodings: dict[int, Any],
        inputs: int | None,
    ) -> None:
        self.graph, self.signature, self.constants = program.graph, program.graph_signature, program.constants
        self.weights, self.layers, self.encodings = program.state_dict, layers, encodings
        self.inputs, self.function = inputs, Function(Program())  # the width of a vector, or None for a token
        self.found: dict[fx.Node, Any] = {}
        outputs = self.signature.user_outputs
        kind = program.call_spec.out_spec
        if kind is not None and kind.type is dict and len(outputs) > 1:
            raise G2Error(
                f"the model returns {len(outputs)} tensors in a dict; export a model that returns one of them"
            )
        self.output = outputs[0]

    def step(self) -> Step:
        """Goes through the operations in their order."""
        last = next(node for node in self.graph.nodes if node.name == self.output)
        needed = {last}
        for node in reversed(self.graph.nodes):
            needed |= set(node.all_input_nodes) if node in needed else set()
        for node in self.graph.nodes:
            if node in needed:
                self.found[node] = self._given(node.name) if node.op == "placeholder" else self._computed(node)
        value = self.found[last]
        if not _depends(value) or isinstance(value, str):
            raise G2Error("the output of the model does not depend on its input")
        is_token, is_index = self.inputs is None, _operation(last) == "argmax"
        return Step(self.function, value, self.inputs or self.function.tokens, is_token, is_index)

    def _given(self, name: str) -> Any:
        signature = self.signature
        for names in (signature.inputs_to_parameters, signature.inputs_to_buffers):
            if name in names:
                return self.weights.get(names[name], self.constants.get(names[name]))
        if name in signature.inputs_to_lifted_tensor_constants:
            return self.constants[signature.inputs_to_lifted_tensor_constants[name]]
        if name != signature.user_inputs[0]:
            return STATE
        return TOKEN if self.inputs is None else whole(Buffer(self.inputs, "x"))

    def _computed(self, node: fx.Node) -> Any:
        args: Any = fx.node.map_arg(node.args, lambda one: self.found[one])
        kwargs: Any = fx.node.map_arg(node.kwargs, lambda one: self.found[one])
        target: Any = node.target
        name, where = _operation(node), _module(node)
        if node.target is operator.getitem:
            return args[0][args[1]]
        if name == "step_of_layer":
            return self._layer(*args[:3])
        if not _depends(args):
            return target(*args, **kwargs)
        if name not in OPERATIONS and name != "argmax":
            raise G2Error(
                f"{where or 'the model'} can't become C: {name} is not among the operations that can, which are LSTM, "
                f"GRU and their cells, argmax, {', '.join(sorted(one for one in OPERATIONS if one.isalpha()))}"
            )
        further = target._schema.arguments[len(args) :]
        given = [*args, *(kwargs.get(one.name, one.default_value) for one in further)]
        shapes = tuple(node.all_input_nodes[0].meta["val"].shape), _shape(node)
        call = Call(self.function, name, where, tuple(given), shapes, self.encodings)
        if name == "argmax":
            call.whole(given[1])
            if node.name != self.output:
                raise call.refuse("it is not the last operation")
            return args[0]
        return OPERATIONS[name](call)

    def _layer(self, x: Any, given: list[Any], number: int) -> list[Value]:
        """The output and the states of a layer; those that it is given are where it starts."""
        name, layer = self.layers[number]
        if not isinstance(x, tuple):
            raise G2Error(f"{name or 'the layer'} does not read what the model reads")
        if any(isinstance(one, tuple) for one in given):
            raise G2Error(f"{name or 'the layer'} gets a state that the model computes from its input at every step")
        first = None
        if given and all(isinstance(one, Tensor) for one in given) and any(one.any() for one in given):
            first = [one.detach().float().reshape(-1, one.size(-1)).numpy() for one in given]
        states = run_layers(self.function, x, layer, name, first)
        joined = [tuple(piece for value in each for piece in value) for each in zip(*states, strict=True)]
        return [states[-1][0], *joined]


def _operation(node: fx.Node) -> str:
    """The name of an operation, without its overload."""
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else schema.name.partition("::")[2]


def _module(node: fx.Node) -> str:
    """The name of the module that an operation belongs to."""
    stack = node.meta.get("nn_module_stack") or {"": ("",)}
    return str(list(stack.values())[-1][0])


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(getattr(node.meta["val"], "shape", ()))


def _depends(value: Any) -> bool:
    """Whether anything in it depends on the input."""
    if isinstance(value, str):
        return value in (TOKEN, STATE)
    if isinstance(value, list | tuple):
        return any(isinstance(one, Piece) or _depends(one) for one in value)
    return False
