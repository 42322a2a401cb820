"""C source text: identifiers, numbers, arrays, strings, and the sections of a template that are needed."""

import re
from collections.abc import Callable, Collection, Iterable
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_COLUMNS = 120


def is_identifier(name: str) -> bool:
    """Whether a name can be the prefix of names in C; with what follows, a word of the language can, too."""
    return _IDENTIFIER.fullmatch(name) is not None


def identifier(name: str, taken: Collection[str]) -> str:
    """A C identifier that resembles any name, and is not taken; _ and perhaps a number end it, unlike all others."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:60] or "x"
    plain = f"{plain if plain[0].isalpha() else f'x{plain}'}_"
    numbered = (f"{plain}{k or ''}" for k in range(len(taken) + 1))
    return next(one for one in numbered if one not in taken)


def comment(text: str) -> str:
    """Any text within a comment: only characters that can't end it or begin anything else."""
    return re.sub(r"[^A-Za-z0-9 _.,:;()\[\]+=<>-]", ".", text)


def number(value: float) -> str:
    """A float constant, exact in float32."""
    text = f"{np.float32(value):.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def string(content: bytes) -> str:
    """A string literal of any bytes without NUL. Octal escapes of three digits never run into what follows."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in content)
    return f'"{"".join(plain)}"'


def array(kind: str, name: str, values: NDArray[np.generic]) -> str:
    """The definition of a constant array of floats or integers; unsigned ones are written in hexadecimal."""
    flat = values.reshape(-1)
    forms: dict[str, Callable[[Any], str]] = {"f": number, "u": "0x%x".__mod__, "i": str}
    each = map(forms[flat.dtype.kind], flat.tolist())
    return f"static const {kind} {name}[{flat.size}] ALIGNED = {{\n{wrapped(each)}\n}};\n"


def wrapped(items: Iterable[str]) -> str:
    """Items with commas between them, in lines that are not too long."""
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > _COLUMNS:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join([*lines, line])


def template(name: str, features: Collection[str]) -> str:
    """A template without the sections that are not needed.

    A line `//@ a b` begins a section that needs any of these features, and `//@` ends it; sections may be nested.
    """
    kept: list[str] = []
    open_sections: list[bool] = []
    for line in (files("g2lstm.export.c") / "templates" / name).read_text("utf-8").splitlines():
        if line == "//@":
            open_sections.pop()
        elif line.startswith("//@ "):
            open_sections.append(any(one in features for one in line.split()[1:]))
        elif all(open_sections):
            kept.append(line)
    return "\n".join(kept) + "\n"
