"""Finds and opens the compiled kernels (`csrc/`): one library for each instruction set, opened with ctypes."""

import ctypes
import functools
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The instruction sets that `setup.py` compiles the kernels for, fastest first.
BUILDS = {
    "AVX-512 with VNNI and bfloat16": "_kernel_avx512bf16",
    "AVX-512 with VNNI": "_kernel_avx512vnni",
    "AVX-512": "_kernel_avx512",
    "AVX2": "_kernel_avx2",
    "any processor": "_kernel_generic",
}

_SUFFIX = ".pyd" if os.name == "nt" else ".so"  # without the name of a Python: one library serves all
_POINTER, _LONG, _INT, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_double
_LAYER = [_LONG, _LONG, _LONG, _LONG, _POINTER, _POINTER, _DOUBLE, _INT]
_RECURRENCES: dict[str, list[Any]] = {
    "g2lstm_forward": [*_LAYER, *[_POINTER] * 8, _INT, _INT],
    "g2lstm_backward": [*_LAYER, *[_POINTER] * 9, _INT, _INT],
    "g2lstm_gru_forward": [*_LAYER, *[_POINTER] * 7, _INT, _INT],
    "g2lstm_gru_backward": [*_LAYER, *[_POINTER] * 8, _INT, _INT],
}
_FOR_EACH_DTYPE: dict[str, list[Any]] = {
    **_RECURRENCES,
    "g2lstm_noise": [_LONG, _LONG, _POINTER, _LONG, _LONG, _LONG, _INT],
    "g2lstm_drop": [_LONG, _LONG, _POINTER, _POINTER, _LONG, _LONG, _DOUBLE, _INT],
}
_IN_BFLOAT16 = {f"{name}_bfloat16": (of, _INT) for name, of in _RECURRENCES.items()}  # with instructions for it only
_SIGNATURES: dict[str, tuple[list[Any], Any]] = {
    **{f"{name}_{dtype}": (of, _INT) for name, of in _FOR_EACH_DTYPE.items() for dtype in ("float32", "float64")},
    "g2lstm_stack_panel": ([], _INT),
    "g2lstm_stack_create": ([_POINTER, _LONG, _INT, _INT, _POINTER], _INT),
    "g2lstm_stack_destroy": ([_POINTER], None),
    "g2lstm_stack_threads": ([_POINTER], _INT),
    "g2lstm_stack_run": ([_POINTER, _POINTER, _LONG, _POINTER], None),
    "g2lstm_stack_get": ([_POINTER, _POINTER], None),
    "g2lstm_stack_set": ([_POINTER, _POINTER], None),
    "g2lstm_translation_create": ([_POINTER] * 3, _INT),
    "g2lstm_translation_destroy": ([_POINTER], None),
    "g2lstm_translation_threads": ([_POINTER], _INT),
    "g2lstm_translation_run": ([*[_POINTER] * 4, _LONG, _POINTER, _POINTER], _INT),
    "g2lstm_translation_take": ([_POINTER] * 4, None),
}


@dataclass(frozen=True)
class Found:
    """The compiled kernels, or why there are none."""

    library: ctypes.CDLL | None
    description: str
    has_bfloat16: bool = False  # recurrences whose products multiply bfloat16


@functools.cache
def find() -> Found:
    """Opens the fastest library that this processor can run, once; it holds all the kernels."""
    problems = []
    for name, file in BUILDS.items():
        path = Path(__file__).with_name(file + _SUFFIX)
        if not path.is_file():
            continue
        try:
            library = ctypes.CDLL(str(path))
            if _bind(library):
                return Found(library, f"compiled for {name}", all(hasattr(library, one) for one in _IN_BFLOAT16))
        except (OSError, AttributeError) as problem:
            problems.append(f"{path.name} does not load: {problem}")
    if problems:
        return Found(None, "; ".join(problems))
    return Found(None, "not compiled: no C++ compiler when g2lstm was installed; install one, then reinstall g2lstm")


@functools.cache
def warn_that_it_is_slow() -> None:
    """Says once that layers train without the compiled kernels, what that costs, and why."""
    warnings.warn(
        f"the compiled kernels are missing, so training takes 1.5 to 2.5 times as long as with torch.nn.LSTM: "
        f"{find().description}",
        stacklevel=2,
    )


def _bind(library: ctypes.CDLL) -> bool:
    """Declares the functions to ctypes; False if the processor lacks instructions that the library needs."""
    optional = {name: of for name, of in _IN_BFLOAT16.items() if hasattr(library, name)}
    for name, (arguments, result) in (_SIGNATURES | optional).items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return bool(library.g2lstm_runs_here())


def call(name: str, dtype: object, *arguments: object) -> None:
    """Calls a function that exists for float32 and float64, and some for bfloat16. The caller knows that it does."""
    function = getattr(find().library, f"{name}_{str(dtype).removeprefix('torch.')}")
    status = function(*arguments)
    if status == 1:
        raise MemoryError("the kernel could not allocate its packed weights")
    if status:
        raise ValueError(
            "the kernel needs steps of 0 to as many rows as there are sequences, all of them in the tensors"
        )
