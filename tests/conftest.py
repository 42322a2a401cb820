"""Seeds torch before each test, keeps parallel workers from fighting over the cores, refuses pickles to commands.

No property fails by the clock: on a busy machine any example can take long.
"""

import functools
import os

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.pickles import unpickling_refused

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for the commands that tests start
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_pickle(request):
    """The commands, the page and the studies read no pickle, whatever a test has them do."""
    if not {"cli", "view", "study"} & set(request.path.parts):
        yield
        return
    with unpickling_refused():
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """For toy runs; nothing is written to the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("runs")
        patch.setenv("G2LSTM_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="session")
def one_registry():
    """One registry of ONNX functions for all exports: torch would build it again in every one, for a second each."""
    from torch.onnx._internal.exporter import _registration  # slow to import, so only where models are exported

    make = _registration.ONNXRegistry.from_torchlib
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_registration.ONNXRegistry, "from_torchlib", staticmethod(functools.cache(make)))
        yield
