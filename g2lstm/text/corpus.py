"""Token streams and pairs of them: text is encoded once into files, which are memory-mapped and read in pieces."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from g2lstm.errors import G2Error
from g2lstm.files import make_folder, read_bounded, write_atomically
from g2lstm.text.datasets import cache_dir
from g2lstm.text.lines import Piece, count_characters, count_lines, read_pieces, sample_lines, sha256_of
from g2lstm.text.tokenize import Tokenizer, train_bpe_tokenizer, train_word_tokenizer

FORMAT = 2  # of the prepared files; part of their names
SAMPLE_BYTES = 1 << 27  # of text that byte-pair encoding is trained on
_BATCH_CHARACTERS = 1 << 18  # of text that is encoded at once
_COUNTED_AT_ONCE = 1 << 20  # tokens
_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")


class TokenStream:
    """The tokens of one split, in a file that is read only where needed; made by `prepare_stream`.

    Next to the tokens in `path` are the start and length of each line (.lines), and the checksums of both (.sha256).
    Files that do not match them are an error. `text_sha256` is for a result's signature.
    """

    def __init__(self, path: Path, dtype: str, text: Path, text_sha256: str) -> None:
        self.path, self.text, self.text_sha256 = path, text, text_sha256
        if read_bounded(path.with_suffix(".sha256"), 1000) != _checksums(path):
            raise G2Error(f"the prepared text {path} does not match its checksum")
        self._tokens = np.asarray(np.memmap(path, dtype, "r"))
        self._lines = np.asarray(np.memmap(path.with_suffix(".lines"), "<i8", "r")).reshape(-1, 2)

    def __len__(self) -> int:
        """The number of tokens, including the `<eos>` of each line."""
        return len(self._tokens)

    @cached_property
    def characters(self) -> int:
        """The number of characters in the text, with one for the end of each line."""
        return count_characters(self.text)

    def read(self, start: int, length: int) -> npt.NDArray[np.int64]:
        """A copy of the tokens from `start` on: (length,), fewer at the end."""
        return self._tokens[start : start + length].astype(np.int64)

    def counts(self, vocabulary_size: int) -> npt.NDArray[np.int64]:
        """How often each token of a vocabulary occurs: (vocabulary_size,)."""
        counts = np.zeros(vocabulary_size, np.int64)
        for start in range(0, len(self), _COUNTED_AT_ONCE):
            counts += np.bincount(self.read(start, _COUNTED_AT_ONCE), minlength=vocabulary_size)
        return counts

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The lengths of the lines without `<eos>`: (lines,), a view of the file."""
        return self._lines[:, 1]

    def line(self, number: int) -> npt.NDArray[np.int64]:
        """A copy of a line's tokens, without `<eos>`."""
        return self.read(*self._lines[number].tolist())

    def columns(
        self, numbers: npt.NDArray[np.integer], fill: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Copies of the lines with these numbers (B,), side by side, with `fill` after the end of each.

        Returns:
            tokens: (T + 1, B), where T is the length of the longest line.
            lengths: (B,), without `<eos>`.
        """
        bounds = self._lines[numbers]
        lengths = bounds[:, 1]
        block = np.full((lengths.max() + 1, len(numbers)), fill, dtype=np.int64)
        for column, (start, length) in zip(block.T, bounds.tolist(), strict=True):
            column[:length] = self._tokens[start : start + length]
        return block, lengths


def prepare_tokenizer(
    text: Path | Sequence[Path],
    kind: str = "word",
    *,
    vocabulary: int | None = None,
    min_frequency: int = 1,
    lowercase: bool = False,
    is_cleaning: bool = False,
    is_tokenized: bool = False,
    prefix_space: bool = False,
    cache: Path | None = None,
) -> Tokenizer:
    """The tokenizer of a training text, trained on the first call and kept.

    All words are counted. Byte-pair encoding is trained on at most 128 MB, which are lines spread evenly over a longer
    text. So memory grows with the number of different words, but not with the text.

    Several texts may share the tokenizer. `train_word_tokenizer` and `train_bpe_tokenizer` explain the settings;
    tokenizers of words and characters ignore `is_tokenized` and `prefix_space`. `cache` is a folder; by default
    prepared files are in the user's cache.
    """
    if kind not in ("bpe", "word", "character"):
        raise G2Error(f"the tokenizer must be 'bpe', 'word' or 'character', got {kind!r}")
    texts = [text] if isinstance(text, Path) else text
    settings: dict[str, Any] = {"vocabulary": vocabulary, "min_frequency": min_frequency, "lowercase": lowercase}
    settings |= {"is_cleaning": True} if is_cleaning else {}  # others keep the names of their files
    for_bpe = {"is_tokenized": is_tokenized, "prefix_space": prefix_space}
    made_of = {"texts": [sha256_of(text) for text in texts], "kind": kind, **settings, **for_bpe}
    path = _cache_path(cache, made_of, "json")

    def make() -> None:
        if kind == "bpe":
            tokenizer = train_bpe_tokenizer(sample_lines(texts, SAMPLE_BYTES), **settings, **for_bpe)
        else:
            tokenizer = train_word_tokenizer(sample_lines(texts), **settings, is_split=kind == "character")
        tokenizer.save(path)

    return _load_or_make(path, lambda: Tokenizer.load(path), make)


def prepare_stream(text: Path, tokenizer: Tokenizer, *, cache: Path | None = None) -> TokenStream:
    """The tokens of a text, with `<eos>` after each line; encoded on the first call, on all cores, and kept.

    Memory does not grow with the text. `cache` is that of `prepare_tokenizer`.
    """
    sha256 = sha256_of(text)
    path = _cache_path(cache, {"text": sha256, "tokenizer": tokenizer.fingerprint}, "tokens")
    dtype = "<u2" if len(tokenizer) <= 2**16 else "<u4"
    return _load_or_make(
        path, lambda: TokenStream(path, dtype, text, sha256), lambda: _write_tokens(text, tokenizer, dtype, path)
    )


def _write_tokens(text: Path, tokenizer: Tokenizer, dtype: str, path: Path) -> None:
    """Writes the files that `TokenStream` reads."""
    with write_atomically(path) as tokens, write_atomically(path.with_suffix(".lines")) as lines:
        start = stop = 0
        for pieces in _batches(read_pieces(text)):
            encoded = tokenizer.encode_lines([piece.text for piece in pieces])
            bounds = []
            for ids, piece in zip(encoded, pieces, strict=True):
                stop += len(ids)
                if piece.ends_line:
                    ids.append(tokenizer.eos_id)
                    bounds.append((start, stop - start))
                    start = stop = stop + 1
            tokens.write(np.fromiter(chain.from_iterable(encoded), dtype).tobytes())
            lines.write(np.array(bounds, "<i8").tobytes())
    with write_atomically(path.with_suffix(".sha256")) as seal:
        seal.write(_checksums(path))


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text) + 1
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    yield batch


def _checksums(path: Path) -> bytes:
    """The checksums of tokens and lines, in the format of `sha256sum`."""
    return "".join(f"{sha256_of(file)}  {file.name}\n" for file in (path, path.with_suffix(".lines"))).encode()


def _cache_path(cache: Path | None, made_of: Mapping[str, object], ending: str) -> Path:
    key = hashlib.sha256(json.dumps({"format": FORMAT, **made_of}, sort_keys=True).encode()).hexdigest()
    return (cache_dir() if cache is None else cache) / "prepared" / f"{key[:32]}.{ending}"


def _load_or_make(path: Path, load: Callable[[], _T], make: Callable[[], None]) -> _T:
    """What is in the cache; if it is missing or damaged, one process makes it while the others wait."""
    with suppress(G2Error):
        return load()
    with _alone(path.parent):
        try:
            return load()  # another process may have made it meanwhile
        except G2Error as error:
            if path.exists():
                _LOGGER.warning("%s; it is made again", error)
        for left in path.parent.glob(f".{path.stem}.*.tmp"):  # by a process that was killed
            left.unlink()
        make()
    return load()


def _alone(folder: Path) -> AbstractContextManager[object]:
    """Waits until no other process prepares a text in a folder; a process that dies blocks nobody."""
    make_folder(folder)
    try:
        return FileLock(folder.with_suffix(".lock")).acquire()
    except OSError as error:
        raise G2Error(f"cannot lock {folder}: {error.strerror}; set G2LSTM_CACHE to another folder") from None


class PairFiles(NamedTuple):
    """Two texts whose lines belong together."""

    source: Path
    target: Path


@dataclass(frozen=True, eq=False)
class PairCorpus:
    """The pairs of one split, including pairs with an empty line; only the pairs that are read come into memory."""

    source: TokenStream
    target: TokenStream  # the translation of each line
    files: PairFiles | None = None  # that they were encoded from

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.source.lengths)

    @property
    def text_sha256(self) -> tuple[str, str]:
        """Of the source text and of the target text, for a result's signature."""
        return self.source.text_sha256, self.target.text_sha256


def prepare_tokenizers(
    files: PairFiles, kind: str = "bpe", *, joint: bool = False, min_frequency: int = 2, **settings: Any
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target, trained on the first call and kept.

    Both clean what they read. If `joint`, one tokenizer is trained on both texts and used for both sides. The settings
    are those of `prepare_tokenizer`.
    """
    check_sides(files)
    settings |= {"min_frequency": min_frequency, "prefix_space": kind == "bpe", "is_cleaning": True}
    if joint:
        both = prepare_tokenizer(files, kind, **settings)
        return both, both
    return prepare_tokenizer(files.source, kind, **settings), prepare_tokenizer(files.target, kind, **settings)


def prepare_pairs(
    files: PairFiles, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, *, cache: Path | None = None
) -> PairCorpus:
    """The tokens of two files with the same number of lines; see `prepare_stream`."""
    check_sides(files)
    source = prepare_stream(files.source, source_tokenizer, cache=cache)
    return PairCorpus(source, prepare_stream(files.target, target_tokenizer, cache=cache), files)


def read_pairs(files: PairFiles) -> tuple[list[str], list[str]]:
    """The lines of source and target as the files have them; all are held in memory."""
    check_sides(files)
    source, target = ("".join(p.text + "\n" * p.ends_line for p in read_pieces(file)) for file in files)
    return source.split("\n")[:-1], target.split("\n")[:-1]


def check_sides(files: PairFiles) -> None:
    """Raises if the files have different numbers of lines."""
    source, target = map(count_lines, files)
    # A file without lines has its own error when it is read.
    if source != target and source and target:
        raise G2Error(
            f"{files.source} has {source:,} lines, but {files.target} has {target:,}; they must have the same number, "
            "because each line of one is the translation of a line of the other"
        )
