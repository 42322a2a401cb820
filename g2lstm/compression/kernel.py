"""`KernelSession`: the compiled session (`nn/csrc/stack.cpp`), which reads packed weights."""

import ctypes
import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression.encodings.panels import Bytes, vector_panels
from g2lstm.compression.session import HARD, Array, Layer, PlainSession, Session, Vector
from g2lstm.errors import G2Error
from g2lstm.nn.kernel import find

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_SOURCES = {"x": 0, "h": 1}
_FIRST_FACTOR = 2  # among the sources


class Product(NamedTuple):
    """How the kernel is told about one product.

    Attributes:
        form: one of the forms of `encodings.panels`.
        source: x, h, or the result of one of the block's factors.
        target: the gate that it adds to, 0 in a softmax; for a factor, its number of rows.
        group: columns per scale of a grouped form, else 0.
    """

    form: int
    source: int
    target: int
    group: int


class Block(NamedTuple):
    """A layer or a softmax as the kernel takes it.

    Attributes:
        inputs, outputs: the widths of the vectors.
        gates: 4 for a layer, 1 for a softmax.
        factors: the right factors of low-rank matrices.
        products: the other products.
        data: all bytes, in the order in which the kernel reads them: first the factors, one after the other, then for
            each panel of outputs those of all products and the biases.
        residual: whether a layer's input is added to its output.
        is_gru: whether a layer is a GRU.
    """

    inputs: int
    outputs: int
    gates: int
    factors: list[Product]
    products: list[Product]
    data: Bytes
    residual: bool
    is_gru: bool


def pack_layer(layer: Layer, panel: int) -> Block:
    """Packs a layer or a softmax for a kernel with panels of so many rows."""
    factors: list[Product] = []
    products: list[Product] = []
    factor_panels: list[Bytes] = []
    gate_panels: list[Bytes] = []
    for term in layer.terms:
        source = _SOURCES[term.source]
        *thin, matrix = term.matrix.factors()
        for factor in thin:
            form, group, data = factor.panels(panel)
            factors.append(Product(form, source, factor.shape[0], group))
            factor_panels.append(data.reshape(-1))
            source = _FIRST_FACTOR + len(factors) - 1
        form, group, data = matrix.panels(panel, term.factor)
        products.append(Product(form, source, term.gate, group))
        gate_panels.append(data)
    gate_panels += [vector_panels(bias, panel) for bias in np.split(layer.bias, layer.gates)]
    data = np.concatenate([*factor_panels, np.hstack(gate_panels).reshape(-1)])
    return Block(layer.inputs, layer.hidden, layer.gates, factors, products, data, layer.residual, layer.is_gru)


def pack_softmax(softmax: Layer, panel: int) -> list[Block]:
    """Packs a softmax as one block, or as several if some rows need fewer bits than others."""
    (term,) = softmax.terms
    parts = term.matrix.parts(panel)
    if len(parts) == 1:
        return [pack_layer(softmax, panel)]
    blocks = []
    for rows in parts:
        form, group, data = term.matrix.panels(panel, term.factor, rows)
        data = np.hstack([data, vector_panels(softmax.bias[rows], panel)]).reshape(-1)
        height, product = rows.stop - rows.start, Product(form, _SOURCES["x"], 0, group)
        blocks.append(Block(softmax.inputs, height, 1, [], [product], data, False, False))
    return blocks


class _Block(ctypes.Structure):
    _fields_ = [
        *[(name, _LONG) for name in ("inputs", "outputs", "gates", "residual", "is_gru", "factors", "products")],
        ("specs", _POINTER),  # those of the factors and then of the products, four integers each
        ("data", _POINTER),
        ("bytes", _LONG),
    ]


def available() -> bool:
    """Whether there is a compiled kernel; `find().description` says why not."""
    return find().library is not None


def open_session(
    layers: Sequence[Layer], hard: str = "", threads: int | None = None, softmax: Layer | None = None
) -> Session:
    """Opens a compiled session, or a plain one where there is no compiled kernel."""
    return KernelSession(layers, hard, threads, softmax) if available() else PlainSession(layers, hard, softmax)


