"""Files are written whole or not at all, and a disk that refuses is a clear error."""

import errno
import os
from pathlib import Path

import pytest

from g2lstm.errors import G2Error
from g2lstm.files import write_atomically


def write(path: Path, content: bytes) -> None:
    with write_atomically(path) as file:
        file.write(content)


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


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    path = tmp_path / "file"
    write(path, b"first")

    def full(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    if code == errno.EIO:  # not the user's doing
        with pytest.raises(OSError, match="Input/output"):
            write(path, b"second")
    else:
        with pytest.raises(
            G2Error, match=r"file could not be written, the disk is full: .*; the old content is unchanged"
        ):
            write(path, b"second")
    assert path.read_bytes() == b"first"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
