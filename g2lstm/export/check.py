"""An export beside the model that it was made from: both read the same numbers, and the results must agree.

Both compute in float32, but add in another order. A sum of n products is off by at most n roundings of 2⁻²⁴, so two
of them differ by at most twice that, relative to what was added up; the tolerance counts every term on the way through
all layers, and a hundred roundings more for the functions in between, which runtimes approximate. Steps repeat this,
but gates below 1 forget it. Measured differences are about a hundredth of that.

With int8 activations the same graph is first checked like that with float32 ones, and then as it is. Each number of a
vector is rounded to a multiple of 1/127 of the greatest near it: an error of 1 / (127 √12) in the mean square where
the greatest is 1, as it is at most in outputs of LSTMs. In a product it becomes as many times that as the norm of the
row. Six such deviations of the largest row are allowed, which is coarse.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from torch import Tensor, nn

from g2lstm.compression.matrix import LowRank
from g2lstm.compression.model import encoded_matrices
from g2lstm.compression.table import CompressedEmbedding
from g2lstm.errors import G2Error
from g2lstm.export.weights import ACCURACY
from g2lstm.nn.lstm import G2LSTM
from g2lstm.nn.mode import lstms
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.mt.model import DecoderState, TranslationModel

Arrays = Mapping[str, npt.NDArray[Any]]
Runner = Callable[[Arrays], Arrays]
Pairs = Iterator[tuple[str, npt.NDArray[Any], Tensor]]  # an output's name, its value there and here

SIZES = ((1, 1), (7, 3), (2, 5), (12, 1))  # steps and sequences; a graph is made without any
_HYPOTHESES = (1, 2, 1, 3)
_TRIES_OF_HARD_GATES = 3  # a pre-activation within rounding of 0 may open a gate here and close it there


@dataclass(frozen=True)
class Agreement:
    """How well an export agrees with its model.

    Attributes:
        difference: the largest found, |ours - theirs| / (1 + |ours|).
        tolerance: the largest allowed.
    """

    difference: float
    tolerance: float


def check(
    model: LanguageModel | TranslationModel | nn.LSTM | G2LSTM, files: Mapping[str, Path], activations: str
) -> Agreement:
    """Runs an export in ONNX Runtime at several lengths and batches beside the model.

    Args:
        model: in evaluation mode, float32 on the CPU.
        files: "model", or "encoder" and "decoder".
        activations: as the export has them.
    """
    rounding = _rounding(model)
    if activations == "float32":
        return _compare(model, {name: open_runner(file) for name, file in files.items()}, rounding)
    _compare(model, {name: open_runner(_with_exact_products(file)) for name, file in files.items()}, rounding)
    coarse = rounding + _rounding_to_int8(model)
    return _compare(model, {name: open_runner(file) for name, file in files.items()}, coarse)


def _compare(model: nn.Module, runners: Mapping[str, Runner], tolerance: float) -> Agreement:
    is_hard = any(layer.gate_rule().hard for layer in lstms(model))
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for size, hypotheses in zip(SIZES, _HYPOTHESES, strict=True):
        for attempt in range(1, _TRIES_OF_HARD_GATES + 1):
            difference, name = 0.0, ""
            for output, theirs, ours in _outputs(model, runners, size, hypotheses, generator):
                found = _difference(output, theirs, ours.numpy())
                if found > difference:
                    difference, name = found, output
            if difference <= tolerance or not is_hard or attempt == _TRIES_OF_HARD_GATES:
                break
        if difference > tolerance:
            raise G2Error(
                f"the export does not agree with the model: {name} differs by {difference:.2g} with {size[0]} steps "
                f"and {size[1]} sequences, and {tolerance:.2g} is allowed; nothing was kept of it, please report this"
            )
        worst = max(worst, difference)
    return Agreement(worst, tolerance)


def open_runner(file: Path | bytes) -> Runner:
    """A file, or what one holds, in ONNX Runtime, as a function from inputs by name to outputs by name."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised as well
    options.intra_op_num_threads = 1  # for so little work, starting more takes longer

    def failed(error: Exception) -> G2Error:
        return G2Error(f"ONNX Runtime {onnxruntime.__version__} cannot run the export: {error}; nothing was kept of it")

    try:
        source = file if isinstance(file, bytes) else str(file)
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # each failure has a class of its own, and they share no other
        raise failed(error) from error
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Arrays) -> Arrays:
        try:
            return dict(zip(names, session.run(names, dict(inputs)), strict=True))
        except Exception as error:
            raise failed(error) from error

    return run


def _with_exact_products(file: Path) -> bytes:
    """The graph of a file with float32 activations, which are slow with eight bits."""
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
    terms = 100
    for module in model.modules():
        if isinstance(module, nn.LSTM | G2LSTM):
            width = module.proj_size or module.hidden_size
            above = (2 if module.bidirectional else 1) * width  # what an upper layer reads
            terms += module.input_size + width + (module.num_layers - 1) * (above + width)
        elif isinstance(module, nn.Linear):
            terms += module.in_features
    if isinstance(model, LanguageModel):
        terms += model.lstms[-1].hidden_size  # the softmax
    elif isinstance(model, TranslationModel):
        terms += model.output.out_features
    return 2 * terms * 2.0**-24


