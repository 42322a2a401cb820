import hashlib
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from g2lstm.errors import G2Error
from g2lstm.text import datasets
from g2lstm.text.datasets import DataSet, cache_dir, data_set, data_sets, fetch, folder_of, partial_pairs

from .sets import DATA, needs

TEXTS = {"train.txt": b"one two\n", "valid.txt": b"three\n", "test.txt": b"four\n"}


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> DataSet:
    """A small data set with a name, whose home cannot be reached."""
    files = {name: (hashlib.sha256(text).hexdigest(), f"http://127.0.0.1:9/{name}") for name, text in TEXTS.items()}
    toy = DataSet("toy", "lm", "a toy", "toy", files)
    known = {**data_sets(), "toy": toy}
    monkeypatch.setattr(datasets, "data_sets", lambda: known)
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
    lm, mt = ["embedded", "ptb", "wikitext-2"], ["embedded-mt", "multi30k-de-en", "iwslt14-de-en", "wmt14-en-de"]
    assert list(data_sets()) == lm + mt
    for name, found in data_sets().items():
        assert found is data_set(name)
        assert found.task == ("lm" if name in lm else "mt")
        assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256, _ in found.files.values())
        assert not found.files or set(found.files) == set(found.file_names)
        assert len({found.url_of(file) for file in found.files}) == len(found.files)
    assert data_set("ptb").url_of("valid.txt").endswith("tomsercu/lstm/master/data/ptb.valid.txt")
    for name, remote in (("train.de", "train"), ("valid.en", "val"), ("test.en", "test_2016_flickr")):
        expected = f"multi30k/dataset/master/data/task1/tok/{remote}.lc.norm.tok.{name[-2:]}"
        assert data_set("multi30k-de-en").url_of(name).endswith(expected)


def test_a_set_may_have_a_folder_of_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder_of("ptb", tmp_path) == tmp_path / "ptb"
    assert folder_of("wmt14-en-de", tmp_path) == tmp_path / "wmt14"
    monkeypatch.setenv("G2LSTM_MIRROR", "http://here/")
    assert data_set("multi30k-de-en").url_of("train.de") == "http://here/multi30k/train.de"


def test_a_set_that_the_user_prepares(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(G2Error, match="the data set 'iwslt14-de-en' cannot be downloaded ready-made, and ") as caught:
        fetch("iwslt14-de-en")
    assert f"{cache / 'data' / 'iwslt14'} lacks train.de, train.en, valid.de, valid.en, test.de, test.en; make" in str(
        caught.value
    )
    assert (
        "put them there, or into iwslt14/ in the folder that G2LSTM_DATA names. How they are usually made: prep"
        in str(caught.value)
    )
    folder = tmp_path / "wmt14"
    folder.mkdir()
    for name in data_set("wmt14-en-de").file_names:
        with pytest.raises(G2Error, match=f"wmt14 lacks {name}"):
            fetch("wmt14-en-de", tmp_path)
        (folder / name).write_text("any text will do\n")
    assert fetch("wmt14-en-de", tmp_path) == folder
    with pytest.raises(G2Error, match="the data folder is .*, which is not a folder"):
        fetch("wmt14-en-de", tmp_path / "none")


def test_a_part_of_a_set_is_said_to_be_one() -> None:
    assert partial_pairs("iwslt14-de-en", 50_906) == "50,906 of about 153,000 pairs"
    assert partial_pairs("wmt14-en-de", 4_049_999) == "4,049,999 of about 4,500,000 pairs"
    assert partial_pairs("wmt14-en-de", 4_050_000) is None
    assert partial_pairs("multi30k-de-en", 29_000) is None
    assert partial_pairs("embedded-mt", 20_000) is None


def test_unknown_names() -> None:
    with pytest.raises(
        G2Error, match="there is no data set 'ptbb'; did you mean 'ptb'\\? Choose one of embedded, ptb, w"
    ):
        fetch("ptbb")
    with pytest.raises(G2Error, match="there is no data set 'zzz'. Choose one of embedded"):
        folder_of("zzz")


def test_downloaded_once_into_the_cache(
    toy: DataSet, mirror: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "g2lstm.text")
    folder = fetch("toy")
    assert caplog.messages == [f"downloading {name}: 0 of 0 KB are done" for name in TEXTS]
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
    assert fetch("toy", tmp_path / "mine") == tmp_path / "mine" / "toy"


def test_what_a_given_folder_lacks_is_downloaded_into_it(toy: DataSet, mirror: Path, tmp_path: Path) -> None:
    put(tmp_path / "mine" / "toy")
    (tmp_path / "mine" / "toy" / "valid.txt").unlink()
    assert (fetch("toy", tmp_path / "mine") / "valid.txt").read_bytes() == TEXTS["valid.txt"]


def test_a_given_folder_that_is_not_there(toy: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(G2Error, match=re.escape(f"the data folder is {tmp_path / 'no'}, which is not a folder")):
        fetch("toy", tmp_path / "no")
    monkeypatch.setenv("G2LSTM_DATA", str(tmp_path / "none"))
    with pytest.raises(G2Error, match=re.escape(f"G2LSTM_DATA is {tmp_path / 'none'}, which is not a folder")):
        fetch("toy")
    assert not (tmp_path / "none").exists()


def test_a_file_that_differs_is_an_error_and_stays(toy: DataSet, tmp_path: Path) -> None:
    changed = put(tmp_path / "toy") / "valid.txt"
    changed.write_bytes(b"changed\n")
    with pytest.raises(G2Error, match=re.escape(f"{changed} is not the valid.txt of 'toy': its SHA-256 is ")) as caught:
        fetch("toy", tmp_path)
    assert toy.files["valid.txt"][0] in str(caught.value)
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


def test_the_embedded_set_needs_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("G2LSTM_DATA", str(tmp_path / "none"))
    assert all(file.stat().st_size > 1000 for file in fetch("embedded").iterdir())


def test_the_cache_is_where_the_environment_says(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir() == cache
    monkeypatch.delenv("G2LSTM_CACHE")
    assert cache_dir().name == "g2lstm"


@pytest.mark.parametrize("name", ["embedded", "embedded-mt"])
def test_embedded_files_are_written_once_and_again_if_damaged(name: str, cache: Path) -> None:
    folder = fetch(name)
    assert folder.parent == cache / "data"
    assert sorted(file.name for file in folder.iterdir()) == sorted(data_set(name).file_names)
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()}
    assert fetch(name) == folder
    assert {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()} == before
    truncated, changed, absent, *_ = before
    truncated.write_bytes(before[truncated][1][:-100])
    changed.write_bytes(b"X" + before[changed][1][1:])
    absent.unlink()
    assert fetch(name) == folder
    assert {file: file.read_bytes() for file in folder.iterdir()} == {file: text for file, (_, text) in before.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        pytest.param(name, data_set(name).folder, marks=needs(data_set(name).folder))
        for name in ("ptb", "wikitext-2", "multi30k-de-en", "iwslt14-de-en", "wmt14-en-de")
    ],
)
def test_the_real_files_are_the_known_ones(name: str, folder: str) -> None:
    assert fetch(name, DATA) == DATA / folder
