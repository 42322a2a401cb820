"""The operations of torch that can become C, by their names in a traced graph.

A step has one batch and one time, so every tensor is a vector, and whatever only changes its shape does nothing.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from g2lstm.compression.encodings import Dense, Encoding
from g2lstm.errors import G2Error
from g2lstm.export.c.program import Function, Value, part, width
from g2lstm.export.c.text import number


@dataclass(frozen=True)
class Call:
    """One call of an operation.

    Attributes:
        function: what it becomes a part of.
        name: that of the operation.
        where: the module, for messages.
        arguments: a `Value` for what depends on the input, a tensor for a constant, numbers and lists as they are.
        shapes: those of the first argument and of the result.
        encodings: the encoded matrices that constants stand for, by the address of their memory.
    """

    function: Function
    name: str
    where: str
    arguments: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    encodings: Mapping[int, Encoding]

    def option(self, place: int, default: Any = None) -> Any:
        """A further argument, or what it is if it is left out."""
        return self.arguments[place] if place < len(self.arguments) else default

    def vector(self, place: int = 0) -> Value:
        """An argument as long as the result; constants and numbers are repeated."""
        one = self.arguments[place]
        if isinstance(one, str):
            raise self.refuse(f"it computes with {one} that the model is given")
        if isinstance(one, tuple):
            if width(one) != math.prod(self.shapes[1]):
                raise self.refuse("it combines vectors of different lengths")
            return one
        return self.constant(torch.as_tensor(one, dtype=torch.float32).expand(self.shapes[1]))

    def constant(self, values: Tensor) -> Value:
        """A constant as a vector."""
        return self.function.program.vector(values.detach().float().numpy(), self.where or self.name)

    def each(self, expression: str, *values: Value) -> Value:
        """A vector of such expressions."""
        return self.function.each(expression, *values, comment=self.where)

    def whole(self, axis: Any) -> None:
        """Raises unless the vector extends along this dimension only."""
        if axis is None or self.shapes[0][axis] != math.prod(self.shapes[0]):
            raise self.refuse("it works on a part of the vector")

    def refuse(self, why: str) -> G2Error:
        """The error for a use of the operation that can't become C."""
        return G2Error(f"{self.where or 'the model'} can't become C: {why} ({self.name})")


Operation: TypeAlias = Callable[[Call], Any]
TOKEN, STATE = "a token", "a state"  # stand for the input, and for states that a model's forward takes


def _each(expression: str, *defaults: float, needs: str = "") -> Operation:
    """Each element by itself; {a} and {b} in the expression are the further arguments."""

    def run(call: Call) -> Value:
        call.function.program.features |= set(needs.split())
        text = expression
        for k, (letter, default) in enumerate(zip("ab", defaults, strict=False), start=1):
            text = text.replace(f"{{{letter}}}", number(call.option(k, default)))
        return call.each(text, call.vector())

    return run


def _binary(sign: str) -> Operation:
    def run(call: Call) -> Value:
        if call.option(2, 1) != 1:
            raise call.refuse("it multiplies by alpha")
        return call.each(f"{{0}} {sign} {{1}}", call.vector(0), call.vector(1))

    return run


def _linear(call: Call) -> Value:
    x, weight, bias = call.arguments[0], call.arguments[1], call.option(2)
    if not isinstance(weight, Tensor) or isinstance(bias, tuple):
        raise call.refuse("its weights depend on the input")
    if not isinstance(x, tuple) or weight.dim() != 2 or width(x) != weight.size(1):
        raise call.refuse("it reads several vectors at once")
    matrix = call.encodings.get(weight.data_ptr()) or _dense(weight)
    values = None if bias is None else bias.detach().float().numpy()
    return call.function.linear(x, matrix, values, call.where or "linear")


def _matmul(call: Call) -> Value:
    x, weight = call.arguments
    if not isinstance(x, tuple) or not isinstance(weight, Tensor) or weight.dim() != 2 or width(x) != weight.size(0):
        raise call.refuse("only a vector times a constant matrix is possible")
    return call.function.linear(x, _dense(weight.t()), None, call.where or "matmul")


def _embedding(call: Call) -> Value:
    weight, token = call.arguments[:2]
    if token is not TOKEN or not isinstance(weight, Tensor):
        raise call.refuse("only the input can be looked up, in a constant table")
    return call.function.lookup(call.encodings.get(weight.data_ptr()) or _dense(weight), call.where or "embedding")


def _dense(weight: Tensor) -> Dense:
    return Dense(weight.detach().to("cpu", torch.float32, copy=True).contiguous().numpy())


def _softmax(call: Call) -> Value:
    call.whole(call.arguments[1])
    text = f"{call.name}({{0}}, {{to}}, {width(call.vector())});"
    return call.function.call(text, call.vector(), feature=call.name, comment=call.where)


def _layer_norm(call: Call) -> Value:
    x, shape = call.vector(), call.arguments[1]
    if math.prod(shape) != width(x):
        raise call.refuse("it works on a part of the vector")
    weight, bias = call.option(2), call.option(3)
    vectors = [call.constant(torch.full(shape, 1.0) if weight is None else weight)]
    vectors.append(call.constant(torch.zeros(shape) if bias is None else bias))
    text = f"layer_norm({{0}}, {{1}}, {{2}}, {{to}}, {width(x)}, {number(call.option(4, 1e-5))});"
    return call.function.call(text, x, *vectors, feature="layer_norm", comment=call.where)


