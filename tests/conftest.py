"""Seeds torch before each test, keeps parallel workers from fighting over the cores, refuses pickles to commands.

No property fails by the clock, since any example can take long on a busy machine, nor by luck: every run tries the same
examples, unless `FUZZ` is in the environment.
"""

import functools
import gc
import os
import shutil
import warnings

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.pickles import unpickling_refused
from tests.pictures import draw_nothing

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for the commands that tests start
settings.register_profile(
    "patient",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="FUZZ" not in os.environ,
    database=None,
)
settings.load_profile("patient")
gc.set_threshold(50_000, 20, 100)  # among all that torch imports, looking for cycles takes a tenth of the time
PATIENCE = 300_000  # milliseconds that a browser may take for anything
BROWSER = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    """What drives a browser is slow."""
    for item in items:
        if "browser" in item.fixturenames:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _seed():
    torch.default_generator.manual_seed(0)  # torch.manual_seed also formats a stack trace, in case CUDA starts later


@pytest.fixture(autouse=True, scope="module")
def _no_pickle(request):
    """Commands, exports, the page and the studies read no pickle, whatever a test or a fixture has them do."""
    if not {"cli", "export", "view", "study"} & set(request.path.parts):
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


@pytest.fixture
def no_drawing(monkeypatch):
    draw_nothing(monkeypatch)


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no chromium on PATH; on Debian: apt-get install chromium")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with playwright.sync_playwright() as started:
            browser = started.chromium.launch(executable_path=found, args=BROWSER, timeout=PATIENCE)
            yield browser
            browser.close()
