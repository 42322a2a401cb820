"""The user's own text: one file, or a folder with train.txt; splits that are missing are cut off its end."""

import hashlib
import os
import re
from pathlib import Path
from typing import BinaryIO

from g2lstm.errors import G2Error
from g2lstm.files import write_atomically
from g2lstm.text.datasets import SPLITS, cache_dir
from g2lstm.text.lines import open_to_read, sha256_of

HELD_OUT = 0.05  # of the training text, for each split that is missing
MOST_HELD_OUT = 1 << 20  # bytes, which is enough for a precise score
LEAST_BYTES = 1000  # of a text that is split
_LOOK_AHEAD = 1 << 14  # bytes, for the end of a paragraph
_COPIED_AT_ONCE = 1 << 20
_ENDS = (b"\n\n", b"\n", b" ")  # where a text may be cut, best first


def own_texts(path: Path) -> dict[str, Path]:
    """The file of each split.

    If valid.txt or test.txt is missing, or `path` is a single file, the last parts of the training text take their
    place: 5 % each, but at most 1 MB, cut where a paragraph ends. Those files are in the user's cache.
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
    found = {split: path / f"{split}.txt" for split in SPLITS if os.path.isfile(path / f"{split}.txt")}
    texts = sorted(path.glob("*.txt"))
    if not found and len(texts) == 1:
        return {"train": texts[0]}
    if "train" not in found:
        there = f"it has {', '.join(text.name for text in texts[:5])}" if texts else "it has no file ending in .txt"
        raise G2Error(f"the data folder {path} lacks train.txt; {there}. Rename your training text, or give one file")
    return found


def _split(train: Path, missing: list[str]) -> dict[str, Path]:
    """The training text and the splits cut off its end, as files in the cache."""
    made_of = f"{sha256_of(train)} {HELD_OUT} {MOST_HELD_OUT} {missing}"
    folder = cache_dir() / "data" / f"own-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"
    files = {split: folder / f"{split}.txt" for split in ("train", *missing)}
    if all(file.is_file() for file in files.values()):
        return files
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
    apart, attached = (len(re.findall(rf"{before}[.,](?=\s|$)", text)) for before in (r"\s", r"\w"))
    return apart > attached
