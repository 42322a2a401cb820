"""Compares an export with the model that it was made from: both read the same numbers, and the results must agree.

Both compute in float32, but add in another order. A sum of n products is off by at most n roundings of 2⁻²⁴, so two
sums differ by at most twice that, relative to what was added up. The tolerance counts the terms of every product with a
weight matrix, and a hundred roundings more for the functions in between, which runtimes approximate. Each step adds to
the error, but gates below 1 forget it. Measured differences are about a hundredth of the tolerance.

With int8 activations the same graph is checked first with float32 ones, and then as it is. Each number of a vector is
rounded to a multiple of 1/127 of the largest one near it, which is an error of 1 / (127 √12) in the mean square if the
largest is 1. A product multiplies it by the norm of the row. Six such deviations of the largest row are allowed, which
is coarse.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from torch import Tensor, nn

from g2lstm.compression.model import encoded_matrices
from g2lstm.errors import G2Error
from g2lstm.export.part import Call, Part, Tensors
from g2lstm.export.weights import ACCURACY
from g2lstm.nn.record import gated

Arrays = Mapping[str, npt.NDArray[Any]]
Runner = Callable[[Arrays], Arrays]

SIZES = ((1, 1, 1), (7, 3, 4), (2, 5, 3), (12, 1, 2))  # of what may differ in each call, such as steps and sequences
_TRIES_OF_HARD_GATES = 3  # rounding may flip a gate whose pre-activation is close to 0


@dataclass(frozen=True)
class Agreement:
    """How well an export agrees with its model.

    Attributes:
        difference: the largest one found, |ours - theirs| / (1 + |ours|).
        tolerance: the largest one allowed.
    """

    difference: float
    tolerance: float


def check(part: Part, file: Path, activations: str) -> Agreement:
    """Runs an export in ONNX Runtime beside the model, at several lengths and batch sizes.

    Args:
        part: its model is in evaluation mode, in float32 on the CPU.
        file: its graph.
        activations: those of the export.
    """
    rounding = _rounding(part.model)
    if activations == "float32":
        return _compare(part, open_runner(file), rounding)
    with _largest_input(part.model) as largest:
        _compare(part, open_runner(_with_exact_products(file)), rounding)
    return _compare(part, open_runner(file), rounding + _rounding_to_int8(part.model, max(largest)))


@torch.no_grad()
def _compare(part: Part, run: Runner, tolerance: float) -> Agreement:
    is_hard = any(layer.gate_rule().hard for layer in gated(part.model))
    generator, worst = torch.Generator().manual_seed(0), 0.0
    names = list(dict.fromkeys(size for shape in part.shapes.values() for size in shape if isinstance(size, str)))
    for numbers in (None, *SIZES):
        sizes = {} if numbers is None else {name: numbers[k % len(numbers)] for k, name in enumerate(names)}
        for attempt in range(1, _TRIES_OF_HARD_GATES + 1):
            inputs = part.inputs if numbers is None else part.draw(sizes, generator)
            ours = _computed(part, inputs, may_refuse=numbers is not None)
            theirs = {} if ours is None else run({name: one.numpy() for name, one in inputs.items()})
            differences = {name: _difference(name, theirs[name], one.numpy()) for name, one in (ours or {}).items()}
            name = max(differences, key=lambda one: differences[one], default="")
            difference = differences.get(name, 0.0)
            if difference <= tolerance or not is_hard or attempt == _TRIES_OF_HARD_GATES:
                break
        if difference > tolerance:
            where = " and ".join(f"{name} {size}" for name, size in sizes.items()) or "the example"
            raise G2Error(
                f"the export does not agree with the model: {name} differs by {difference:.2g} with {where}, and "
                f"{tolerance:.2g} is allowed; nothing was written, please report this"
            )
        worst = max(worst, difference)
    return Agreement(worst, tolerance)


def _computed(part: Part, inputs: Tensors, may_refuse: bool) -> Tensors | None:
    """What the model itself computes; None if anyone's model does not take these sizes."""
    try:
        return part.compute(inputs)
    except Exception:  # whatever a user's forward raises; the example itself must compute
        if may_refuse and isinstance(part, Call):
            return None
        raise


def open_runner(file: Path | bytes) -> Runner:
    """Opens a file, or its content, in ONNX Runtime, as a function from inputs by name to outputs by name."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised as well
    options.intra_op_num_threads = 1  # starting more takes longer than the work

    def failed(error: Exception) -> G2Error:
        return G2Error(f"ONNX Runtime {onnxruntime.__version__} can't run the export: {error}; nothing was written")

    try:
        source = file if isinstance(file, bytes) else str(file)
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no other class in common
        raise failed(error) from error
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Arrays) -> Arrays:
        try:
            return dict(zip(names, session.run(names, dict(inputs)), strict=True))
        except Exception as error:
            raise failed(error) from error

    return run


def _with_exact_products(file: Path) -> bytes:
    """The graph of a file, with float32 activations instead of int8."""
    model = onnx.load(file)
    graphs = [model.graph]
    while graphs:
        for node in graphs.pop().node:
            for attribute in node.attribute:
                if attribute.name == "accuracy_level":
                    attribute.i = ACCURACY["float32"]
                elif attribute.name == "body":
                    graphs.append(attribute.g)
    return model.SerializeToString()


def _rounding(model: nn.Module) -> float:
    """What the terms of all sums allow: each matrix adds up as many as it has columns."""
    columns = {name: one[0].numel() for name, one in model.named_parameters() if one.dim() > 1}
    for name, encoding in encoded_matrices(model).items():
        columns[name[:-2] if name[-2:-1] == "." else name] = encoding.shape[1]  # the gates have matrices of their own
    return 2 * (100 + sum(columns.values())) * 2.0**-24


@contextmanager
def _largest_input(model: nn.Module) -> Iterator[list[float]]:
    """Lists the largest number in each vector that a module reads, and 1, which outputs of LSTMs do not exceed."""
    largest = [1.0]

    def note(_: nn.Module, inputs: Any) -> None:
        found = (one for one in inputs if isinstance(one, Tensor) and one.is_floating_point())
        largest.extend(float(one.abs().max()) for one in found)

    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(module.register_forward_pre_hook(note).remove)
        yield largest


def _rounding_to_int8(model: nn.Module, largest_input: float) -> float:
    largest = 0.0
    for encoding in encoded_matrices(model).values():
        norm = _largest_row(encoding.decode())
        *thin, left = encoding.factors()
        for right in thin:  # what comes between is rounded too, and is a few times as large as a row of the right
            norm += 4 * _largest_row(left.decode()) * _largest_row(right.decode())
        largest = max(largest, norm)
    return 6 * largest * largest_input / (127 * math.sqrt(12))


def _largest_row(matrix: npt.NDArray[np.float32]) -> float:
    return float(np.linalg.norm(matrix, axis=1).max())


def _difference(name: str, theirs: npt.NDArray[Any], ours: npt.NDArray[Any]) -> float:
    if theirs.shape != ours.shape:
        raise G2Error(f"the export returns {name} of shape {theirs.shape}, the model {ours.shape}; nothing was written")
    if theirs.dtype == np.bool_:
        return 0.0 if (theirs == ours).all() else math.inf
    if not np.isfinite(ours).all():
        raise G2Error(f"the model's own {name} is not finite, so its weights are broken; train it again")
    difference = np.abs(theirs - ours) / (1 + np.abs(ours))
    return float(difference.max()) if np.isfinite(theirs).all() else math.inf
