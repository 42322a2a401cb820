"""A stack of LSTM layers as `g2lstm export --format c` writes it, compiled and called, for `g2lstm bench infer`."""

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from g2lstm.errors import G2Error
from g2lstm.export.c.export import export_c
from g2lstm.lab.bench.peers import Runner, Vectors
from g2lstm.nn.lstm import G2LSTM

_LOOP = """
#include "stack.h"
int size(void);
int size(void) { return (int)sizeof(stack_state); }
void run(stack_state *state, const float *inputs, long rows, long first, long count, float *out);
void run(stack_state *state, const float *inputs, long rows, long first, long count, float *out)
{
    for (long k = first; k < first + count; ++k) stack_step(state, inputs + k % rows * STACK_INPUTS, out);
}
"""


def c_runner(model: G2LSTM, inputs: Vectors, flags: Sequence[str]) -> tuple[Runner, int]:
    """What runs a stack that a compiler has compiled with these flags, and the bytes of its weights.

    The steps of a call are a loop in C, as in a program without Python.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise G2Error("there is no C compiler, cc")
    with tempfile.TemporaryDirectory() as folder:
        made = export_c(model, Path(folder) / "stack.c")
        loop, library = Path(folder) / "loop.c", Path(folder) / "stack.so"
        loop.write_text(_LOOP)
        build = [
            compiler,
            "-std=c99",
            *flags,
            "-shared",
            "-fPIC",
            str(made.files[1]),
            str(loop),
            "-o",
            str(library),
            "-lm",
        ]
        done = subprocess.run(build, capture_output=True, text=True, check=False)
        if done.returncode:
            raise G2Error(f"cc can't compile it: {done.stderr.strip().splitlines()[:1]}")
        compiled = ctypes.CDLL(str(library))  # stays open after the file is gone
    state, out, count = ctypes.create_string_buffer(compiled.size()), np.zeros(model.hidden_size, np.float32), 0
    compiled.stack_reset(state)
    inputs = np.ascontiguousarray(inputs, np.float32)

    def run(number: int) -> Vectors:
        nonlocal count
        rows, first, steps = (ctypes.c_long(one) for one in (len(inputs), count, number))
        read, written = (ctypes.c_void_p(one.ctypes.data) for one in (inputs, out))
        compiled.run(state, read, rows, first, steps, written)
        count += number
        return out.copy()

    return run, made.sizes.weights
