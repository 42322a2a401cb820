"""The user's own sentence pairs: a folder with train.de and train.en; splits that are missing are taken from them."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from g2lstm.errors import G2Error
from g2lstm.files import write_atomically
from g2lstm.text.datasets import SPLITS, cache_dir
from g2lstm.text.lines import count_lines, open_to_read, sha256_of
from g2lstm.text.pairs import PairFiles, check_sides

HELD_OUT = 0.05  # of the training pairs, for each split that is missing
MOST_HELD_OUT = 1000  # pairs, which is enough for a precise score
LEAST_PAIRS = 40  # of a text that is split


def pair_endings(folder: Path) -> tuple[str, str] | None:
    """The endings of the two training texts in a folder, by the alphabet; None if it does not have just two."""
    if not os.path.isdir(folder) or (folder / "train.txt").exists():
        return None
    endings = sorted(file.suffix[1:] for file in folder.glob("train.*") if file.suffix and file.is_file())
    return (endings[0], endings[1]) if len(endings) == 2 else None


def own_pairs(path: Path, endings: Sequence[str]) -> dict[str, PairFiles]:
    """The files of each split.

    If those of valid or test are missing, pairs spread evenly over the training text take their place: 5 % each, but at
    most 1,000. Those files, and what is left to train on, are in the user's cache.
    """
    folder = path.expanduser()
    names = f"train.{endings[0]} and train.{endings[1]}"
    if not os.path.isdir(folder):  # raises for no name, unlike Path.is_dir
        raise G2Error(f"the data folder {folder} does not exist; create it with {names}")
    files = {split: PairFiles(*(folder / f"{split}.{ending}" for ending in endings)) for split in SPLITS}
    exists = {file: os.path.isfile(file) for pair in files.values() for file in pair}
    if lacking := [f.name for pair in files.values() for f in pair if not exists[f] and any(exists[g] for g in pair)]:
        raise G2Error(f"the data folder {folder} lacks {', '.join(lacking)}; each split needs both languages")
    if not exists[files["train"].source]:
        raise G2Error(f"the data folder {folder} lacks {names}; valid and test are taken from them if they are missing")
    missing = [split for split, pair in files.items() if not exists[pair.source]]
    return {**files, **_split(files["train"], missing)} if missing else files


def _split(train: PairFiles, missing: list[str]) -> dict[str, PairFiles]:
    made_of = f"{sha256_of(train.source)} {sha256_of(train.target)} {HELD_OUT} {MOST_HELD_OUT} {missing}"
    folder = cache_dir() / "data" / f"own-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"
    files = {split: PairFiles(*(folder / f"{split}{file.suffix}" for file in train)) for split in ("train", *missing)}
    if all(file.is_file() for pair in files.values() for file in pair):
        return files
    check_sides(train)
    lines = count_lines(train.source)
    if lines < LEAST_PAIRS:
        names = ", ".join(f"{split}{file.suffix}" for split in missing for file in train)
        raise G2Error(
            f"{train.source} has only {lines} lines, too few to take pairs for validation and testing from them; it "
            f"needs at least {LEAST_PAIRS}, or {names}"
        )
    every = lines // min(int(lines * HELD_OUT), MOST_HELD_OUT)
    for side, file in enumerate(train):
        with open_to_read(file) as text, ExitStack() as stack:
            new = {split: stack.enter_context(write_atomically(pair[side])) for split, pair in files.items()}
            for number, line in enumerate(text):
                place = number % every
                new[missing[place] if place < len(missing) else "train"].write(line.removesuffix(b"\n") + b"\n")
    return files
