from pathlib import Path

import pytest

from g2lstm.data.cache import cache_dir, write_atomically
from g2lstm.errors import G2Error


def test_the_cache_is_where_the_environment_says(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir() == cache
    monkeypatch.delenv("G2LSTM_CACHE")
    assert cache_dir().name == "g2lstm"


def test_a_file_appears_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with write_atomically(path) as file:
        file.write(b"first")
        assert not path.exists()
    assert path.read_bytes() == b"first"
    with pytest.raises(TypeError), write_atomically(path) as file:
        file.write(b"second" + "no bytes")  # type: ignore[operator]
    assert path.read_bytes() == b"first"
    assert [one.name for one in path.parent.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with (
        pytest.raises(G2Error, match=r"taken cannot be written to: File exists; choose another folder .* G2LSTM_CACHE"),
        write_atomically(tmp_path / "taken" / "file"),
    ):
        pass
