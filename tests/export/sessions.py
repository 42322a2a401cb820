"""Exports in ONNX Runtime, for the tests of this room."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

TOLERANCE = 2e-5  # float32 in another order, on toy models


def open_session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options)


def run(session: onnxruntime.InferenceSession, **inputs: Any) -> dict[str, np.ndarray]:
    """Outputs by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def operators(path: Path) -> set[str]:
    """The kinds of operators in a file, also in the bodies of loops."""
    found, graphs = set(), [onnx.load(path).graph]
    while graphs:
        for node in graphs.pop().node:
            found.add(node.op_type)
            graphs += [attribute.g for attribute in node.attribute if attribute.name == "body"]
    return found
