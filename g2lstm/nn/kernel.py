"""Finds and loads the compiled kernels (`csrc/`), and calls the recurrence and the noise on torch tensors."""

import ctypes
import functools
import importlib.machinery
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from g2lstm.nn.gate import GateRule, last_noisy_word

# The instruction sets that `setup.py` compiles the kernels for, fastest first.
BUILDS = {
    "AVX-512 with VNNI": "_kernel_avx512vnni",
    "AVX-512": "_kernel_avx512",
    "AVX2": "_kernel_avx2",
    "any processor": "_kernel_generic",
}

_POINTER, _LONG, _INT, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_double
_LAYER = [_LONG, _LONG, _LONG, _LONG, _POINTER, _POINTER, _DOUBLE, _INT]
_FOR_EACH_DTYPE: dict[str, list[Any]] = {  # float32 and float64
    "g2lstm_forward": [*_LAYER, *[_POINTER] * 8, _INT, _INT],
    "g2lstm_backward": [*_LAYER, *[_POINTER] * 9, _INT, _INT],
    "g2lstm_noise": [_LONG, _LONG, _POINTER, _LONG, _LONG, _INT],
    "g2lstm_drop": [_LONG, _LONG, _POINTER, _POINTER, _LONG, _LONG, _DOUBLE, _INT],
}
_SIGNATURES: dict[str, tuple[list[Any], Any]] = {
    **{f"{name}_{dtype}": (of, _INT) for name, of in _FOR_EACH_DTYPE.items() for dtype in ("float32", "float64")},
    "g2lstm_stack_panel": ([], _INT),
    "g2lstm_stack_create": ([_POINTER, _LONG, _INT, _INT, _POINTER], _INT),
    "g2lstm_stack_destroy": ([_POINTER], None),
    "g2lstm_stack_threads": ([_POINTER], _INT),
    "g2lstm_stack_run": ([_POINTER, _POINTER, _LONG, _POINTER], None),
    "g2lstm_stack_get": ([_POINTER, _POINTER], None),
    "g2lstm_stack_set": ([_POINTER, _POINTER], None),
}


@dataclass(frozen=True)
class Found:
    """The compiled kernels, or why there are none."""

    library: ctypes.CDLL | None
    description: str


@functools.cache
def find() -> Found:
    """Loads the fastest library that this processor can run, once; it holds all the kernels."""
    problems = []
    for name, file in BUILDS.items():
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = Path(__file__).with_name(file + suffix)
            if not path.is_file():
                continue
            try:
                library = ctypes.CDLL(str(path))
                if _bind(library):
                    return Found(library, f"compiled for {name}")
            except (OSError, AttributeError) as problem:
                problems.append(f"{path.name} does not load: {problem}")
    if problems:
        return Found(None, "; ".join(problems))
    return Found(None, "not compiled: no C++ compiler when g2lstm was installed; install one, then reinstall g2lstm")


def _bind(library: ctypes.CDLL) -> bool:
    """Declares the functions to ctypes; False if the processor lacks instructions that the library needs."""
    for name, (arguments, result) in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return bool(library.g2lstm_runs_here())


def logistic_noise(stream: Tensor, count: int, rate: float, dtype: torch.dtype) -> Tensor:
    """`g2lstm.nn.gate.logistic_noise` in one pass, for float32 and float64 on the CPU."""
    last = last_noisy_word(rate, dtype)
    if last < 0:
        return torch.zeros(count, dtype=dtype, device="cpu")
    noise = torch.empty(count, dtype=dtype, device="cpu")
    _call("g2lstm_noise", dtype, *stream.tolist(), noise.data_ptr(), count, last, torch.get_num_threads())
    return noise


def drop(weight: Tensor, stream: Tensor, dropped: int, scale: float) -> Tensor:
    """`g2lstm.nn.draw.drop` in one pass, for contiguous float32 and float64 on the CPU."""
    result = torch.empty_like(weight)
    addresses = (weight.data_ptr(), result.data_ptr())
    threads = torch.get_num_threads()
    _call("g2lstm_drop", weight.dtype, *stream.tolist(), *addresses, weight.numel(), dropped, scale, threads)
    return result


