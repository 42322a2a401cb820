"""The compiled session (`nn/csrc/stack.cpp`), which reads weights packed."""

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from g2lstm.compression.layout import PackedBlock, pack_layer, pack_softmax
from g2lstm.compression.session import HARD, Array, Layer, PlainSession, Session, Softmax
from g2lstm.errors import G2Error
from g2lstm.nn.kernel import find

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


class _Product(ctypes.Structure):
    _fields_ = [(name, _LONG) for name in ("form", "source", "target", "group")]


class _Block(ctypes.Structure):
    _fields_ = [
        *[(name, _LONG) for name in ("inputs", "outputs", "gates", "residual", "factors", "products")],
        ("specs", ctypes.POINTER(_Product)),
        ("data", _POINTER),
        ("bytes", _LONG),
    ]


def available() -> bool:
    """Whether the compiled kernel is there; `find().description` says why not."""
    return find().library is not None


def open_session(
    layers: Sequence[Layer], hard: str = "", threads: int | None = None, softmax: Softmax | None = None
) -> Session:
    """The compiled session where there is one, else the plain one."""
    return KernelSession(layers, hard, threads, softmax) if available() else PlainSession(layers, hard, softmax)


class KernelSession(Session):
    """A session in the compiled kernel, which keeps its own packed copy of the weights.

    A vector is rounded to 16 bits before it is multiplied with codes: each element of x, of h, or in the middle of a
    matrix of low rank, is off by at most max|x| / 65278, and so a product by that times the sum of the row's |weights|.
    Products with dense matrices are in float32. A NaN or an infinity in a vector makes all products of it with codes
    NaN. Denormal numbers count as 0.

    A process that forks may go on with a session in the child, unless another thread was using it at that moment.

    Args:
        layers: the first reads x, each other the one before it.
        hard: the gates that are 1[a >= 0] instead of a sigmoid: "", "if" or "ifo".
        threads: at most so many; torch's number if not given. Small stacks use fewer. The results are the same.
        softmax: on top of the last layer.

    Attributes:
        threads: as many as it uses.
    """

    def __init__(
        self, layers: Sequence[Layer], hard: str = "", threads: int | None = None, softmax: Softmax | None = None
    ) -> None:
        super().__init__(layers, hard, softmax)
        found = find()
        if found.library is None:
            raise G2Error(f"the kernel for packed weights is {found.description}; use open_session")
        wanted = torch.get_num_threads() if threads is None else threads
        if not isinstance(wanted, int) or wanted < 1:
            raise G2Error(f"threads must be a whole number of at least 1, got {wanted!r}")
        library: Any = found.library
        panel = library.g2lstm_stack_panel()
        packed = [pack_layer(layer, panel) for layer in layers]
        if softmax is not None:
            packed.append(pack_softmax(softmax, panel))
        tables = [_table(block) for block in packed]
        specs = (_Block * len(packed))(*map(_describe, packed, tables))
        self._handle = _POINTER()
        status = library.g2lstm_stack_create(specs, len(packed), HARD.index(hard), wanted, ctypes.byref(self._handle))
        if status:
            size = sum(len(block.data) for block in packed)
            reason = {1: "there is not enough memory", 2: "their description does not fit them, a bug of g2lstm"}
            raise G2Error(f"the kernel cannot take {size} bytes of weights: {reason[status]}")
        # Not at exit: a thread may still be in a call then, and the memory goes back with the process.
        weakref.finalize(self, library.g2lstm_stack_destroy, self._handle).atexit = False
        self._library = library
        self.threads: int = library.g2lstm_stack_threads(self._handle)
        # For `step`, so that it need not find out where its arrays are: that takes longer than a step of a small stack.
        self._x, self._out = np.zeros(self.inputs, np.float32), np.zeros(self.outputs, np.float32)
        self._shape, self._run_step = (self.inputs,), library.g2lstm_stack_run
        self._arguments = (self._handle, _POINTER(self._x.ctypes.data), _LONG(1), _POINTER(self._out.ctypes.data))

    def step(self, x: ArrayLike | Tensor) -> Array:
        """One step: x (I,), an array or a tensor, to an array (O,) of its own."""
        if not isinstance(x, np.ndarray) or x.shape != self._shape:
            return super().step(x)
        with self._lock:
            self._x[:] = x
            self._run_step(*self._arguments)
            return self._out.copy()

    def get_state(self) -> list[tuple[Array, Array]]:
        """Copies of h and c (H,) of each layer."""
        flat = np.empty(2 * sum(self.units), np.float32)
        with self._lock:
            self._library.g2lstm_stack_get(self._handle, flat.ctypes.data)
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


def _table(packed: PackedBlock) -> ctypes.Array[_Product]:
    products = [_Product(*product) for product in (*packed.factors, *packed.products)]
    return (_Product * len(products))(*products)


def _describe(packed: PackedBlock, table: ctypes.Array[_Product]) -> _Block:
    """The caller keeps the block's bytes and its table alive."""
    shape = (packed.inputs, packed.outputs, packed.gates, packed.residual)
    counts = (len(packed.factors), len(packed.products))
    return _Block(*shape, *counts, table, packed.data.ctypes.data, len(packed.data))
