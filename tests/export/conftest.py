"""One registry of ONNX functions for all tests of this room."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_registry(one_registry):
    pass
