"""Seeds torch before each test, and keeps parallel workers from fighting over the cores."""

import os

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for the commands that tests start


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
