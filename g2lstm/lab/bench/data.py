"""`g2lstm bench data`: time and memory of preparing synthetic texts of any size and of training on them."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

import torch

from g2lstm.errors import G2Error
from g2lstm.lab.bench.corpora import PAIR_WORDS, TEXT_WORDS, write_text
from g2lstm.lab.bench.measure import peak_memory
from g2lstm.tasks.lm.recipe import LmRecipe
from g2lstm.tasks.lm.training import LanguageModelLearner
from g2lstm.tasks.mt.recipe import MtRecipe
from g2lstm.tasks.mt.training import TranslationLearner
from g2lstm.tasks.registry import LM, MT
from g2lstm.text.corpus import prepare_stream, prepare_tokenizer
from g2lstm.text.pairs import PairCorpus, PairFiles, prepare_pairs, prepare_tokenizers

_BYTES_PER_WORD = 12  # on the disk, prepared files included, with room to spare
_MODEL = {"embedding": 32, "hidden": 32, "layers": 1}
_WORDS_KEPT, _SUBWORDS = 5000, 8000
_WARM_UP = "warm-up"


class Row(NamedTuple):
    """One line of the table. Memory is None where the system does not tell."""

    task: str  # "lm" or "mt"
    size: int  # tokens of a text, or pairs
    tokens: int  # with <eos>, of both sides of pairs
    text_megabytes: float
    prepare_seconds: float
    prepare_tokens_per_second: float
    prepare_megabytes: float | None  # by which the process grew
    workers_megabytes: float | None  # of all other processes that took part, together
    train_steps: int
    train_tokens_per_second: float
    train_megabytes: float | None  # by which a process of its own grew


def measure(task: str, size: int, steps: int = 300, workers: int | None = None) -> Row:
    """Writes a text, prepares it, and trains a small model on windows or batches across the whole of it.

    Preparing and training each run in a process of their own, which does both on a tiny text first.

    Args:
        task: "lm" for a text with a vocabulary of words, "mt" for pairs with byte-pair encoding.
        size: tokens of the text, or pairs.
        steps: of training.
        workers: processes that prepare; as many as there are cores if absent.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words, sides = (TEXT_WORDS, ("txt",)) if task == "lm" else (PAIR_WORDS, ("de", "en"))
        lines = size // (words + 1) if task == "lm" else size
        _check_room(folder, lines * words * len(sides))
        for seed, side in enumerate(sides):
            write_text(folder / f"train.{side}", lines, words, seed)
            write_text(folder / f"{_WARM_UP}.{side}", 50, words, seed)
        bytes_of_text = sum((folder / f"train.{side}").stat().st_size for side in sides)
        found: list[tuple[dict[str, float], float | None]] = []
        for stage in (_prepare, _train):
            arguments = (folder, task, steps, workers)
            peak = peak_memory(_run, (stage, _WARM_UP, folder, task, 2, 1), (stage, "train", *arguments))
            found.append((json.loads((folder / "found.json").read_text()), peak))
        (prepared, prepare_peak), (trained, train_peak) = found
    return Row(
        task,
        size,
        int(prepared["tokens"]),
        bytes_of_text / 2**20,
        prepared["seconds"],
        prepared["tokens"] / prepared["seconds"],
        prepare_peak,
        None if prepare_peak is None else prepared["workers"],
        steps,
        trained["tokens"] / trained["seconds"],
        train_peak,
    )


def _check_room(folder: Path, words: int) -> None:
    needed, free = words * _BYTES_PER_WORD / 1e9, shutil.disk_usage(folder).free / 1e9
    if needed > free:
        raise G2Error(
            f"this needs {needed:.1f} GB of disk in {folder.parent}, and {free:.1f} are free; set TMPDIR to "
            "a folder with more room, or measure less"
        )


def _run(
    stage: Callable[..., dict[str, float]], text: str, folder: Path, task: str, steps: int, workers: int | None
) -> None:
    """Runs one stage, and leaves what it found in a file."""
    (folder / "found.json").write_text(json.dumps(stage(text, folder, task, steps, workers)))


