"""The benchmarks that are scripts, as modules."""

import importlib.util
from pathlib import Path

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def script(name):
    """The module of a script."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
