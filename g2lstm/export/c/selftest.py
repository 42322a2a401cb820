"""NAME_test.c: a program that compares the C code with the model in Python.

Both round alike, but add in another order, so the tolerance has two parts. A sum of n products in float32 is off by at
most n roundings of 2⁻²⁴. And where vectors meet codes they are rounded to 16 bits: two nearly equal numbers may fall on
neighbouring steps of 1/32639 of the largest one, which is an error of 1 / (32639 √6) in the mean square. A product
multiplies it by the norm of its row. Six such deviations are allowed; measured differences are about a fifth of that.
"""

import math
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from g2lstm.export.c.program import Program
from g2lstm.export.c.step import Step
from g2lstm.export.c.text import array, template
from g2lstm.export.c.translation import Search, Translator

STEPS = 16
_MOST_COMPARED = 64


_SOURCES, _LENGTH, _TARGETS = 3, 8, 6  # of the test of a translation model


def draw_inputs(step: Step, steps: int) -> NDArray[Any]:
    """Random tokens (T,), or vectors (T, inputs)."""
    rng = np.random.default_rng(0)
    if step.is_token:
        return rng.integers(step.inputs, size=steps).astype(np.int32)
    return rng.normal(size=(steps, step.inputs)).astype(np.float32)


def tolerance(program: Program, largest: float) -> float:
    """How far an output y may be off, relative to 1 + |y|, where `largest` is the largest number that is read."""
    blocks = program.blocks.values()
    exact = 2 * (100 + sum(one.inputs + one.hidden for one in blocks)) * 2.0**-24
    return exact + 6 * max(largest, 1.0) * sum(one.norm for one in blocks) / (32639 * math.sqrt(6))


def test_source(step: Step, name: str, inputs: NDArray[Any], outputs: NDArray[Any], allowed: float) -> str:
    """The content of NAME_test.c, from inputs and the outputs (T, O) of the model."""
    outputs = outputs.reshape(len(inputs), -1)
    places, compared = _compared(outputs)
    arrays = [array("int32_t" if step.is_token else "float", "inputs", inputs), *compared]
    read = "inputs[step]" if step.is_token else f"inputs + step * {name.upper()}_INPUTS"
    return Template(template("test.c", ())).substitute(
        name=name,
        upper=name.upper(),
        steps=len(inputs),
        compared=len(places),
        outputs=step.outputs,
        arrays="\n".join(arrays),
        out_type="int32_t" if step.is_index else "float",
        call=f"{name}_step(&state, {read}, out);",
        tolerance=f"{allowed:.3g}",
    )


def translation_test(translator: Translator, search: Search, name: str, allowed: float) -> str:
    """The content of NAME_test.c of a translation model."""
    rng = np.random.default_rng(0)
    sources = rng.integers(translator.source.shape[0], size=(_SOURCES, _LENGTH))
    tokens = rng.integers(translator.target.shape[0], size=(_SOURCES, _TARGETS))
    outputs = np.concatenate([search.read(*pair) for pair in zip(sources.tolist(), tokens.tolist(), strict=True)])
    scores = np.array([search.score(source) for source in sources.tolist()], np.float32)
    places, compared = _compared(outputs)
    arrays = [array("int32_t", "inputs", sources), array("int32_t", "tokens", tokens), *compared]
    return Template(template("translation_test.c", ())).substitute(
        name=name,
        upper=name.upper(),
        sources=_SOURCES,
        length=_LENGTH,
        steps=_TARGETS,
        compared=len(places),
        arrays="\n".join([*arrays, array("float", "scores", scores)]),
        tolerance=f"{allowed:.3g}",
    )


def _compared(outputs: NDArray[Any]) -> tuple[NDArray[Any], list[str]]:
    """Some places of the outputs (T, O), and the arrays of what is expected there."""
    width = outputs.shape[1]
    places = np.linspace(0, width - 1, min(width, _MOST_COMPARED)).round().astype(np.int64)
    expected = outputs[:, places].astype(np.float32)
    return places, [array("int32_t", "places", places), array("float", "expected", expected)]
