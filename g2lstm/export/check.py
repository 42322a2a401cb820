"""Compares an export with the model that it was made from: both read the same numbers, and the results must agree.

Both compute in float32, but add in another order. A sum of n products is off by at most n roundings of 2⁻²⁴, so two
sums differ by at most twice that, relative to what was added up. The tolerance counts every term on the way through all
layers, and a hundred roundings more for the functions in between, which runtimes approximate. Each step adds to the
error, but gates below 1 forget it. Measured differences are about a hundredth of the tolerance.

With int8 activations the same graph is checked first with float32 ones, and then as it is. Each number of a vector is
rounded to a multiple of 1/127 of the largest one near it, which is an error of 1 / (127 √12) in the mean square if the
largest is 1; outputs of LSTMs do not exceed that. A product multiplies it by the norm of the row. Six such deviations
of the largest row are allowed, which is coarse.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx
import torch
from torch import Tensor, nn

from g2lstm.compression.model import encoded_matrices
from g2lstm.compression.modules import CompressedEmbedding, CompressedLinear
from g2lstm.errors import G2Error
from g2lstm.export.weights import ACCURACY
from g2lstm.nn.lstm import GatedLSTM
from g2lstm.nn.record import lstms

if TYPE_CHECKING:
    from g2lstm.export.graph import Graph

Arrays = Mapping[str, npt.NDArray[Any]]
Runner = Callable[[Arrays], Arrays]
Runners = Mapping[str, Runner]  # by the part of the model
Outputs = Iterator[tuple[str, npt.NDArray[Any], Tensor]]  # an output's name, its value in the export and in the model

SIZES = ((1, 1), (7, 3), (2, 5), (12, 1))  # steps and sequences; the graphs have no fixed ones
_TRIES_OF_HARD_GATES = 3  # rounding may flip a gate whose pre-activation is close to 0


class Exporter(ABC):
    """How one kind of model becomes ONNX graphs, and how they are compared with it.

    A model that can be exported has a method `onnx_exporter()` that returns one. So can a trained model,
    which adds its tokenizers.

    Args:
        module: the model.

    Attributes:
        example: lines of Python that run the export, with {path} and {stem} for its name with and without its ending,
            and {begin} and {end} for the tokens that begin the output and end the input.
        parts: the graphs, each in a file of its own.
        files: the content of further files, by the ending of their names.
        facts: what else is known about the model, for the description; a table of tokens may name those files.
    """

    example: ClassVar[str]
    parts: ClassVar[tuple[str, ...]] = ("model",)

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.files: dict[str, bytes] = {}
        self.facts: dict[str, Any] = {}

    @abstractmethod
    def graphs(self, activations: str) -> dict[str, "Graph"]:
        """The graph of each part, of the module in its present mode."""

    @abstractmethod
    def outputs(self, runners: Runners, steps: int, batch: int, generator: torch.Generator) -> Outputs:
        """Runs export and model on the same random input; yields every output of both."""

    @property
    def softmax_width(self) -> int:
        """The number of terms in a logit; 0 without a softmax."""
        return 0

    def largest_input(self, embedded: float) -> float:
        """The largest number in a vector that a matrix is multiplied by, if `embedded` is that in the embeddings."""
        return embedded


@dataclass(frozen=True)
class Agreement:
    """How well an export agrees with its model.

    Attributes:
        difference: the largest one found, |ours - theirs| / (1 + |ours|).
        tolerance: the largest one allowed.
    """

    difference: float
    tolerance: float


def check(exporter: Exporter, files: Mapping[str, Path], activations: str) -> Agreement:
    """Runs an export in ONNX Runtime beside the model, at several lengths and batch sizes.

    Args:
        exporter: its module is in evaluation mode, in float32 on the CPU.
        files: by the part of the model.
        activations: those of the export.
    """
    rounding = _rounding(exporter)
    if activations == "float32":
        return _compare(exporter, {name: open_runner(file) for name, file in files.items()}, rounding)
    _compare(exporter, {name: open_runner(_with_exact_products(file)) for name, file in files.items()}, rounding)
    coarse = rounding + _rounding_to_int8(exporter)
    return _compare(exporter, {name: open_runner(file) for name, file in files.items()}, coarse)


@torch.no_grad()
def _compare(exporter: Exporter, runners: Runners, tolerance: float) -> Agreement:
    is_hard = any(layer.gate_rule().hard for layer in lstms(exporter.module))
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for steps, batch in SIZES:
        for attempt in range(1, _TRIES_OF_HARD_GATES + 1):
            difference, name = 0.0, ""
            for output, theirs, ours in exporter.outputs(runners, steps, batch, generator):
                found = _difference(output, theirs, ours.numpy())
                if found > difference:
                    difference, name = found, output
            if difference <= tolerance or not is_hard or attempt == _TRIES_OF_HARD_GATES:
                break
        if difference > tolerance:
            raise G2Error(
                f"the export does not agree with the model: {name} differs by {difference:.2g} with {steps} steps "
                f"and {batch} sequences, and {tolerance:.2g} is allowed; nothing was written, please report this"
            )
        worst = max(worst, difference)
    return Agreement(worst, tolerance)


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


def _rounding(exporter: Exporter) -> float:
    terms = 100 + exporter.softmax_width
    for module in exporter.module.modules():
        if isinstance(module, nn.LSTM | GatedLSTM):
            width = module.proj_size or module.hidden_size
            above = (2 if module.bidirectional else 1) * width  # what the layer above reads
            terms += module.input_size + width + (module.num_layers - 1) * (above + width)
        elif isinstance(module, nn.Linear | CompressedLinear):
            terms += module.in_features
    return 2 * terms * 2.0**-24


def _rounding_to_int8(exporter: Exporter) -> float:
    largest = 0.0
    for encoding in encoded_matrices(exporter.module).values():
        norm = _largest_row(encoding.decode())
        *thin, left = encoding.factors()
        for right in thin:  # what comes between is rounded too, and is a few times as large as a row of the right
            norm += 4 * _largest_row(left.decode()) * _largest_row(right.decode())
        largest = max(largest, norm)
    embedded = 1.0
    for table in exporter.module.modules():
        if isinstance(table, nn.Embedding | CompressedEmbedding):
            embedded = max(embedded, float(table.weight.detach().abs().max()))
    return 6 * largest * exporter.largest_input(embedded) / (127 * math.sqrt(12))


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


def draw_state(count: int, batch: int, width: int, hidden: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random states h (count, batch, width) and c (count, batch, hidden)."""
    h = torch.rand(count, batch, width, generator=generator, dtype=torch.float32) * 2 - 1
    return h, torch.randn(count, batch, hidden, generator=generator, dtype=torch.float32)


def named_states(layers: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The states by the names that graphs have for them: h0, c0, h1, ..."""
    for number, state in enumerate(layers):
        yield from zip((f"h{number}", f"c{number}"), state, strict=True)
