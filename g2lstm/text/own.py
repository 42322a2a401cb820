"""The user's own text or sentence pairs: splits that are missing are taken from the training text."""

import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from g2lstm.errors import G2Error
from g2lstm.files import write_atomically
from g2lstm.text.corpus import PairFiles, check_sides
from g2lstm.text.datasets import SPLITS, cache_dir
from g2lstm.text.lines import count_characters, count_lines, open_to_read, sha256_of

HELD_OUT = 0.05  # of the training text or pairs, for each split that is missing
MOST_HELD_OUT = 1 << 20  # bytes, which is enough for a precise score
MOST_PAIRS_HELD_OUT = 1000  # pairs, which is enough for a precise score
LEAST_PAIRS = 40  # of a text that is split
LEAST_BYTES = 1000  # of a text that is split
_LOOK_AHEAD = 1 << 14  # bytes, for the end of a paragraph
_COPIED_AT_ONCE = 1 << 20
_ENDS = (b"\n\n", b"\n", b" ")  # where a text may be cut, best first


def own_texts(path: Path) -> dict[str, Path]:
    """The file of each split.

    If valid.txt or test.txt is missing, or `path` is a single file, the last parts of the training text take their
    place: 5 % each, but at most 1 MB, cut where a paragraph ends. Those files are in the user's cache. The validation
    text may also be called dev.txt or val.txt.
    """
    given = _given(path.expanduser())
    missing = [split for split in SPLITS if split not in given]
    return {**given, **_split(given["train"], missing)} if missing else given


def _given(path: Path) -> dict[str, Path]:
    """The files that exist; there is one for training."""
    if not os.path.isdir(path):  # raises for no name, unlike Path.is_dir
        if not os.path.exists(path):
            raise G2Error(f"the text {path} does not exist; give a text file, or a folder with train.txt")
        return {"train": path}
    found = {split: file for split in SPLITS if os.path.isfile(file := _split_file(path, split, "txt"))}
    texts = sorted(path.glob("*.txt"))
    if not found and len(texts) == 1:
        return {"train": texts[0]}
    if "train" not in found:
        others = [file.name for file in sorted(path.glob("train.*"))]
        names = [text.name for text in texts] or others or sorted(file.name for file in path.iterdir())
        there = f"it has {', '.join(names[:5])}" if names else "it is empty"
        remedy = "Rename your training text, or give one file"
        if len(others) > 2 and not texts:
            remedy = f"Write a recipe for two of these languages, such as: g2lstm init de en {path}"
        elif not names:
            remedy = "Put your text there; for pairs, put a file of each language, such as train.de and train.en"
        elif not texts:
            remedy = "Pairs need two files, one for each language, such as train.de and train.en"
        raise G2Error(f"the data folder {path} lacks train.txt; {there}. {remedy}")
    return found


def _split_file(folder: Path, split: str, ending: str) -> Path:
    """The file of a split, which may not exist; dev and val are other names for valid."""
    names = ("valid", "dev", "val") if split == "valid" else (split,)
    files = [folder / f"{name}.{ending}" for name in names]
    return next(filter(os.path.isfile, files), files[0])


