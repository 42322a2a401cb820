"""Where tests find the real data sets, if present."""

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("G2LSTM_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not (DATA / name).is_dir(), reason=f"no {DATA / name}; set G2LSTM_DATA")