class KernelSession(Session):
    """A session in the compiled kernel, which keeps its own packed copy of the weights.

    A vector is rounded to 16 bits before it is multiplied by codes: each element of x, of h, or in the middle of a
    low-rank matrix, is off by at most max|x| / 65278, and so a product by that times the sum of the row's |weights|.
    Products with dense matrices are in float32. NaN or infinity in a vector makes all its products with codes NaN.
    Denormal numbers count as 0.

    After a fork the child can continue with a session, unless another thread was using it at that moment.

    Args:
        layers, hard, softmax: as in `Session`.
        threads: at most this many; if not given, as many as torch uses, or one per processor without torch. Small
            stacks use fewer. The results do not depend on it.

    Attributes:
        threads: the number in use.
    """

    def __init__(
        self, layers: Sequence[Layer], hard: str = "", threads: int | None = None, softmax: Layer | None = None
    ) -> None:
        super().__init__(layers, hard, softmax)
        found = find()
        if found.library is None:
            raise G2Error(f"the kernel for packed weights is {found.description}; use open_session")
        wanted = wanted_threads(threads)
        library: Any = found.library
        panel = library.g2lstm_stack_panel()
        packed = [pack_layer(layer, panel) for layer in layers]
        packed += [] if softmax is None else pack_softmax(softmax, panel)
        self._handle = _POINTER()
        with described(packed) as specs:
            check_created(
                library.g2lstm_stack_create(specs, len(packed), HARD.index(hard), wanted, ctypes.byref(self._handle)),
                packed,
            )
        # Not at exit: a thread may still be in a call, and the process returns the memory anyway.
        weakref.finalize(self, library.g2lstm_stack_destroy, self._handle).atexit = False
        self._library = library
        self.threads: int = library.g2lstm_stack_threads(self._handle)
        # For `step`: finding the address of an array takes longer than a step of a small stack.
        self._x, self._out = np.zeros(self.inputs, np.float32), np.zeros(self.outputs, np.float32)
        self._shape, self._run_step = (self.inputs,), library.g2lstm_stack_run
        self._arguments = (self._handle, _POINTER(self._x.ctypes.data), _LONG(1), _POINTER(self._out.ctypes.data))

    def step(self, x: Vector) -> Array:
        """Reads one step x (I,), an array or a tensor; returns a new array (O,)."""
        if not isinstance(x, np.ndarray) or x.shape != self._shape:
            return super().step(x)
        with self._lock:
            self._x[:] = x
            self._run_step(*self._arguments)
            return self._out.copy()

    def stacked_state(self) -> list[Array]:
        """As in `Session`, but fast: whole models ask for it at every step."""
        stacked = self._flat_state().reshape(len(self.units), 2, -1)
        return [stacked[:, k] for k in range(self._counts[0])]

    def _flat_state(self) -> NDArray[np.float32]:
        flat = np.empty(2 * sum(self.units), np.float32)
        with self._lock:
            self._library.g2lstm_stack_get(self._handle, flat.ctypes.data)
        return flat

    def _get(self) -> list[tuple[Array, Array]]:
        flat = self._flat_state()
        ends = np.cumsum(np.repeat(self.units, 2))
        parts = np.split(flat, ends[:-1])
        return list(zip(parts[::2], parts[1::2], strict=True))

    def _set(self, states: list[NDArray[Any]]) -> None:
        flat = np.concatenate(states, dtype=np.float32, casting="unsafe")
        with self._lock:
            self._library.g2lstm_stack_set(self._handle, flat.ctypes.data)

    def _run(self, x: NDArray[Any]) -> Array:
        x = np.ascontiguousarray(x, np.float32)
        out = np.empty((len(x), self.outputs), np.float32)
        with self._lock:
            self._library.g2lstm_stack_run(self._handle, x.ctypes.data, len(x), out.ctypes.data)
        return out


def wanted_threads(threads: int | None) -> int:
    """At most how many threads to use; if not given, as many as torch uses, or one per processor without torch."""
    if threads is None:
        torch = sys.modules.get("torch")
        return int(torch.get_num_threads()) if torch else os.cpu_count() or 1
    if not isinstance(threads, int) or threads < 1:
        raise G2Error(f"threads must be an integer of at least 1, got {threads!r}")
    return threads


@contextmanager
def described(packed: Sequence[Block]) -> Iterator[Any]:
    """Describes blocks to the kernel, which copies their bytes."""
    tables = [np.array([*block.factors, *block.products], np.int64) for block in packed]
    yield (_Block * len(packed))(*map(_describe, packed, tables))


def check_created(status: int, packed: Sequence[Block]) -> None:
    """Raises if the kernel has refused these blocks."""
    if status:
        size = sum(len(block.data) for block in packed)
        reason = {1: "there is not enough memory", 2: "their description does not fit them, a bug of g2lstm"}
        raise G2Error(f"the kernel can't take {size} bytes of weights: {reason[status]}")


def _describe(packed: Block, table: NDArray[np.int64]) -> _Block:
    shape = (packed.inputs, packed.outputs, packed.gates, packed.residual, packed.is_gru)
    counts = (len(packed.factors), len(packed.products))
    return _Block(*shape, *counts, table.ctypes.data, packed.data.ctypes.data, len(packed.data))