def _split(train: Path, missing: list[str]) -> dict[str, Path]:
    """The training text and the splits cut off its end, as files in the cache."""
    made_of = f"{sha256_of(train)} {HELD_OUT} {MOST_HELD_OUT} {missing}"
    folder = cache_dir() / "data" / f"own-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"
    files = {split: folder / f"{split}.txt" for split in ("train", *missing)}
    if all(file.is_file() for file in files.values()):
        return files
    count_characters(train)  # what is wrong with the text is said of the user's file, not of ours
    size = train.stat().st_size
    if size < LEAST_BYTES:
        raise G2Error(
            f"{train} has only {size} bytes, too few to split off texts for validation and testing; it needs at least "
            f"{LEAST_BYTES}, or a folder with train.txt, valid.txt and test.txt"
        )
    part = min(int(size * HELD_OUT), MOST_HELD_OUT)
    with open_to_read(train) as text:
        starts = [0, *(_cut(text, size - part * count, part // 2) for count in range(len(missing), 0, -1)), size]
        for file, start, stop in zip(files.values(), starts, starts[1:], strict=False):
            text.seek(start)
            with write_atomically(file) as new:
                for at in range(start, stop, _COPIED_AT_ONCE):
                    new.write(text.read(min(_COPIED_AT_ONCE, stop - at)))
    return files


def _cut(text: BinaryIO, start: int, most: int) -> int:
    """Where to cut a text, at most this many bytes after `start`: behind a paragraph, a line, a word or a character."""
    text.seek(start)
    ahead = text.read(min(_LOOK_AHEAD, most))
    for end in _ENDS:
        if (found := ahead.find(end)) >= 0:
            return start + found + len(end)
    return start + next((k for k, byte in enumerate(ahead) if byte & 0xC0 != 0x80), 0)


def looks_tokenised(text: str) -> bool:
    """Whether commas and full stops stand apart from words, as after a tokenizer."""
    apart, attached = (len(re.findall(rf"{before}[.,。、，](?=\s|$)", text)) for before in (r"\s", r"\w"))
    return apart > attached


def pair_endings(folder: Path) -> tuple[str, str] | None:
    """The endings of the two training texts in a folder, by the alphabet; None if it does not have just two."""
    if not os.path.isdir(folder) or (folder / "train.txt").exists():
        return None
    endings = sorted(file.suffix[1:] for file in folder.glob("train.*") if file.suffix and file.is_file())
    return (endings[0], endings[1]) if len(endings) == 2 else None


def own_pairs(path: Path, endings: Sequence[str]) -> dict[str, PairFiles]:
    """The files of each split.

    If those of valid or test are missing, pairs spread evenly over the training text take their place: 5 % each, but at
    most 1,000. Those files, and what is left to train on, are in the user's cache. Valid may also be called dev or val.
    """
    folder = path.expanduser()
    names = f"train.{endings[0]} and train.{endings[1]}"
    if not os.path.isdir(folder):  # raises for no name, unlike Path.is_dir
        raise G2Error(f"the data folder {folder} does not exist; create it with {names}")
    files = {split: PairFiles(*(_split_file(folder, split, ending) for ending in endings)) for split in SPLITS}
    exists = {file: os.path.isfile(file) for pair in files.values() for file in pair}
    if lacking := [f.name for pair in files.values() for f in pair if not exists[f] and any(exists[g] for g in pair)]:
        raise G2Error(f"the data folder {folder} lacks {', '.join(lacking)}; each split needs both languages")
    if not exists[files["train"].source]:
        raise G2Error(f"the data folder {folder} lacks {names}; without valid and test, pairs of these are held out")
    missing = [split for split, pair in files.items() if not exists[pair.source]]
    return {**files, **_split_pairs(files["train"], missing)} if missing else files


def _split_pairs(train: PairFiles, missing: list[str]) -> dict[str, PairFiles]:
    made_of = f"{sha256_of(train.source)} {sha256_of(train.target)} {HELD_OUT} {MOST_PAIRS_HELD_OUT} {missing}"
    folder = cache_dir() / "data" / f"own-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"
    files = {split: PairFiles(*(folder / f"{split}{file.suffix}" for file in train)) for split in ("train", *missing)}
    if all(file.is_file() for pair in files.values() for file in pair):
        return files
    for file in train:
        count_characters(file)  # what is wrong with the text is said of the user's file, not of ours
    check_sides(train)
    lines = count_lines(train.source)
    if lines < LEAST_PAIRS:
        names = ", ".join(f"{split}{file.suffix}" for split in missing for file in train)
        raise G2Error(
            f"{train.source} has only {lines} lines, too few to hold out pairs for validation and testing; it "
            f"needs at least {LEAST_PAIRS}, or {names}"
        )
    every = lines // min(int(lines * HELD_OUT), MOST_PAIRS_HELD_OUT)
    for side, file in enumerate(train):
        with open_to_read(file) as text, ExitStack() as stack:
            new = {split: stack.enter_context(write_atomically(pair[side])) for split, pair in files.items()}
            for number, line in enumerate(text):
                place = number % every
                new[missing[place] if place < len(missing) else "train"].write(line.removesuffix(b"\n") + b"\n")
    return files
