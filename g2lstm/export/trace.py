"""Traces a part into an ONNX graph, by `torch.export` and `torch.onnx`, with no length and no batch size baked in."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import onnx
import torch
from onnxscript import ir, optimizer
from onnxscript.ir.passes import common as passes
from torch import nn

from g2lstm.errors import G2Error
from g2lstm.export.layers import standing_in
from g2lstm.export.part import Part, Shape
from g2lstm.export.weights import Notes, translations
from g2lstm.version import __version__

MOST_BYTES = 2**31 - 2**20  # an ONNX file is one protobuf message, which can't exceed 2 GiB
_SMALL = 64  # bytes of constants that may be folded: shapes and axes, never weights


@dataclass(frozen=True)
class Graph:
    """A part as an ONNX graph.

    Attributes:
        model: the graph, with the versions that it needs.
        activations: "float32" or "int8", the type in which packed matrices are multiplied by vectors.
        expanded: names of packed matrices that become float32 when a runtime loads the graph.
    """

    model: onnx.ModelProto
    activations: str
    expanded: list[str]

    @property
    def is_plain(self) -> bool:
        """Whether it has only ONNX's own operators, which every runtime supports."""
        return all(one.domain == "" for one in self.model.opset_import)

    def signature(self) -> dict[str, list[dict[str, Any]]]:
        """The inputs and outputs, each with its name, type and shape; a name in a shape stands for any size."""
        graph = self.model.graph
        return {"inputs": list(map(_described, graph.input)), "outputs": list(map(_described, graph.output))}


def trace(part: Part, activations: str) -> Graph:
    """Traces a part in its present mode; the shapes of its inputs are known afterwards.

    Args:
        part: with examples of its inputs.
        activations: "float32" or "int8", the type in which packed matrices are multiplied by vectors.
    """
    outputs = list(part.compute(part.inputs))
    notes = Notes(activations)
    with _quietly(), torch.no_grad(), standing_in(part.model, notes) as rewriting:
        shapes = tuple(dict.fromkeys(range(one.dim()), torch.export.Dim.AUTO) for one in part.inputs.values())
        with _blaming(part), rewriting:
            program = torch.export.export(part, tuple(part.inputs.values()), dynamic_shapes=(shapes,), strict=False)
        with _blaming(part):
            exported = torch.onnx.export(
                program,
                input_names=list(part.inputs),
                output_names=outputs,
                custom_translation_table=translations(),
                optimize=False,
                verbose=False,
            )
        assert exported is not None
    model = exported.model
    optimizer.optimize_ir(model, onnx_shape_inference=False, should_fold=_is_small)
    passes.ClearMetadataAndDocStringPass()(model)  # the paths of the files that were traced
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    if size > MOST_BYTES:
        raise G2Error(
            f"the weights take {size / 1e9:.1f} GB, and an ONNX file can hold 2.1 GB; compress the model first"
        )
    _name_sizes(model, part, notes.sizes)
    taken = {*part.inputs, *outputs}
    for value in list(model.graph.initializers.values()):
        name = str(value.name).removeprefix("model.").replace(".onnx.", ".")
        value.name = f"weights.{name}" if name in taken else name
    model.producer_name, model.producer_version, model.graph.name = "g2lstm", __version__, "g2lstm"
    made = ir.to_proto(model)
    made.graph.ClearField("value_info")
    onnx.checker.check_model(made, full_check=True)
    return Graph(made, activations, list(notes.expanded))


def _is_small(node: ir.Node) -> bool | None:
    """False if folding a node would multiply out weights."""
    sizes = [value.const_value.nbytes for value in node.inputs if value is not None and value.const_value is not None]
    return False if any(size > _SMALL for size in sizes) else None


def _name_sizes(model: ir.Model, part: Part, known: dict[str, str]) -> None:
    """Gives sizes that may differ their names: those of the part, time and batch, or else that of their input."""
    names: dict[str, int | str] = {}
    for name, given in zip(part.inputs, model.graph.inputs, strict=True):
        for axis, size in enumerate(_shape(given)):
            if isinstance(size, str) and size not in names:
                label = known.get(size)
                label = f"{name}_{axis}" if label is None or label in names.values() else label
                names[size] = part.shapes[name][axis] if name in part.shapes else label
    for value in [*model.graph.inputs, *model.graph.outputs]:
        value.shape = ir.Shape(names.get(size, size) if isinstance(size, str) else size for size in _shape(value))
    for name, value in zip(part.inputs, model.graph.inputs, strict=True):
        shape = _shape(value)
        assert part.shapes.setdefault(name, shape) == shape, f"{name} is {shape}, not {part.shapes[name]}"


def _shape(value: ir.Value) -> Shape:
    assert value.shape is not None
    sizes = (size if isinstance(size, int) else str(size.value) for size in value.shape)
    return tuple(int(size) if isinstance(size, str) and size.isdecimal() else size for size in sizes)


def _described(value: onnx.ValueInfoProto) -> dict[str, Any]:
    tensor = value.type.tensor_type
    shape = [dimension.dim_param or dimension.dim_value for dimension in tensor.shape.dim]
    return {"name": value.name, "type": onnx.TensorProto.DataType.Name(tensor.elem_type).lower(), "shape": shape}


@contextmanager
def _quietly() -> Iterator[None]:
    """Without torch's remarks on its own inside."""
    noisy = ("torch.onnx", "torch.export", "torch._export", "torch.fx.experimental.symbolic_shapes", "onnxscript")
    loggers = [logging.getLogger(name) for name in noisy]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _blaming(part: Part) -> Iterator[None]:
    """Turns what torch raises into one line that says which module or operation it can't export."""
    try:
        yield
    except G2Error:
        raise
    except Exception as error:
        where, names = "the model", {id(module): name for name, module in part.model.named_modules()}
        frame = error.__traceback__
        while frame is not None:
            owner = frame.tb_frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and names.get(id(owner)):
                where = f"{names[id(owner)]} ({type(owner).__name__})"
            frame = frame.tb_next
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        said = next((line for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        raise G2Error(f"torch can't export {where}: {said.strip()}; nothing was written") from error