def _prepare(text: str, folder: Path, task: str, steps: int, workers: int | None) -> dict[str, float]:
    with _Children() as children:
        start = time.perf_counter()
        _, streams = _prepared(text, folder, task, workers)
        seconds = time.perf_counter() - start
    return {"tokens": sum(map(len, streams)), "seconds": seconds, "workers": children.peak / 2**20}


def _prepared(text: str, folder: Path, task: str, workers: int | None) -> tuple[Any, Any]:
    """The tokenizers and the tokens of a text."""
    where: dict[str, Any] = {"cache": folder / "cache", "workers": workers}
    if task == "lm":
        tokenizer = prepare_tokenizer(folder / f"{text}.txt", vocabulary=_WORDS_KEPT, **where)
        return (tokenizer,), (prepare_stream(folder / f"{text}.txt", tokenizer, **where),)
    files = PairFiles(folder / f"{text}.de", folder / f"{text}.en")
    tokenizers = prepare_tokenizers(files, vocabulary=_SUBWORDS, is_tokenized=True, **where)
    pairs = prepare_pairs(files, *tokenizers, **where)
    return tokenizers, (pairs.source, pairs.target)


def _train(text: str, folder: Path, task: str, steps: int, workers: int | None) -> dict[str, float]:
    made = _language_task if task == "lm" else _translation_task
    training, go_to = made(text, folder, workers)
    optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1)
    tokens, start = 0, time.perf_counter()
    for step in range(steps):
        go_to(step / steps)
        loss = training.loss(training.module, training.next_batch())
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        tokens += loss.tokens
    return {"tokens": tokens, "seconds": time.perf_counter() - start}


def _language_task(text: str, folder: Path, workers: int | None) -> tuple[Any, Callable[[float], None]]:
    """A small language model's task, and what sends it to a place in the text, from 0 to 1."""
    (tokenizer,), (stream,) = _prepared(text, folder, "lm", workers)
    train = {"epochs": 1, "batch_size": 8, "bptt": 35}
    recipe = LmRecipe.model_validate({"task": "lm", "data": {"path": "."}, "model": _MODEL, "train": train})
    task = LanguageModelLearner(recipe, LM.build(recipe, len(tokenizer)), stream, stream)

    def go_to(place: float) -> None:
        task.position = int(place * task.columns.rows)

    return task, go_to


def _translation_task(text: str, folder: Path, workers: int | None) -> tuple[Any, Callable[[float], None]]:
    """A small translation model's task, and what sends it to a place in the epoch, from 0 to 1."""
    tokenizers, streams = _prepared(text, folder, "mt", workers)
    data = {"path": ".", "source": "de", "target": "en"}
    train = {"epochs": 1, "batch_size": 16}
    recipe = MtRecipe.model_validate({"task": "mt", "data": data, "model": _MODEL, "train": train})
    pairs = PairCorpus(*streams)
    model = MT.build(recipe, *map(len, tokenizers))
    task = TranslationLearner(recipe, model, pairs, pairs, tokenizers)

    def go_to(place: float) -> None:
        task.index = int(place * len(task.plan))

    return task, go_to


class _Children(Thread):
    """Watches the memory of the processes that this one starts, while it is entered.

    Attributes:
        peak: the most bytes that they had resident together, looked at ten times a second.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._before = set(_resident_bytes_of_children())  # the processes that others have started
        self._is_over = Event()

    def __enter__(self) -> "_Children":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self.join()

    def run(self) -> None:
        while not self._is_over.wait(0.1):
            found = _resident_bytes_of_children().items()
            self.peak = max(self.peak, sum(size for process, size in found if process not in self._before))


def _resident_bytes_of_children() -> dict[str, int]:
    """By the number of each process."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):  # it has just ended
            fields = status.read_text().rsplit(")", 1)[1].split()
            if int(fields[1]) == os.getpid():
                found[status.parent.name] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return found
