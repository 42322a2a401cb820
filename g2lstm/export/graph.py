"""Builds an ONNX graph: operators and constants are added one by one, and values are known by their names."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from g2lstm.version import __version__

OPSET = 21
IR_VERSION = 10  # the one of the opset; onnx would write its newest, which fewer runtimes read
MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators
FLOAT, INTEGER, TRUTH = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

Dimension = int | str  # a size, or the name of one that may differ in each call


class Graph:
    """A graph, or the body of a loop inside one.

    Args:
        activations: "float32" or "int8", the type in which packed matrices are multiplied by vectors.
        outer: the graph around a body, which can use its values.

    Attributes:
        expanded: names of packed matrices that become float32 when a runtime loads the graph.
        is_plain: whether it has only ONNX's own operators, which every runtime supports.
    """

    def __init__(self, activations: str = "float32", outer: "Graph | None" = None) -> None:
        self.activations = activations
        self.root: Graph = self if outer is None else outer.root
        self.expanded: list[str] = []
        self.is_plain = True
        self._numbers: itertools.count[int] = itertools.count() if outer is None else outer._numbers
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def body(self) -> "Graph":
        """An empty body for a loop in this graph."""
        return Graph(self.activations, self)

    def operators(self, kind: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> list[str]:
        """Adds an operator with several outputs; an empty name stands for an absent input or output."""
        names = [self._name(kind) for _ in range(outputs)]
        self.root.is_plain &= "domain" not in attributes
        self._nodes.append(helper.make_node(kind, inputs, names, name=names[0], **attributes))
        return names

    def operator(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Adds an operator with one output."""
        return self.operators(kind, inputs, 1, **attributes)[0]

    def constant(self, values: npt.ArrayLike, name: str | None = None) -> str:
        """Adds a constant, once for each name.

        It goes into the outermost graph, where every body can use it.
        """
        constants = self.root._constants
        name = name or self._name("constant")
        if name not in constants:
            constants[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        return name

    def integers(self, *values: int) -> str:
        """Adds a constant list of integers, for shapes and axes."""
        return self.constant(np.array(values, dtype=np.int64))

    def has(self, name: str) -> bool:
        """Whether there is a constant of this name."""
        return name in self.root._constants

    def input(self, name: str, kind: int, *shape: Dimension) -> str:
        """Declares an input; a body gets a new name for it."""
        name = name if self.root is self else self._name(name)
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, value: str, name: str, kind: int, *shape: Dimension) -> None:
        """Declares a value as an output with this name."""
        name = name if self.root is self else self._name(name)
        self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
        self._outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def state_input(self, number: int, hidden: int, rows: str) -> tuple[str, str]:
        """Declares the inputs h and c (1, rows, hidden) of layer `number`."""
        h, c = (self.input(f"{letter}{number}", FLOAT, 1, rows, hidden) for letter in "hc")
        return h, c

    def state_output(self, state: tuple[str, str], ending: str, hidden: int, rows: str) -> None:
        """Declares h and c (1, rows, hidden) as outputs whose names end like this."""
        for value, letter in zip(state, "hc", strict=True):
            self.output(value, f"{letter}{ending}", FLOAT, 1, rows, hidden)

    def signature(self) -> dict[str, list[dict[str, Any]]]:
        """The inputs and outputs, each with its name, type and shape; a name in a shape stands for any size."""
        return {
            "inputs": [_described(one) for one in self._inputs],
            "outputs": [_described(one) for one in self._outputs],
        }

    @property
    def constant_bytes(self) -> int:
        """The size of all constants, which are nearly the whole file."""
        return sum(len(tensor.raw_data) for tensor in self._constants.values())

    def finished(self) -> onnx.GraphProto:
        """The graph so far, without a model around it; the form in which a loop takes its body."""
        constants = list(self._constants.values())
        return helper.make_graph(self._nodes, "g2lstm", self._inputs, self._outputs, constants)

    def model(self) -> onnx.ModelProto:
        """The graph as a model, with the versions that it needs."""
        versions = [helper.make_opsetid("", OPSET), *([] if self.is_plain else [helper.make_opsetid(MICROSOFT, 1)])]
        made_by = {"producer_name": "g2lstm", "producer_version": __version__}
        return helper.make_model(self.finished(), opset_imports=versions, ir_version=IR_VERSION, **made_by)

    def _name(self, what: str) -> str:
        return f"{what}_{next(self._numbers)}"


def _described(value: onnx.ValueInfoProto) -> dict[str, Any]:
    tensor = value.type.tensor_type
    shape = [dimension.dim_param or dimension.dim_value for dimension in tensor.shape.dim]
    return {"name": value.name, "type": TensorProto.DataType.Name(tensor.elem_type).lower(), "shape": shape}
