import hashlib
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from g2lstm.data import registry
from g2lstm.data.registry import DATA_SETS, DataSet, RemoteFile, data_set, fetch, folder_of, lm_files, url_of
from g2lstm.errors import G2Error

from .sets import DATA, needs

TEXTS = {"train.txt": b"one two\n", "valid.txt": b"three\n", "test.txt": b"four\n"}


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> DataSet:
    """A small data set with a name, whose home cannot be reached."""
    files = [
        RemoteFile(name, f"http://127.0.0.1:9/{name}", hashlib.sha256(text).hexdigest()) for name, text in TEXTS.items()
    ]
    toy = DataSet("toy", "lm", "a toy", tuple(files))
    pairs = DataSet("pairs", "mt", "pairs", (RemoteFile("train.de", "http://127.0.0.1:9/train.de", "0" * 64),))
    monkeypatch.setattr(registry, "DATA_SETS", {**DATA_SETS, "toy": toy, "pairs": pairs})
    return toy


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is served on this machine, as the mirror."""
    folder = tmp_path / "mirror"
    put(folder / "toy")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("G2LSTM_MIRROR", f"http://127.0.0.1:{server.server_port}/")
    yield folder
    server.shutdown()
    thread.join()
    server.server_close()


def put(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, text in TEXTS.items():
        (folder / name).write_bytes(text)
    return folder


def test_names_are_folders_and_files_have_checksums() -> None:
    assert list(DATA_SETS) == ["embedded", "ptb", "wikitext-2"]
    for name, found in DATA_SETS.items():
        assert found is data_set(name)
        assert all(re.fullmatch("[0-9a-f]{64}", file.sha256) for file in found.files)
    assert url_of("ptb", DATA_SETS["ptb"].files[1]).endswith("tomsercu/lstm/master/data/ptb.valid.txt")


def test_unknown_names() -> None:
    with pytest.raises(
        G2Error, match="no data set is called 'ptbb'; did you mean 'ptb'\\? There are: embedded, ptb, w"
    ):
        fetch("ptbb")
    with pytest.raises(G2Error, match="no data set is called 'zzz'; There are: embedded"):
        folder_of("zzz")


def test_downloaded_once_into_the_cache(toy: DataSet, mirror: Path, cache: Path) -> None:
    folder = fetch("toy")
    assert folder == folder_of("toy") == cache / "data" / "toy"
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == TEXTS
    for file in (mirror / "toy").iterdir():
        file.unlink()
    assert fetch("toy") == folder


@pytest.mark.parametrize("by_environment", [False, True])
def test_a_folder_that_holds_the_set(
    toy: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_environment: bool
) -> None:
    put(tmp_path / "mine" / "toy")
    if by_environment:
        monkeypatch.setenv("G2LSTM_DATA", str(tmp_path / "mine"))
    assert fetch("toy", None if by_environment else tmp_path / "mine") == tmp_path / "mine" / "toy"


def test_an_argument_goes_before_the_environment(toy: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("G2LSTM_DATA", str(tmp_path / "elsewhere"))
    put(tmp_path / "mine" / "toy")
    assert lm_files("toy", data_dir=tmp_path / "mine")["test"].read_bytes() == TEXTS["test.txt"]


def test_what_a_given_folder_lacks_is_downloaded_into_it(toy: DataSet, mirror: Path, tmp_path: Path) -> None:
    put(tmp_path / "mine" / "toy")
    (tmp_path / "mine" / "toy" / "valid.txt").unlink()
    assert (fetch("toy", tmp_path / "mine") / "valid.txt").read_bytes() == TEXTS["valid.txt"]


def test_a_given_folder_that_is_not_there(toy: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(G2Error, match=re.escape(f"the data folder points to {tmp_path / 'no'}, which is not a folder")):
        fetch("toy", tmp_path / "no")
    monkeypatch.setenv("G2LSTM_DATA", str(tmp_path / "none"))
    with pytest.raises(G2Error, match=re.escape(f"G2LSTM_DATA points to {tmp_path / 'none'}, which is not a folder")):
        fetch("toy")
    assert not (tmp_path / "none").exists()


def test_a_file_that_differs_is_an_error_and_stays(toy: DataSet, tmp_path: Path) -> None:
    changed = put(tmp_path / "toy") / "valid.txt"
    changed.write_bytes(b"changed\n")
    with pytest.raises(G2Error, match=re.escape(f"{changed} is not the valid.txt of 'toy': its SHA-256 is ")) as caught:
        fetch("toy", tmp_path)
    assert toy.files[1].sha256 in str(caught.value)
    assert changed.read_bytes() == b"changed\n"


def test_without_network_the_message_says_what_to_put_where(toy: DataSet, cache: Path) -> None:
    put(cache / "data" / "toy")
    (cache / "data" / "toy" / "train.txt").unlink()
    (cache / "data" / "toy" / "test.txt").unlink()
    with pytest.raises(G2Error, match=r"cannot download train.txt of 'toy'.*Connection refused") as caught:
        fetch("toy")
    message = str(caught.value)
    for name in ("train.txt", "test.txt"):
        assert f"\n  http://127.0.0.1:9/{name}\n    to {cache / 'data' / 'toy' / name}" in message
    assert "valid.txt" not in message
    assert "set G2LSTM_MIRROR to an address that has toy/train.txt" in message


def test_a_download_that_differs_leaves_nothing(toy: DataSet, mirror: Path, cache: Path) -> None:
    (mirror / "toy" / "train.txt").write_bytes(b"an error page")
    with pytest.raises(G2Error, match=r"cannot download train.txt of 'toy': SHA256 hash of downloaded file"):
        fetch("toy")
    assert not list((cache / "data" / "toy").iterdir())


def test_a_download_that_is_not_found(toy: DataSet, mirror: Path) -> None:
    (mirror / "toy" / "train.txt").unlink()
    with pytest.raises(G2Error, match=r"cannot download train.txt of 'toy': 404 Client Error"):
        fetch("toy")


def test_a_folder_of_the_users_own(tmp_path: Path) -> None:
    folder = put(tmp_path / "own")
    assert lm_files(path=folder) == {split: folder / f"{split}.txt" for split in ("train", "valid", "test")}
    (folder / "valid.txt").unlink()
    with pytest.raises(G2Error, match=re.escape(f"the data folder {folder} lacks valid.txt; it needs train.txt, ")):
        lm_files(path=folder)
    with pytest.raises(G2Error, match=re.escape(f"the data folder {tmp_path / 'no'} does not exist; make it, with ")):
        lm_files(path=tmp_path / "no")


def test_either_a_name_or_a_path(tmp_path: Path) -> None:
    with pytest.raises(G2Error, match="give either the name of a data set or the path of a folder, got name=None"):
        lm_files()
    with pytest.raises(G2Error, match="give either the name of a data set or the path of a folder, got name='ptb'"):
        lm_files("ptb", tmp_path)


def test_a_set_of_pairs_is_not_for_language_models(toy: DataSet) -> None:
    with pytest.raises(G2Error, match="the data set 'pairs' is for translation"):
        lm_files("pairs")


def test_the_embedded_set_needs_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("G2LSTM_DATA", str(tmp_path / "none"))
    assert all(file.stat().st_size > 1000 for file in lm_files("embedded").values())


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in ("ptb", "wikitext-2")])
def test_the_real_files_have_the_known_checksums(name: str) -> None:
    assert fetch(name, DATA) == DATA / name
