"""`export_c`: a model as C files, which get their names together or not at all."""

import math
import subprocess
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from g2lstm.compression.causal import ModelSession
from g2lstm.compression.model import plain, refuse_scripted
from g2lstm.compression.stream import Streamable, stream
from g2lstm.errors import G2Error
from g2lstm.export.c.program import Program
from g2lstm.export.c.step import Sizes, Step, sources, tokens_source
from g2lstm.export.c.text import array, is_identifier, template
from g2lstm.export.c.trace import layer_step, token_step, traced_step
from g2lstm.export.c.translation import Search, Translating, TranslationParts, Translator, translation_sources
from g2lstm.files import refuse_existing, together
from g2lstm.nn.checks import checked_option
from g2lstm.nn.record import evaluating, gated

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


Run = Callable[[NDArray[Any]], NDArray[Any]]  # from the inputs of some steps to their outputs


@dataclass(frozen=True)
class CExport:
    """What was written.

    Attributes:
        files: NAME.h, NAME.c, NAME_test.c and, if there is a tokenizer, NAME_tokens.c.
        sizes: what the model needs.
        tolerance: how far an output y may be from the model's in Python, relative to 1 + |y|.
        checked: what the self-test said; None if it was not run.
    """

    files: tuple[Path, ...]
    sizes: Sizes
    tolerance: float
    checked: str | None


_APART = 1e-3  # relative to 1 + |output|: float32 in sums of another order is far below
_HEADERS = {
    *("assert", "complex", "ctype", "errno", "fenv", "float", "inttypes", "iso646", "limits", "locale", "math"),
    *("setjmp", "signal", "stdarg", "stdbool", "stddef", "stdint", "stdio", "stdlib", "string", "tgmath", "time"),
    *("wchar", "wctype"),
}


def export_c(
    model: Any,
    path: str | Path,
    example: Any = None,
    *,
    eval_gate: str | None = None,
    compiler: str | None = None,
    force: bool = False,
) -> CExport:
    """Writes a model as plain C, to run where PyTorch can't: NAME.h and NAME.c, and a self-test, NAME_test.c.

    The code is C99 that needs only math.h and string.h, and allocates nothing. Weights are constants, packed as in a
    compressed model; the caller owns the state. `NAME_reset` starts a stream, and `NAME_step` reads one step: a token,
    or a vector. What it computes equals `g2lstm.stream(model)` up to rounding. The tokens of a trained model are
    strings in NAME_tokens.c, which a program without text need not link. A translation model has `NAME_translate`
    instead, with the same beam search as in Python.

    Args:
        model: a recurrent layer, a language model, a trained model from `g2lstm.load`, or any model with recurrent
            layers whose other operations compute each step by itself: embeddings, linear layers, activations, softmax,
            normalisation, argmax. Compressed or not.
        path: NAME.c; NAME is the prefix of all names in it.
        example: one step of what the model reads, without batch and time: a vector (I,), or a token id; or a tuple of
            that and further arguments of forward, such as states, which will start at zero. By default it is what the
            model's first layer reads.
        eval_gate: "soft", "tempered" or "hard"; None for the model's own.
        compiler: a C compiler, such as "cc", with which the self-test is compiled and run before the files get their
            names; None to leave that to you.
        force: replace existing files.
    """
    path = Path(path)
    if path.suffix != ".c" or not is_identifier(path.stem):
        raise G2Error(
            f"the name of a C export must be a C identifier that ends in .c, got {path.name!r}; "
            "use a name such as model.c"
        )
    if path.stem in _HEADERS:
        raise G2Error(f"{path.stem}.h is a header of C itself; choose another name than {path.name}")
    if eval_gate is not None:
        checked_option("eval_gate", eval_gate)
    name = path.stem
    texts = model.token_texts() if hasattr(model, "token_texts") else {}
    names = [f"{name}.h", f"{name}.c", f"{name}_test.c", *([f"{name}_tokens.c"] if texts else [])]
    if not force:
        refuse_existing(path.parent, names)
    module = plain(_module(model))
    if eval_gate not in (None, "soft") and not gated(module):
        raise G2Error(
            f"torch's own layers have soft gates, not {eval_gate!r} ones; pass one of ours, or eval_gate='soft'"
        )
    with evaluating(module, eval_gate), torch.no_grad():
        if isinstance(module, Translating):
            files, sizes, allowed = _translation(model, module.translation_parts(), name, list(texts))
        else:
            files, sizes, allowed = _step(module, example, name, list(texts))
    files |= {f"{name}_tokens.c": tokens_source(name, texts)} if texts else {}
    with together(path, names) as folder:
        for own, text in files.items():
            (folder / own).write_bytes(text.encode())
        checked = None if compiler is None else _check(folder, name, compiler)
    return CExport(tuple(path.parent / own for own in files), sizes, allowed, checked)


def _module(model: Any) -> nn.Module:
    module = getattr(model, "model", model) if not isinstance(model, nn.Module) else model
    module = getattr(module, "_orig_mod", module)  # what `torch.compile` was given
    if not isinstance(module, nn.Module):
        raise G2Error(f"only a torch.nn.Module or a trained model can be exported, got {type(model).__name__}")
    refuse_scripted(module)
    return module


