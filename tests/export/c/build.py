"""Compiles exports, and steps them from Python."""

import copy
import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
SANITIZED = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
SHIM = """
#include "{name}.h"
int size(void);
int size(void) {{ return (int)sizeof({name}_state); }}
"""


def compiler(name: str = "cc") -> str:
    """A compiler's path; the test is skipped where there is none."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}")
    return found


def compile_c(cc: str, flags: list[str], sources: list[Path], program: Path) -> Path:
    done = subprocess.run([cc, *flags, *sources, "-o", program, "-lm"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def run_self_test(path: Path, flags: list[str], cc: str = "cc", runner: tuple[str, ...] = ()) -> str:
    """Compiles NAME.c with its self-test and runs both; returns what the test prints."""
    test = path.with_name(f"{path.stem}_test.c")
    program = compile_c(compiler(cc), flags, [path, test], path.with_suffix(".test"))
    done = subprocess.run([*runner, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Stream:
    """An export as a shared library with a state, stepped like a session."""

    def __init__(self, path: Path, outputs: int, flags: tuple[str, ...] = ("-O2",), cc: str = "cc") -> None:
        shim, self._name = path.with_name("shim.c"), path.stem
        shim.write_text(SHIM.format(name=path.stem))
        library = path.with_suffix(".so")
        compile_c(compiler(cc), [*STRICT, *flags, "-shared", "-fPIC"], [path, shim], library)
        self._library = ctypes.CDLL(str(library))
        self._outputs, self._step = outputs, getattr(self._library, f"{path.stem}_step")
        self._begin()

    def _begin(self) -> None:
        self._state = ctypes.create_string_buffer(self._library.size() + 64)
        self.reset()

    def another(self) -> "Stream":
        """A second stream of the same library."""
        other = copy.copy(self)
        other._begin()
        return other

    def reset(self) -> None:
        getattr(self._library, f"{self._name}_reset")(self._state)

    def step(self, x) -> np.ndarray:
        out = np.full(self._outputs, np.nan, np.float32)
        given = int(x) if np.ndim(x) == 0 else ctypes.c_void_p(np.ascontiguousarray(x, np.float32).ctypes.data)
        assert not (self._step(self._state, given, ctypes.c_void_p(out.ctypes.data)) and np.ndim(x) == 0)
        return out

    def sequence(self, x) -> np.ndarray:
        return np.stack([self.step(one) for one in x])