def _rounding_to_int8(model: nn.Module) -> float:
    largest = 0.0
    for matrix in encoded_matrices(model).values():
        if isinstance(matrix, LowRank):
            left, right = matrix.left.dequantize(), matrix.right.dequantize()
            norm = _largest_row(left @ torch.linalg.qr(right.T, mode="r").R.T)  # as Q would change no norm
            # What comes between is rounded too: a few times as large as a row of the right.
            norm += 4 * _largest_row(left) * _largest_row(right)
        else:
            norm = _largest_row(matrix.dequantize())
        largest = max(largest, norm)
    greatest = 1.0  # number in a vector
    for table in (module for module in model.modules() if isinstance(module, nn.Embedding | CompressedEmbedding)):
        for tokens in torch.arange(table.num_embeddings).split(1000):
            greatest = max(greatest, float(table(tokens).detach().abs().max()))
    if isinstance(model, LanguageModel) and model.residual:
        greatest += len(model.layers)  # each adds 1 at most
    elif isinstance(model, TranslationModel) and model.residual:
        greatest = max(greatest, len(model.encoder), len(model.decoder))
    return 6 * largest * greatest / (127 * math.sqrt(12))


def _largest_row(matrix: Tensor) -> float:
    return float(torch.linalg.vector_norm(matrix, dim=1).max())


def _difference(name: str, theirs: npt.NDArray[Any], ours: npt.NDArray[Any]) -> float:
    if theirs.shape != ours.shape:
        raise G2Error(
            f"the export gives {name} of shape {theirs.shape}, the model of {ours.shape}; nothing was kept of it"
        )
    if theirs.dtype == np.bool_:
        return 0.0 if (theirs == ours).all() else math.inf
    if not np.isfinite(ours).all():
        raise G2Error(f"the model's own {name} is not finite: its weights are broken; train it again")
    difference = np.abs(theirs - ours) / (1 + np.abs(ours))
    return float(difference.max()) if np.isfinite(theirs).all() else math.inf


def _outputs(
    model: nn.Module, runners: Mapping[str, Runner], size: tuple[int, int], hypotheses: int, generator: torch.Generator
) -> Pairs:
    with torch.no_grad():
        if isinstance(model, LanguageModel):
            yield from _of_language_model(model, runners["model"], *size, generator)
        elif isinstance(model, TranslationModel):
            yield from _of_translation_model(model, runners, *size, hypotheses, generator)
        else:
            assert isinstance(model, nn.LSTM | G2LSTM)
            yield from _of_layer(model, runners["model"], *size, generator)


def _of_language_model(model: LanguageModel, run: Runner, steps: int, batch: int, generator: torch.Generator) -> Pairs:
    tokens = torch.randint(model.vocabulary_size, (steps, batch), generator=generator)
    state = [_drawn_state(1, batch, layer.hidden_size, layer.hidden_size, generator) for layer in model.lstms]
    got = run({"tokens": tokens.numpy(), **_named(state)})
    features, _, ends = model(tokens, state)
    yield "log_probabilities", got["log_probabilities"], model.logits(features).log_softmax(-1)
    for name, value in _states(ends):
        yield f"{name}_next", got[f"{name}_next"], value


def _of_translation_model(
    model: TranslationModel,
    runners: Mapping[str, Runner],
    size: int,
    batch: int,
    hypotheses: int,
    generator: torch.Generator,
) -> Pairs:
    """The encoder, then two steps of the decoder, each from the export's own state."""
    table = model.target_embedding if model.source_embedding is None else model.source_embedding
    source = torch.randint(table.num_embeddings, (size, batch), generator=generator)
    lengths = torch.randint(1, size + 1, (batch,), generator=generator)
    lengths[-1] = size
    memory = model.encode(source, lengths)
    start = model.start(memory)
    got = runners["encoder"]({"source": source.numpy(), "lengths": lengths.numpy()})
    for name, value in {"memory": memory.values, "keys": memory.keys, "is_padding": memory.is_padding}.items():
        yield name, got[name], value
    for name, value in _states(start.layers):
        yield name, got[name], value

    state: DecoderState = start.select(torch.arange(batch), torch.zeros(batch, hypotheses, dtype=torch.int64))
    seen = {name: got[name] for name in ("memory", "keys", "is_padding")}
    theirs = {name: got[name].repeat(hypotheses, axis=1) for name, _ in _states(start.layers)}
    for _ in range(2):
        tokens = torch.randint(len(model.softmax_bias), (batch, hypotheses), generator=generator)
        out = model.step(tokens, state)
        state = out.state
        got = runners["decoder"]({"tokens": tokens.flatten().numpy(), **seen, **theirs})
        yield "log_probabilities", got["log_probabilities"], out.log_probabilities.flatten(0, 1)
        yield "attention", got["attention"], out.attention.flatten(0, 1)
        for name, value in _states(state.layers):
            yield f"{name}_next", got[f"{name}_next"], value
            theirs[name] = got[f"{name}_next"]


def _of_layer(module: nn.LSTM | G2LSTM, run: Runner, steps: int, batch: int, generator: torch.Generator) -> Pairs:
    shape = (batch, steps) if module.batch_first else (steps, batch)
    x = torch.rand(*shape, module.input_size, generator=generator, dtype=torch.float32) * 2 - 1
    count = module.num_layers * (2 if module.bidirectional else 1)
    h, c = _drawn_state(count, batch, module.proj_size or module.hidden_size, module.hidden_size, generator)
    got = run({"input": x.numpy(), "h": h.numpy(), "c": c.numpy()})
    out, (h, c) = module(x, (h, c))
    for name, value in {"output": out, "h_next": h, "c_next": c}.items():
        yield name, got[name], value


def _drawn_state(count: int, batch: int, width: int, hidden: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    h = torch.rand(count, batch, width, generator=generator, dtype=torch.float32) * 2 - 1
    return h, torch.randn(count, batch, hidden, generator=generator, dtype=torch.float32)


def _states(layers: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    for number, state in enumerate(layers):
        yield from zip((f"h{number}", f"c{number}"), state, strict=True)


def _named(layers: list[tuple[Tensor, Tensor]]) -> dict[str, npt.NDArray[Any]]:
    return {name: value.numpy() for name, value in _states(layers)}