def _step(model: nn.Module, example: Any, name: str, texts: list[str]) -> tuple[dict[str, str], Sizes, float]:
    step, run = _read(model, example)
    files, sizes = sources(step, name, f"{type(model).__name__} as C", texts)
    inputs = draw_inputs(step, STEPS)
    allowed = tolerance(step.function.program, 1.0 if step.is_token else float(np.abs(inputs).max()))
    if not np.isfinite(allowed):
        raise G2Error("the weights are too large for float32: rounding alone may change outputs without limit")
    return {**files, f"{name}_test.c": test_source(step, name, inputs, run(inputs), allowed)}, sizes, allowed


def _translation(
    model: Any, parts: TranslationParts, name: str, texts: list[str]
) -> tuple[dict[str, str], Sizes, float]:
    if not hasattr(model, "c_search"):
        raise G2Error("a translation model needs the tokens that begin and end its sentences; export load(run) instead")
    translator, search = Translator(parts), model.c_search()
    files, sizes = translation_sources(translator, search, name, f"{type(model).__name__} as C", texts)
    allowed = tolerance(translator.program, 1.0)
    return {**files, f"{name}_test.c": translation_test(translator, search, name, allowed)}, sizes, allowed


def _read(model: nn.Module, example: Any) -> tuple[Step, Run]:
    """One step of a model, and the model itself as a function of many."""
    if isinstance(model, Streamable):
        return token_step(model.stream_parts()), lambda inputs: np.asarray(stream(model, 1).sequence(inputs))
    if isinstance(model, nn.LSTM | nn.GRU):
        if example is not None and (count := torch.as_tensor(example).numel()) != model.input_size:
            raise G2Error(f"the model reads {model.input_size} numbers per step, but the example has {count}")
        return layer_step(model), lambda inputs: np.asarray(stream(model, 1).sequence(inputs))
    session = ModelSession(model, threads=1)
    x, *others = example if isinstance(example, tuple) else (_example(model) if example is None else example,)
    step = traced_step(model, (session.shaped(x), *others))
    if not others:
        _check_steps(model, step)
    return step, lambda inputs: np.stack([session.step(one, *others) for one in inputs])


def _check_steps(model: nn.Module, step: Step) -> None:
    """Raises if a sequence gives other outputs than its steps one by one, where the model takes sequences at all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # given before
        session = ModelSession(model, batch=2, threads=1)  # two streams: in torch, as the model itself computes
    inputs = torch.from_numpy(draw_inputs(step, 3))
    inputs = inputs.long() if step.is_token else inputs
    twice = [torch.stack([one, one]) for one in inputs]
    try:
        once = np.stack([session.step(one) for one in twice])
        session.reset()
        again = np.stack([session.step(one) for one in twice])
    except Exception:  # it takes a single stream only
        return
    if not np.array_equal(once, again, equal_nan=True):
        raise G2Error("the model's forward gives different outputs each time; export one that draws no random numbers")
    if session.time_axis is None:
        return
    try:
        whole: Any = model(torch.stack(twice, session.time_axis))
    except Exception:  # it takes single steps only
        return
    while isinstance(whole, tuple | list) and len(whole):
        whole = whole[0]
    if not isinstance(whole, torch.Tensor) or whole.dim() != once.ndim:
        return  # of the last step alone, say
    apart = np.abs(whole.transpose(0, session.time_axis).float().numpy() - once) / (1 + np.abs(once))
    if apart.shape == once.shape and apart.max() > _APART:
        raise G2Error(
            f"the model mixes steps: outputs of a sequence and of its steps one by one differ by {apart.max():.2g}; "
            "only a model that computes each step by itself, apart from its recurrent layers, can become C"
        )


def _example(model: nn.Module) -> Any:
    """What the first of a model's layers reads: a token, or a vector."""
    for module in model.modules():
        if hasattr(module, "num_embeddings"):
            return 0
        if width := getattr(module, "in_features", 0) or getattr(module, "input_size", 0):
            return torch.zeros(width)
    raise AssertionError("a model with recurrent layers has one that says what it reads")


def _check(folder: Path, name: str, compiler: str) -> str:
    """Compiles and runs the self-test; returns what it says."""
    program = folder / "program"
    sources = [f"{name}.c", f"{name}_test.c"]
    try:
        subprocess.run(
            [compiler, "-std=c99", "-O2", *sources, "-o", program.name, "-lm"],
            cwd=folder, check=True, capture_output=True, text=True,
        )  # fmt: skip
        done = subprocess.run([program], check=False, capture_output=True, text=True)
    except OSError as error:
        raise G2Error(f"the compiler {compiler!r} can't be run: {error.strerror}; nothing was written") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.splitlines() or ["nothing"]
        said = next((line for line in lines if "error" in line), lines[0])
        raise G2Error(f"{compiler} can't compile the export, and says: {said}; nothing was written") from None
    program.unlink()
    if done.returncode:
        raise G2Error(f"the self-test fails, and says: {done.stdout.strip()}; nothing was written, please report this")
    return done.stdout.strip()
