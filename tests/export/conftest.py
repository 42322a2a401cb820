"""One registry of ONNX functions for all tests: torch would build it again in every export, for a second each."""

import functools

import pytest
from torch.onnx._internal.exporter import _registration


@pytest.fixture(autouse=True, scope="session")
def _one_registry():
    make = _registration.ONNXRegistry.from_torchlib
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_registration.ONNXRegistry, "from_torchlib", staticmethod(functools.cache(make)))
        yield
