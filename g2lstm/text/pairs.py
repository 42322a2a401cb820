"""Sentence pairs: their files, their tokenizers, and their tokens, encoded once and memory-mapped."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from g2lstm.errors import G2Error
from g2lstm.text.corpus import LineStream, prepare_lines, prepare_tokenizer
from g2lstm.text.embedded import SPLITS
from g2lstm.text.registry import data_set, folder_with
from g2lstm.text.text import open_to_read, read_pieces
from g2lstm.text.tokenize import Tokenizer

_COUNT_BYTES = 1 << 20  # read at once to count lines


class PairFiles(NamedTuple):
    """Two texts whose lines belong together."""

    source: Path
    target: Path


class PairCorpus:
    """The pairs of one split; reading one brings only its part of the files into memory.

    A pair with an empty line is a pair like any other here.

    Args:
        source: the lines to translate.
        target: their translations, as many.
        files: the texts that they were encoded from.
    """

    def __init__(self, source: LineStream, target: LineStream, files: PairFiles | None = None) -> None:
        self.source = source
        self.target = target
        self.files = files

    def __len__(self) -> int:
        """How many pairs there are."""
        return len(self.source_lengths)

    @property
    def source_lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each source without `<eos>`: (pairs,), a view of the file."""
        return self.source.lengths

    @property
    def target_lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each target without `<eos>`: (pairs,), a view of the file."""
        return self.target.lengths

    @property
    def text_sha256(self) -> tuple[str, str]:
        """Of the source text and of the target text, for a result's signature."""
        return self.source.text_sha256, self.target.text_sha256

    def read(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The token ids of one pair, source and target, without `<eos>`."""
        return self.source.line(index), self.target.line(index)


def mt_files(
    name: str | None = None,
    path: Path | None = None,
    source: str | None = None,
    target: str | None = None,
    data_dir: Path | None = None,
) -> dict[str, PairFiles]:
    """The files of a translation corpus by split: "train", "valid", "test".

    Args:
        name: of a data set; it is fetched if need be.
        path: instead of a name, a folder of the user's, with files such as train.de and train.en.
        source: the language to translate from, which is the ending of its files.
        target: the language to translate to. A data set has a usual direction: there both may be left out.
        data_dir: see `registry.fetch`.
    """
    if name is not None:
        found = data_set(name)
        if found.task != "mt":
            raise G2Error(f"the data set {name!r} is plain text; translation needs one of pairs, such as embedded-mt")
        if source is None and target is None:
            source, target = found.languages
        elif {source, target} != set(found.languages):
            raise G2Error(
                f"the data set {name!r} has the languages {' and '.join(found.languages)}, got source={source!r} and "
                f"target={target!r}; give these two, in either order"
            )
    if source is None or target is None or source == target:
        raise G2Error(
            f"translation needs two languages, which are the endings of the files, got source={source!r} and "
            f"target={target!r}; for train.de and train.en give 'de' and 'en'"
        )
    folder = folder_with((source, target), name, path, data_dir)
    return {split: PairFiles(folder / f"{split}.{source}", folder / f"{split}.{target}") for split in SPLITS}


def prepare_tokenizers(
    files: PairFiles,
    kind: str = "bpe",
    *,
    vocabulary: int | None = None,
    joint: bool = False,
    min_frequency: int = 2,
    lowercase: bool = False,
    is_tokenized: bool = False,
    cache: Path | None = None,
    workers: int | None = None,
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target, trained at the first call and kept.

    Args:
        files: the training texts.
        kind: "word" or "bpe".
        vocabulary: at most so many tokens, of each side or of both if joint; None for all words.
        joint: one tokenizer, trained on both texts, is the tokenizer of either side.
        min_frequency: rarer words become `<unk>`; rarer pairs of bytes are not merged.
        lowercase: make the texts lower-case first.
        is_tokenized: words and punctuation stand apart in the texts already.
        cache: folder for prepared files; the user's cache if absent.
        workers: see `prepare_tokenizer`.
    """
    _check_sides(files)
    prepare = partial(
        prepare_tokenizer,
        kind=kind,
        vocabulary=vocabulary,
        min_frequency=min_frequency,
        lowercase=lowercase,
        is_tokenized=is_tokenized,
        prefix_space=kind == "bpe",
        cache=cache,
        workers=workers,
    )
    if joint:
        both = prepare(files)
        return both, both
    return prepare(files.source), prepare(files.target)


def prepare_pairs(
    files: PairFiles,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    *,
    cache: Path | None = None,
    workers: int | None = None,
) -> PairCorpus:
    """The tokens of pairs, encoded on all cores at the first call and kept; see `prepare_stream`.

    Args:
        files: two UTF-8 files of as many lines.
        source_tokenizer: what encodes the source.
        target_tokenizer: what encodes the target.
        cache: folder for prepared files; the user's cache if absent.
        workers: see `prepare_stream`.
    """
    _check_sides(files)
    source = prepare_lines(files.source, source_tokenizer, cache=cache, workers=workers)
    return PairCorpus(source, prepare_lines(files.target, target_tokenizer, cache=cache, workers=workers), files)


def read_pairs(files: PairFiles) -> tuple[list[str], list[str]]:
    """The lines of source and target as they stand in the files; all of them are held in memory."""
    _check_sides(files)
    return _whole_lines(files.source), _whole_lines(files.target)


def _check_sides(files: PairFiles) -> None:
    source, target = map(_count_lines, files)
    # A file without a line has an error of its own when it is read.
    if source != target and source and target:
        raise G2Error(
            f"{files.source} has {source:,} lines and {files.target} {target:,}; they must have as many, since each "
            "line is the translation of a line of the other file"
        )


def _count_lines(path: Path) -> int:
    count, last = 0, b"\n"
    with open_to_read(path) as file:
        while chunk := file.read(_COUNT_BYTES):
            count, last = count + chunk.count(b"\n"), chunk[-1:]
    return count + (last != b"\n")


def _whole_lines(path: Path) -> list[str]:
    lines, parts = [], []
    for piece in read_pieces(path):
        parts.append(piece.text)
        if piece.ends_line:
            lines.append("".join(parts))
            parts = []
    return lines
