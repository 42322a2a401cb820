"""No pickle is read, by the package or by what it calls: reading one runs whatever program is in it.

All tests of commands, exports, the page and the studies run where pickles are refused: see `conftest.py`.
"""

import _pickle
import io
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.pickles import PickleError, unpickling_refused

ROOT = Path(__file__).parent.parent


def test_accelerate_saves_and_loads_nothing():
    """Its checkpoints are pickles. Ruff forbids the functions that read pickles, but knows no methods."""
    sources = [path for folder in ("g2lstm", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 100
    for path in sources:
        assert not re.search(r"\.(load|save)_state\(", path.read_text()), path


@pytest.mark.parametrize(
    "read",
    [
        lambda content: pickle.loads(content.getvalue()),
        lambda content: pickle.Unpickler(content).load(),
        lambda content: _pickle.loads(content.getvalue()),  # as a library has it that imported it before
        lambda content: torch.load(content, weights_only=False),
        lambda content: np.load(content, allow_pickle=True),
    ],
    ids=["pickle", "Unpickler", "in C", "torch", "numpy"],
)
def test_a_pickle_would_be_refused(read):
    content = pickle.dumps(Path("x"))
    with unpickling_refused(), pytest.raises(PickleError):
        read(io.BytesIO(content))
    assert pickle.loads(content) == Path("x")
