"""Data sets: from a name, or the user's own folder, to files that are present and verified; one ships with Python."""

import hashlib
import logging
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path

from g2lstm.errors import G2Error
from g2lstm.files import write_atomically
from g2lstm.text.grammar import grammar_files
from g2lstm.text.lines import sha256_of

BLOCK = 16  # paragraphs that stay together, so that sentences keep their context
_PLAIN_WORD = re.compile(r"[\"'“‘(*\[]*[A-Za-z][a-z’'-]*[\"'”’)*.,;:\]!?]*")
_SENTENCE_END = re.compile(r"(?<=[.?!])[\"”)]*\s+(?=[\"“(*]*[A-Z])")
_QUOTED = re.compile(r"\"([^\"]+)\"")
_NAME = re.compile(r"[^\W\d][\w.]*(?:\(\))?")
_TOKEN = re.compile(r"<code>|e\.g\.|i\.e\.|\d+(?:\.\d+)*|[^\W\d]\w*(?:[.'-]\w+)*|[.,;:?!()]")


def embedded_files() -> dict[str, str]:
    """The embedded `train.txt`, `valid.txt` and `test.txt`: a sentence per line, of lower-case words and punctuation.

    Spaces separate them. Numbers become `N`, as in Penn Treebank; `name()` becomes `name`; other quoted code becomes
    `<code>`.

    The text depends on the version of Python, and so does every score on it. Of every ten blocks of paragraphs, the
    ninth is for validation and the tenth for testing. A paragraph that the documentation repeats occurs once.
    """
    sentences: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for index, paragraph in enumerate(_paragraphs()):
        split = {8: "valid", 9: "test"}.get(index // BLOCK % 10, "train")
        sentences[split].extend(_sentences(paragraph))
    return {f"{split}.txt": "\n".join(lines) + "\n" for split, lines in sentences.items()}


def _paragraphs() -> Iterator[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise G2Error(
            "the embedded text is Python's own documentation (pydoc_data.topics), which this Python lacks; install all "
            "of Python, or set data.path to a folder of your own"
        ) from None
    seen = set()
    for name in sorted(topics):
        for block in re.split(r"\n\s*\n", topics[name]):
            paragraph = " ".join(re.sub(r"(?<=\w-)\n\s*", "", block.strip()).split())
            if paragraph not in seen and _is_prose(paragraph):
                seen.add(paragraph)
                yield paragraph


def _is_prose(paragraph: str) -> bool:
    """Whether a paragraph is sentences, not code, grammar, a signature or a heading."""
    words = paragraph.split()
    if len(words) < 6 or "::=" in words or paragraph.startswith(">>>"):
        return False
    return sum(_PLAIN_WORD.fullmatch(word) is not None for word in words) >= 0.6 * len(words)


def _sentences(paragraph: str) -> Iterator[str]:
    for sentence in _SENTENCE_END.split(paragraph):
        text = _QUOTED.sub(_name_or_code, sentence.replace("’", "'")).lower()
        words = ["N" if word[0].isdigit() else word for word in _TOKEN.findall(text)]
        if len(words) > 1:
            yield " ".join(words)


def _name_or_code(quoted: re.Match[str]) -> str:
    code = quoted[1]
    return code.removesuffix("()") if _NAME.fullmatch(code) else " <code> "


SPLITS = ("train", "valid", "test")
_EMBEDDED = {"embedded": embedded_files, "embedded-mt": grammar_files}
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataSet:
    """A named data set; datasets.toml describes each."""

    name: str  # what recipes and commands call it
    task: str  # "lm" for text, "mt" for pairs of texts aligned by line
    summary: str  # one line for a table
    folder: str  # of the set in a data directory or a mirror
    files: Mapping[str, Sequence[str]] = field(
        default_factory=dict
    )  # to download, each with its SHA-256 and its address
    languages: Sequence[str] = ()  # of an "mt" set, source first: the endings of its files
    preparation: str = ""  # how users make the files of a set that cannot be downloaded ready-made
    training_pairs: int = 0  # roughly how many the whole of such a set has

    @property
    def file_names(self) -> list[str]:
        """The files in the set's folder."""
        return _file_names(self.languages or ("txt",))

    def url_of(self, file: str) -> str:
        """Where a file is downloaded from; with `G2LSTM_MIRROR` set it is <mirror>/<folder of the set>/<file>."""
        mirror = os.environ.get("G2LSTM_MIRROR")
        return f"{mirror.rstrip('/')}/{self.folder}/{file}" if mirror else self.files[file][1]


def cache_dir() -> Path:
    """The folder for files that can be made again: `G2LSTM_CACHE` if set, otherwise the system's cache for the user."""
    if given := os.environ.get("G2LSTM_CACHE"):
        return Path(given).expanduser()
    import pooch  # type: ignore[import-untyped]

    return Path(pooch.os_cache("g2lstm"))


@cache
def data_sets() -> dict[str, DataSet]:
    """All named data sets, by name."""
    tables = tomllib.loads((files("g2lstm.text") / "datasets.toml").read_text(encoding="utf-8"))
    return {name: DataSet(**{"name": name, "folder": name, **table}) for name, table in tables.items()}


def data_set(name: str) -> DataSet:
    """The data set with this name."""
    if name not in data_sets():
        close = get_close_matches(name, data_sets(), n=1)
        guess = f"; did you mean {close[0]!r}?" if close else "."
        raise G2Error(f"there is no data set {name!r}{guess} Choose one of {', '.join(data_sets())}")
    return data_sets()[name]


def folder_of(name: str, data_dir: Path | None = None) -> Path:
    """The folder that holds a data set, or will once it is fetched.

    It is in `data_dir`, which has a folder for each set; by default in `G2LSTM_DATA` or, if unset, the user's cache.
    """
    found = data_set(name)
    if name in _EMBEDDED:
        return _embedded_folder(name)
    root = data_dir or os.environ.get("G2LSTM_DATA") or cache_dir() / "data"
    return Path(root).expanduser() / found.folder


def fetch(name: str, data_dir: Path | None = None) -> Path:
    """The folder of a data set, complete and verified; missing files are downloaded, and the log reports progress.

    Existing files are never overwritten, not even if their checksums are wrong.
    """
    found, folder = data_set(name), folder_of(name, data_dir)
    origin = "the data folder" if data_dir else "G2LSTM_DATA"
    if not folder.parent.is_dir() and folder.parent != cache_dir() / "data":
        raise G2Error(f"{origin} is {folder.parent}, which is not a folder; it should hold one folder per data set")
    if found.preparation and (missing := [file for file in found.file_names if not (folder / file).is_file()]):
        raise G2Error(
            f"the data set {name!r} cannot be downloaded ready-made, and {folder} lacks {', '.join(missing)}; make "
            f"them, with one sentence per line, and put them there, or into {found.folder}/ in the folder that "
            f"G2LSTM_DATA names. How they are usually made: {found.preparation}"
        )
    for file, (expected, _) in found.files.items():
        if (folder / file).exists() and (got := sha256_of(folder / file)) != expected:
            raise G2Error(
                f"{folder / file} is not the {file} of {name!r}: its SHA-256 is {got}, not {expected}; delete it to "
                "have it downloaded again, or, if the text is your own, give its folder as data.path"
            )
    _download(found, [file for file in found.files if not (folder / file).exists()], folder)
    return folder


def partial_pairs(name: str, pairs: int) -> str | None:
    """What a result must state if it was trained on only part of a set: "50,906 of about 153,000 pairs".

    None if `pairs` is at least nine tenths of the whole set, or if the set is always whole.
    """
    whole = data_set(name).training_pairs
    return f"{pairs:,} of about {whole:,} pairs" if pairs < 0.9 * whole else None


def _file_names(endings: Sequence[str]) -> list[str]:
    return [f"{split}.{ending}" for split in SPLITS for ending in endings]


def _embedded_folder(name: str) -> Path:
    """The folder of an embedded set; missing or damaged files are written."""
    contents = {file: text.encode() for file, text in _EMBEDDED[name]().items()}
    digest = hashlib.sha256(b"\0".join(contents.values())).hexdigest()
    folder = cache_dir() / "data" / f"{name}-{digest[:12]}"
    for file, content in contents.items():
        if not (folder / file).is_file() or (folder / file).read_bytes() != content:
            with write_atomically(folder / file) as new:
                new.write(content)
    return folder


def _download(found: DataSet, missing: list[str], folder: Path) -> None:
    import pooch

    pooch.get_logger().setLevel("WARNING")  # only commands talk to the user
    for index, file in enumerate(missing):
        known_hash = f"sha256:{found.files[file][0]}"
        try:
            pooch.retrieve(found.url_of(file), known_hash, fname=file, path=folder, progressbar=_DownloadLog(file))
        except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong checksum is a ValueError
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            todo = "".join(f"\n  {found.url_of(each)}\n    to {folder / each}" for each in missing[index:])
            raise G2Error(
                f"cannot download {file} of {found.name!r}: {reason}\nDownload it yourself, or set G2LSTM_MIRROR to an "
                f"address that has {found.folder}/{file}, or G2LSTM_DATA to a folder that has it:{todo}"
            ) from None


class _DownloadLog:
    """What pooch expects of a progress bar; logs every megabyte."""

    def __init__(self, file: str) -> None:
        self.total = 0  # bytes; pooch sets it
        self._file, self._done = file, 0

    def update(self, count: int) -> None:
        before, self._done = self._done, min(self._done + count, self.total)
        if before >> 20 < self._done >> 20 or before < self._done == self.total:
            _LOGGER.info("%s: %d of %d KB are done", f"downloading {self._file}", self._done >> 10, self.total >> 10)

    def reset(self) -> None:
        """Called at the end, before the total is reported once more."""

    def close(self) -> None:
        """Nothing is open."""
