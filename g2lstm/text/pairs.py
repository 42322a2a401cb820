"""Sentence pairs: their files, their tokenizers, and their tokens, encoded once and memory-mapped."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from g2lstm.errors import G2Error
from g2lstm.text.corpus import TokenStream, prepare_stream, prepare_tokenizer
from g2lstm.text.lines import count_lines, read_pieces
from g2lstm.text.registry import SPLITS, data_set, folder_with
from g2lstm.text.tokenize import Tokenizer


class PairFiles(NamedTuple):
    """Two texts whose lines belong together."""

    source: Path
    target: Path


class PairCorpus:
    """The pairs of one split; only the pairs that are read come into memory.

    A pair with an empty line counts like any other here.

    Args:
        source: the lines to translate.
        target: their translations, one for each.
        files: the texts they were encoded from.
    """

    def __init__(self, source: TokenStream, target: TokenStream, files: PairFiles | None = None) -> None:
        self.source = source
        self.target = target
        self.files = files

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.source_lengths)

    @property
    def source_lengths(self) -> npt.NDArray[np.int64]:
        """Tokens in each source, without `<eos>`: (pairs,), a view of the file."""
        return self.source.lengths

    @property
    def target_lengths(self) -> npt.NDArray[np.int64]:
        """Tokens in each target, without `<eos>`: (pairs,), a view of the file."""
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
        name: of a data set, which is fetched if necessary.
        path: instead of a name, the user's own folder with files such as train.de and train.en.
        source: the language to translate from, which is the ending of its files.
        target: the language to translate to. For a data set, both may be omitted: it has a usual direction.
        data_dir: see `registry.folder_of`.
    """
    if name is not None:
        found = data_set(name)
        if found.task != "mt":
            raise G2Error(f"the data set {name!r} is plain text; translation needs sentence pairs, such as embedded-mt")
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
    """The tokenizers of source and target, trained on the first call and kept.

    Args:
        files: the training texts.
        kind: "word" or "bpe".
        vocabulary: the maximum number of tokens, of each side or, if joint, of both; None for all words.
        joint: train one tokenizer on both texts, and use it for both sides.
        min_frequency: see `prepare_tokenizer`, like the arguments after it.
        lowercase: convert the texts to lower case first.
        is_tokenized: spaces already separate words and punctuation.
        cache: folder for prepared files.
        workers: how many processes count words.
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
    """The tokens of two files with the same number of lines, encoded on the first call and kept.

    `prepare_stream` explains `cache` and `workers`.
    """
    _check_sides(files)
    source = prepare_stream(files.source, source_tokenizer, cache=cache, workers=workers)
    return PairCorpus(source, prepare_stream(files.target, target_tokenizer, cache=cache, workers=workers), files)


def read_pairs(files: PairFiles) -> tuple[list[str], list[str]]:
    """The lines of source and target as the files have them; all are held in memory."""
    _check_sides(files)
    return _whole_lines(files.source), _whole_lines(files.target)


def _check_sides(files: PairFiles) -> None:
    source, target = map(count_lines, files)
    # A file without lines has its own error when it is read.
    if source != target and source and target:
        raise G2Error(
            f"{files.source} has {source:,} lines, but {files.target} has {target:,}; they must have the same number, "
            "because each line of one is the translation of a line of the other"
        )


def _whole_lines(path: Path) -> list[str]:
    lines, pieces = [], []
    for piece in read_pieces(path):
        pieces.append(piece.text)
        if piece.ends_line:
            lines.append("".join(pieces))
            pieces = []
    return lines
