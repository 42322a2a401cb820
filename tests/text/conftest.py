from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache of its own and no data folder."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("G2LSTM_CACHE", str(folder))
    monkeypatch.delenv("G2LSTM_DATA", raising=False)
    monkeypatch.delenv("G2LSTM_MIRROR", raising=False)
    return folder
