"""From the name of a data set, or a folder of one's own, to files that are here and verified."""

import os
from difflib import get_close_matches
from pathlib import Path

from g2lstm.errors import G2Error
from g2lstm.text.cache import cache_dir
from g2lstm.text.embedded import SPLITS, embedded_folder
from g2lstm.text.grammar import grammar_folder
from g2lstm.text.sets import DATA_SETS, DataSet, RemoteFile
from g2lstm.text.text import sha256_of

_EMBEDDED = {"embedded": embedded_folder, "embedded-mt": grammar_folder}


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
    found = data_set(name)
    if name in _EMBEDDED:
        return _EMBEDDED[name]()
    return (_given_root(data_dir) or cache_dir() / "data") / found.folder


def fetch(name: str, data_dir: Path | None = None, *, progress: bool = False) -> Path:
    """The folder of a data set, complete and verified; files that are not there yet are downloaded.

    A file that is there is never overwritten, not even if its checksum is wrong.

    Args:
        name: of the data set.
        data_dir: a folder with one folder for each set; else `G2LSTM_DATA`, else the user's cache.
        progress: show a bar for each download.

    Raises:
        G2Error: unknown name, a file that differs from the known one, a download that failed, or a file that is not
            there, of a set that cannot be downloaded.
    """
    found = data_set(name)
    root = None if name in _EMBEDDED else _given_root(data_dir)
    if root is not None and not root.is_dir():
        origin = "the data folder" if data_dir is not None else "G2LSTM_DATA"
        raise G2Error(f"{origin} points to {root}, which is not a folder; it should hold one folder for each data set")
    folder = folder_of(name, data_dir)
    if found.preparation:
        _check_prepared(found, folder)
    missing = []
    for file in found.files:
        if (folder / file.name).exists():
            _verify(name, file, folder / file.name)
        else:
            missing.append(file)
    if missing:
        _download(name, missing, folder, progress)
    return folder


def url_of(name: str, file: RemoteFile) -> str:
    """Where a file is downloaded from; with `G2LSTM_MIRROR` set it is <mirror>/<folder of the set>/<file>."""
    mirror = os.environ.get("G2LSTM_MIRROR")
    return f"{mirror.rstrip('/')}/{data_set(name).folder}/{file.name}" if mirror else file.url


def lm_files(name: str | None = None, path: Path | None = None, data_dir: Path | None = None) -> dict[str, Path]:
    """The text files of a language-modelling corpus by split: "train", "valid", "test".

    Args:
        name: of a data set; it is fetched if need be.
        path: instead of a name, a folder of the user's with train.txt, valid.txt and test.txt.
        data_dir: see `fetch`.
    """
    if name is not None and data_set(name).task != "lm":
        raise G2Error(f"the data set {name!r} is for translation; language modelling needs one of plain text")
    folder = folder_with(("txt",), name, path, data_dir)
    return {split: folder / f"{split}.txt" for split in SPLITS}


def folder_with(endings: tuple[str, ...], name: str | None, path: Path | None, data_dir: Path | None) -> Path:
    """The folder of a data set or of the user's, with a file for each split and ending.

    Args:
        endings: such as ("txt",) or ("de", "en").
        name: of a data set; it is fetched if need be.
        path: instead of a name, a folder of the user's.
        data_dir: see `fetch`.
    """
    if (name is None) == (path is None):
        raise G2Error(f"give either the name of a data set or the path of a folder, got name={name!r}, path={path!r}")
    if path is None:
        return fetch(str(name), data_dir)
    folder = path.expanduser()
    needed = [f"{split}.{ending}" for split in SPLITS for ending in endings]
    listed = f"{', '.join(needed[:-1])} and {needed[-1]}"
    if not os.path.isdir(folder):  # which raises for no name
        raise G2Error(f"the data folder {folder} does not exist; make it, with {listed}")
    if missing := [file for file in needed if not os.path.isfile(folder / file)]:
        raise G2Error(f"the data folder {folder} lacks {', '.join(missing)}; it needs {listed}")
    return folder


def partial_pairs(name: str, pairs: int) -> str | None:
    """What a result must say if it comes from a part of the training set: "50,906 of about 153,000 pairs".

    Args:
        name: of a data set.
        pairs: how many training pairs there are.

    Returns:
        None if that is nine tenths of the whole set or more, or if the set is always whole.
    """
    whole = data_set(name).training_pairs
    return f"{pairs:,} of about {whole:,} pairs" if pairs < 0.9 * whole else None


def _given_root(data_dir: Path | None) -> Path | None:
    if data_dir is None and (given := os.environ.get("G2LSTM_DATA")):
        data_dir = Path(given)
    return None if data_dir is None else data_dir.expanduser()


def _check_prepared(found: DataSet, folder: Path) -> None:
    if missing := [file for file in found.file_names if not (folder / file).is_file()]:
        raise G2Error(
            f"the data set {found.name!r} cannot be downloaded as it is, and {folder} lacks {', '.join(missing)}; make "
            f"them, one sentence a line, and put them there, or into {found.folder}/ of a folder that G2LSTM_DATA "
            f"names. How they are usually made: {found.preparation}"
        )


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
                f"address that has {data_set(name).folder}/{file.name}, or G2LSTM_DATA to a folder that has it:{todo}"
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
