"""What the page's script reads: the model's facts as JSON, then its numbers, compressed together.

Codes stay whole bytes: compression makes them about as small as packing would, and the page needs no unpacking.
"""

import base64
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression.encodings import Coded, Dense, Encoding
from g2lstm.compression.gate_weights import LayerWeights

_TYPES = {"float32": "f32", "float16": "f16", "int8": "i8", "int16": "i16", "int32": "i32"}
_ALIGNMENT = 8
_LINE = 4000  # characters of base64


class Payload:
    """Collects arrays, and describes each of them for the script.

    Attributes:
        weights: the number of weights in the matrices so far.
    """

    def __init__(self) -> None:
        self.weights = 0
        self._arrays: list[bytes] = []
        self._size = 0

    def array(self, values: NDArray[Any]) -> dict[str, Any]:
        """Adds an array; returns its type, its place and its length."""
        content = np.ascontiguousarray(values).tobytes()
        described = {"type": _TYPES[str(values.dtype)], "at": self._size, "length": values.size}
        padding = -len(content) % _ALIGNMENT
        self._arrays.append(content + bytes(padding))
        self._size += len(content) + padding
        return described

    def matrix(self, encoding: Encoding) -> dict[str, Any]:
        """Adds a matrix; returns its description."""
        self.weights += encoding.shape[0] * encoding.shape[1]
        return self._describe(encoding)

    def layer(self, layer: LayerWeights) -> dict[str, Any]:
        """Adds a recurrent layer."""
        return {
            "hidden": layer.hidden,
            "inputs": layer.w_x[0].encoding.shape[1],
            "x": [self.matrix(weight.encoding) for weight in layer.w_x],
            "h": [self.matrix(weight.encoding) for weight in layer.w_h],
            "factors": [weight.factor for weight in layer.w_x],
            "bias": self.array(layer.b_x + layer.b_h),
            "hard": layer.hard,
        }

    def encoded(self, facts: Mapping[str, Any]) -> str:
        """Everything as base64, in lines."""
        text = json.dumps(facts, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 4) % _ALIGNMENT)
        compressor = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_FILTERED)
        parts = [compressor.compress(part) for part in (struct.pack("<I", len(text)), text, *self._arrays)]
        content = base64.b64encode(b"".join([*parts, compressor.flush()])).decode()
        return "\n".join(content[at : at + _LINE] for at in range(0, len(content), _LINE))

    def _describe(self, encoding: Encoding) -> dict[str, Any]:
        shape = list(encoding.shape)
        if isinstance(encoding, Coded):
            codes, scales = self.array(encoding.codes), self.array(_narrow(encoding.group_scales))
            return {"shape": shape, "codes": codes, "scales": scales, "group": encoding.group or shape[1]}
        if len(factors := encoding.factors()) > 1:
            return {"shape": shape, "factors": [self._describe(factor) for factor in factors]}
        values = encoding.values if isinstance(encoding, Dense) else _narrow(encoding.decode())
        return {"shape": shape, "values": self.array(values)}


def _narrow(values: NDArray[np.float32]) -> NDArray[Any]:
    """In float16 where that is exact."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), values) else values