def _batch_norm(call: Call) -> Value:
    weight, bias, mean, variance = call.arguments[1:5]
    if mean is None or len(mean) != width(call.vector()):
        raise call.refuse("it needs the statistics of training, for each element of the vector")
    factor = (1.0 if weight is None else weight.double()) / (variance.double() + call.arguments[7]).sqrt()
    shift = (0.0 if bias is None else bias.double()) - mean.double() * factor
    return call.each("{0} * {1} + {2}", call.vector(), call.constant(factor), call.constant(shift))


def _gelu(call: Call) -> Value:
    if call.option(1) == "none":
        return call.each("0.5f * {0} * (1.0f + erff(0.707106781f * {0}))", call.vector())
    inner = "0.797884561f * ({0} + 0.044715f * {0} * {0} * {0})"
    return call.each(f"0.5f * {{0}} * (1.0f + tanhf({inner}))", call.vector())


def _same(call: Call) -> Any:
    if math.prod(call.shapes[0]) != math.prod(call.shapes[1]):
        raise call.refuse("it repeats elements")
    return call.arguments[0]


def _reordered(call: Call) -> Any:
    if sum(size > 1 for size in call.shapes[0]) > 1:
        raise call.refuse("it changes the order of elements")
    return call.arguments[0]


def _cut(call: Call, axis: int, pieces: Iterable[tuple[int, int]]) -> list[Any]:
    """Pieces along a dimension, each from a start and of a size."""
    shape = call.shapes[0]
    axis %= len(shape)
    if math.prod(shape[:axis]) != 1:
        raise call.refuse("it takes elements that are not neighbours")
    inner = math.prod(shape[axis + 1 :])
    if call.arguments[0] is STATE:
        return [STATE for _ in pieces]
    return [part(call.arguments[0], start * inner, size * inner) for start, size in pieces]


def _select(call: Call) -> Any:
    axis, index = call.arguments[1:3]
    return _cut(call, axis, [(index % call.shapes[0][axis], 1)])[0]


def _slice(call: Call) -> Any:
    axis = call.option(1, 0)
    start, stop, step = slice(call.option(2), call.option(3), call.option(4)).indices(call.shapes[0][axis])
    if step != 1:
        raise call.refuse("it takes elements that are not neighbours")
    return _cut(call, axis, [(start, max(stop - start, 0))])[0]


def _split(call: Call) -> list[Any]:
    sizes, axis = call.arguments[1], call.option(2, 0)
    length = call.shapes[0][axis]
    if call.name == "unbind":
        sizes, axis = 1, sizes
        length = call.shapes[0][axis]
    if call.name == "chunk":
        sizes = -(-length // sizes)
    if isinstance(sizes, int):
        sizes = [min(sizes, length - start) for start in range(0, length, sizes)]
    return _cut(call, axis, zip(np.cumsum([0, *sizes]).tolist(), sizes, strict=False))


def _cat(call: Call) -> Value:
    axis = call.option(1, 0) % len(call.shapes[1])
    if math.prod(call.shapes[1][:axis]) != 1:
        raise call.refuse("it weaves vectors together")
    each = (one if isinstance(one, tuple) else call.constant(one) for one in call.arguments[0])
    return tuple(piece for one in each for piece in one)


OPERATIONS: dict[str, Operation] = {
    "view": _same, "reshape": _same, "_unsafe_view": _same, "squeeze": _same, "unsqueeze": _same, "flatten": _same,
    "unflatten": _same, "contiguous": _same, "clone": _same, "detach": _same, "detach_": _same, "alias": _same,
    "dropout": _same, "lift_fresh_copy": _same, "to": _same, "_to_copy": _same, "expand": _same, "expand_as": _same,
    "t": _reordered, "transpose": _reordered, "permute": _reordered, "movedim": _reordered, "swapaxes": _reordered,
    "linear": _linear, "matmul": _matmul, "mm": _matmul, "embedding": _embedding,
    "add": _binary("+"), "sub": _binary("-"), "mul": _binary("*"), "div": _binary("/"),
    "softmax": _softmax, "log_softmax": _softmax, "layer_norm": _layer_norm, "batch_norm": _batch_norm,
    "select": _select, "slice": _slice, "split": _split, "split_with_sizes": _split, "chunk": _split, "unbind": _split,
    "cat": _cat, "stack": _cat,
    "relu": _each("{0} < 0.0f ? 0.0f : {0}"),
    "leaky_relu": _each("{0} < 0.0f ? {a} * {0} : {0}", 0.01),
    "elu": _each("{0} < 0.0f ? {a} * expm1f({0}) : {0}", 1.0),
    "gelu": _gelu,
    "silu": _each("{0} * sigmoid({0})", needs="sigmoid sigmoid1"),
    "sigmoid": _each("sigmoid({0})", needs="sigmoid sigmoid1"),
    "tanh": _each("tanhf({0})"),
    "hardtanh": _each("{0} < {a} ? {a} : {0} > {b} ? {b} : {0}", -1.0, 1.0),
    "hardsigmoid": _each("{0} < -3.0f ? 0.0f : {0} > 3.0f ? 1.0f : {0} / 6.0f + 0.5f"),
    "hardswish": _each("{0} < -3.0f ? 0.0f : {0} > 3.0f ? {0} : {0} * ({0} / 6.0f + 0.5f)"),
    "relu6": _each("{0} < 0.0f ? 0.0f : {0} > 6.0f ? 6.0f : {0}"),
    "softplus": _each("{0} * {a} > {b} ? {0} : log1pf(expf({0} * {a})) / {a}", 1.0, 20.0),
    "exp": _each("expf({0})"), "log": _each("logf({0})"), "sqrt": _each("sqrtf({0})"), "abs": _each("fabsf({0})"),
    "neg": _each("-{0}"),
}  # fmt: skip
