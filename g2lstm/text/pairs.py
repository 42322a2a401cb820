"""Sentence pairs: their files, their tokenizers, and their tokens, encoded once and memory-mapped."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from g2lstm.errors import G2Error
from g2lstm.text.corpus import TokenStream, prepare_stream, prepare_tokenizer
from g2lstm.text.lines import count_lines, read_pieces
from g2lstm.text.tokenize import Tokenizer


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
