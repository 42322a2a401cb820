"""Named data sets: what they are, where they come from, and the files once they are here and verified."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from g2lstm.data.cache import cache_dir
from g2lstm.data.embedded import SPLITS, embedded_folder
from g2lstm.data.text import sha256_of
from g2lstm.errors import G2Error

_GITHUB = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class RemoteFile:
    """One file of a data set.

    Attributes:
        name: in the folder of the set, for example "train.txt", or "train.de" of a set of pairs.
        url: where it comes from, unless a mirror is set.
        sha256: of its bytes.
    """

    name: str
    url: str
    sha256: str


@dataclass(frozen=True)
class DataSet:
    """A data set that has a name.

    Attributes:
        name: as recipes and commands call it, and the name of its folder.
        task: "lm" for text, "mt" for pairs of texts aligned by line.
        summary: one line for a table.
        files: what to download; none for the embedded text, which is made from what Python brings along.
    """

    name: str
    task: str
    summary: str
    files: tuple[RemoteFile, ...] = ()


DATA_SETS: Mapping[str, DataSet] = MappingProxyType(
    {
        data_set.name: data_set
        for data_set in (
            DataSet("embedded", "lm", "Python's language reference as prose, 44K words to train on; needs no download"),
            DataSet(
                "ptb",
                "lm",
                "Penn Treebank in Mikolov's preparation, 930K words to train on, 10,000 types",
                tuple(
                    RemoteFile(f"{split}.txt", f"{_GITHUB}/tomsercu/lstm/master/data/ptb.{split}.txt", sha256)
                    for split, sha256 in (
                        ("train", "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
                        ("valid", "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
                        ("test", "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
                    )
                ),
            ),
            DataSet(
                "wikitext-2",
                "lm",
                "WikiText-2 by words, 2.1M words to train on, 33,278 types",
                tuple(
                    RemoteFile(
                        f"{split}.txt",
                        f"{_GITHUB}/pytorch/examples/main/word_language_model/data/wikitext-2/{split}.txt",
                        sha256,
                    )
                    for split, sha256 in (
                        ("train", "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
                        ("valid", "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
                        ("test", "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
                    )
                ),
            ),
        )
    }
)


def data_set(name: str) -> DataSet:
    """The data set of this name."""
    if name not in DATA_SETS:
        close = get_close_matches(name, DATA_SETS, n=1)
        guess = f"; did you mean {close[0]!r}?" if close else ";"
        raise G2Error(f"no data set is called {name!r}{guess} There are: {', '.join(DATA_SETS)}")
    return DATA_SETS[name]


def folder_of(name: str, data_dir: Path | None = None) -> Path:
    """The folder that holds a data set, or will when it is fetched.

    Args:
        name: of the data set.
        data_dir: a folder with one folder for each set; else `G2LSTM_DATA`, else the user's cache.
    """
    if not data_set(name).files:
        return embedded_folder()
    return (_given_root(data_dir) or cache_dir() / "data") / name


def fetch(name: str, data_dir: Path | None = None, *, progress: bool = False) -> Path:
    """The folder of a data set, complete and verified; files that are not there yet are downloaded.

    A file that is there is never overwritten, not even if its checksum is wrong.

    Args:
        name: of the data set.
        data_dir: a folder with one folder for each set; else `G2LSTM_DATA`, else the user's cache.
        progress: show a bar for each download.

    Raises:
        G2Error: unknown name, a file that differs from the known one, or a download that failed.
    """
    root = _given_root(data_dir) if data_set(name).files else None
    if root is not None and not root.is_dir():
        origin = "the data folder" if data_dir is not None else "G2LSTM_DATA"
        raise G2Error(f"{origin} points to {root}, which is not a folder; it should hold one folder for each data set")
    folder = folder_of(name, data_dir)
    missing = []
    for file in data_set(name).files:
        if (folder / file.name).exists():
            _verify(name, file, folder / file.name)
        else:
            missing.append(file)
    if missing:
        _download(name, missing, folder, progress)
    return folder


def url_of(name: str, file: RemoteFile) -> str:
    """Where a file is downloaded from; with `G2LSTM_MIRROR` set it is <mirror>/<set>/<file>."""
    mirror = os.environ.get("G2LSTM_MIRROR")
    return f"{mirror.rstrip('/')}/{name}/{file.name}" if mirror else file.url


def lm_files(name: str | None = None, path: Path | None = None, data_dir: Path | None = None) -> dict[str, Path]:
    """The text files of a language-modelling corpus by split: "train", "valid", "test".

    Args:
        name: of a data set; it is fetched if need be.
        path: instead of a name, a folder of the user's with train.txt, valid.txt and test.txt.
        data_dir: see `fetch`.
    """
    if (name is None) == (path is None):
        raise G2Error(f"give either the name of a data set or the path of a folder, got name={name!r}, path={path!r}")
    if name is not None:
        if data_set(name).task != "lm":
            raise G2Error(f"the data set {name!r} is for translation; language modelling needs one of plain text")
        folder = fetch(name, data_dir)
    elif path is not None:
        folder = path.expanduser()
        if not folder.is_dir():
            raise G2Error(f"the data folder {folder} does not exist; make it, with train.txt, valid.txt and test.txt")
    files = {split: folder / f"{split}.txt" for split in SPLITS}
    if missing := [file.name for file in files.values() if not file.is_file()]:
        raise G2Error(
            f"the data folder {folder} lacks {', '.join(missing)}; it needs train.txt, valid.txt and test.txt"
        )
    return files


def _given_root(data_dir: Path | None) -> Path | None:
    if data_dir is None and (given := os.environ.get("G2LSTM_DATA")):
        data_dir = Path(given)
    return None if data_dir is None else data_dir.expanduser()


def _verify(name: str, file: RemoteFile, path: Path) -> None:
    got = sha256_of(path)
    if got != file.sha256:
        raise G2Error(
            f"{path} is not the {file.name} of {name!r}: its SHA-256 is {got}, it should be {file.sha256}; remove it "
            "to have it downloaded again, or give the folder as data.path if the text is your own"
        )


def _download(name: str, files: list[RemoteFile], folder: Path, progress: bool) -> None:
    for index, file in enumerate(files):
        try:
            _retrieve(url_of(name, file), file, folder, progress)
        except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong checksum is a ValueError
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            todo = "".join(f"\n  {url_of(name, each)}\n    to {folder / each.name}" for each in files[index:])
            raise G2Error(
                f"cannot download {file.name} of {name!r}: {reason}\nDownload by hand, or set G2LSTM_MIRROR to an "
                f"address that has {name}/{file.name}, or G2LSTM_DATA to a folder that has it:{todo}"
            ) from None


def _retrieve(url: str, file: RemoteFile, folder: Path, progress: bool) -> None:
    import pooch  # type: ignore[import-untyped]

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")  # only commands tell the user things
    try:
        pooch.retrieve(url, f"sha256:{file.sha256}", fname=file.name, path=folder, progressbar=progress)
    finally:
        logger.setLevel(level)