def _check(dtype: torch.dtype, *pairs: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """The kernel reads and writes memory by these shapes, so they are checked once more, whoever calls."""
    for tensor, expected in pairs:
        if tensor is None:
            continue
        is_right = tuple(tensor.shape) == expected and tensor.dtype == dtype and tensor.is_contiguous()
        if not is_right or tensor.device.type != "cpu":
            raise ValueError(
                f"the LSTM kernel needs a contiguous {dtype} tensor of shape {expected} on the CPU, "
                f"got {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
            )


def _check_steps(rows: Tensor, offset: Tensor, n: int) -> None:
    for tensor in (rows, offset):
        if tensor.dtype != torch.int64 or not tensor.is_contiguous() or len(tensor) != len(rows):
            raise ValueError(f"the LSTM kernel needs contiguous int64 steps, got {tensor.dtype} {tuple(tensor.shape)}")
    if int(rows.sum()) != n:
        raise ValueError(f"the steps have {int(rows.sum())} rows in all, but the tensors have {n}")


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _call(function: str, dtype: torch.dtype, *arguments: object) -> None:
    library = find().library
    assert library is not None, "the caller checks that the kernel is there"
    if getattr(library, f"{function}_{str(dtype).removeprefix('torch.')}")(*arguments):
        raise MemoryError("the LSTM kernel could not allocate its packed weights")


def _layer(rows: Tensor, offset: Tensor, c0: Tensor, w_r: Tensor | None, rule: GateRule) -> list[object]:
    batch, hidden = c0.shape
    projected = 0 if w_r is None else w_r.size(0)
    steps = [len(rows), batch, hidden, projected, rows.data_ptr(), offset.data_ptr()]
    return [*steps, rule.tau, rule.noisy_gates]


def forward(
    gates: Tensor,
    noise: Tensor | None,
    w_h: Tensor,
    w_r: Tensor | None,
    h0: Tensor,
    c0: Tensor,
    rows: Tensor,
    offset: Tensor,
    rule: GateRule,
) -> tuple[Tensor, Tensor]:
    """Turns `gates` (N, 4H) from W_x x + b into the gate values; returns h (N, R) and c (N, H) of all steps.

    All tensors are contiguous, on the CPU, of one dtype. Step s has rows[s] sequences, from row offset[s] on.
    """
    (batch, hidden), width, n = c0.shape, h0.size(1), len(gates)
    _check_steps(rows, offset, n)
    _check(
        gates.dtype,
        (gates, (n, 4 * hidden)),
        (noise, (n, rule.noisy_gates * hidden)),
        (w_h, (4 * hidden, width)),
        (w_r, (width, hidden)),
        (h0, (batch, hidden if w_r is None else width)),
        (c0, (batch, hidden)),
    )
    out = gates.new_empty(len(gates), width)
    cells = gates.new_empty(len(gates), hidden)
    pointers = [_address(t) for t in (gates, noise, w_h, w_r, h0, c0, out, cells)]
    layer = _layer(rows, offset, c0, w_r, rule)
    _call("g2lstm_forward", gates.dtype, *layer, *pointers, rule.hard, torch.get_num_threads())
    return out, cells


def backward(
    gates: Tensor,
    cells: Tensor,
    w_h: Tensor,
    w_r: Tensor | None,
    c0: Tensor,
    d_out: Tensor,
    d_h: Tensor,
    d_c: Tensor,
    rows: Tensor,
    offset: Tensor,
    rule: GateRule,
) -> Tensor:
    """Returns the gradient of the pre-activations, (N, 4H).

    Changes d_h (B, R) and d_c (B, H) from the gradients of the last states to those of the first and, where there is a
    projection, d_out (N, R) from the gradient of the output to that of h.
    """
    (batch, hidden), width, n = c0.shape, d_h.size(1), len(gates)
    _check_steps(rows, offset, n)
    _check(
        gates.dtype,
        (gates, (n, 4 * hidden)),
        (cells, (n, hidden)),
        (w_h, (4 * hidden, width)),
        (w_r, (width, hidden)),
        (c0, (batch, hidden)),
        (d_out, (n, width)),
        (d_h, (batch, hidden if w_r is None else width)),
        (d_c, (batch, hidden)),
    )
    d_gates = torch.empty_like(gates)
    pointers = [_address(t) for t in (gates, cells, c0, w_h, w_r, d_out, d_gates, d_h, d_c)]
    layer = _layer(rows, offset, c0, w_r, rule)
    _call("g2lstm_backward", gates.dtype, *layer, *pointers, rule.hard, torch.get_num_threads())
    return d_gates
