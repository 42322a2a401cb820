"""Large texts are prepared in parts: by several processes side by side, and none twice after an interruption."""

import fcntl
import json
import logging
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from g2lstm.errors import G2Error
from g2lstm.files import make_folder
from g2lstm.text.cache import keep_file
from g2lstm.text.counting import count_words, write_counts
from g2lstm.text.encode import write_tokens
from g2lstm.text.text import open_to_read, read_pieces, sha256_of
from g2lstm.text.tokenize import Tokenizer

PART_BYTES = 1 << 25  # of text
_LOGGER = logging.getLogger(__name__)
_MOST_PARTS = 256  # those of a larger text are larger, since files of all parts are open at once


class Part(NamedTuple):
    """A part of a text, and the files to be made of it."""

    text: str
    start: int  # lines that begin at this byte or after it,
    stop: int  # and before this one
    files: list[str]  # tokens and perhaps an index of lines, or counts of words
    tokenizer: str | None = None  # a file; without one, words are counted
    lowercase: bool = False  # before words are counted

    def is_made(self) -> bool:
        """Whether all files are there, as they were written."""
        with suppress(OSError, ValueError, G2Error):
            return bool(json.loads(self._seal.read_bytes()) == self._facts())
        return False

    def make(self) -> None:
        """Makes the files, and after them one that tells which part they are and their checksums."""
        text, paths = Path(self.text), [Path(file) for file in self.files]
        if self.tokenizer is None:
            lines = (piece.text for piece in read_pieces(text, start=self.start, stop=self.stop))
            write_counts(count_words(lines, lowercase=self.lowercase), *paths)
        else:
            write_tokens(text, _load(self.tokenizer), *paths, start=self.start, stop=self.stop)
        keep_file(self._seal, json.dumps(self._facts()).encode())

    @property
    def _seal(self) -> Path:
        return Path(self.files[0] + ".json")

    def _facts(self) -> list[int | str]:
        return [self.start, self.stop, *(sha256_of(Path(file)) for file in self.files)]


def cut(text: Path) -> list[tuple[int, int]]:
    """Where the parts of a text start and stop, in bytes; a line belongs to the part that it begins in."""
    with open_to_read(text) as file:
        size = file.seek(0, os.SEEK_END)
    count = min(max(-(-size // PART_BYTES), 1), _MOST_PARTS)
    return [(size * number // count, size * (number + 1) // count) for number in range(count)]


def make_parts(parts: Sequence[Part], workers: int | None = None) -> None:
    """Makes those parts that are not made yet, or are damaged; the log tells of each.

    Args:
        parts: of one text or of several.
        workers: processes that make them side by side; as many as there are cores if absent. One: this process does.
    """
    missing = deque(part for part in parts if not part.is_made())
    workers = min(workers or _cores(), len(missing))
    left = [*missing]

    def tell(part: Part) -> None:
        left.remove(part)
        _LOGGER.info("preparing %s: %d of %d parts are done", part.text, len(parts) - len(left), len(parts))

    if workers <= 1:
        for part in missing:
            part.make()
            tell(part)
        return
    with ThreadPoolExecutor(workers) as pool:
        drivers = [pool.submit(_drive, missing, tell) for _ in range(workers)]
        try:
            wait(drivers, return_when=FIRST_EXCEPTION)
        finally:
            missing.clear()  # after an error the others end with the part that they are at
    for driver in drivers:
        driver.result()


def _drive(missing: deque[Part], tell: Callable[[Part], None]) -> None:
    """Has one process make part after part, and tells of each."""
    # Not one of `multiprocessing`: that would run the user's own script again, and fail if it has no guard against it.
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-P", "-m", "g2lstm.text.worker"]
    with (
        subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as worker,
        suppress(IndexError),  # of an empty queue
    ):
        assert worker.stdin is not None
        assert worker.stdout is not None
        while True:
            part = missing.popleft()
            with suppress(BrokenPipeError):
                worker.stdin.write(json.dumps(part).encode() + b"\n")
            if not (answer := worker.stdout.readline()):
                raise G2Error(
                    f"a process that prepared {part.text} ended early, with code {worker.wait()} (-9: perhaps for lack "
                    "of memory); run the same command again, it goes on with the parts that are left"
                )
            if message := json.loads(answer):
                raise G2Error(message)
            tell(part)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Only one process at a time prepares a large text in a folder; the others wait. A dead one holds up no one."""
    make_folder(folder)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@lru_cache(1)
def _load(tokenizer: str) -> Tokenizer:
    return Tokenizer.load(Path(tokenizer))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
