"""Time and memory of preparing synthetic texts of any size, and of training on them.

python benchmarks/data.py [--tokens 100M]… [--pairs 4.5M]… [--steps N] [--json]
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from g2lstm.cli.bench import print_reports
from g2lstm.lab.bench.measure import Field, Report, Row, peak_memory
from g2lstm.tasks.lm.recipe import LmRecipe
from g2lstm.tasks.lm.task import LanguageModelLearner
from g2lstm.tasks.mt.recipe import MtRecipe
from g2lstm.tasks.mt.task import TranslationLearner
from g2lstm.tasks.recipes import LM, MT
from g2lstm.tasks.task import TrainingData
from g2lstm.text.corpus import (
    PairCorpus,
    PairFiles,
    prepare_pairs,
    prepare_stream,
    prepare_tokenizer,
    prepare_tokenizers,
)

FIELDS = (
    Field("task", "task"),
    Field("size", "tokens or pairs", ","),
    Field("tokens", "tokens", ","),  # with <eos>; both sides of pairs
    Field("text_megabytes", "text MB", ".0f"),
    Field("prepare_seconds", "prepare s", ".0f"),
    Field("prepare_tokens_per_second", "tokens/s", ",.0f"),
    Field("prepare_megabytes", "peak MB", ".0f"),  # how much the process grew
    Field("train_steps"),
    Field("train_tokens_per_second", "train tokens/s", ",.0f"),
    Field("train_megabytes", "peak MB", ".0f"),
)
VOCABULARY = 50_000
_LINES_AT_ONCE = 10_000
_BYTES_PER_WORD = 12  # on disk, with the prepared files and some room to spare
_MODEL = {"embedding": 32, "hidden": 32, "layers": 1}
_WORDS_KEPT, _SUBWORDS = 5000, 8000
_WARM_UP = "warm-up"


def measure(task: str, size: int, steps: int) -> Row:
    """Writes a text, prepares it, and trains a small model on windows or batches spread over all of it.

    Preparing and training each run in a process of their own, which first does the same with a tiny text.

    Args:
        task: "lm" for a text with a vocabulary of words, "mt" for pairs with byte-pair encoding.
        size: the number of tokens or pairs.
        steps: the number of training updates.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kind = _KINDS[task]
        words, sides, lines = kind.words, kind.sides, size // kind.size_of_line
        _check_room(folder, lines * words * len(sides))
        for seed, side in enumerate(sides):
            write_text(folder / f"train.{side}", lines, words, seed)
            write_text(folder / f"{_WARM_UP}.{side}", 50, words, seed)
        bytes_of_text = sum((folder / f"train.{side}").stat().st_size for side in sides)
        found: list[tuple[dict[str, float], float]] = []
        for stage in (_prepare, _train):
            peak = peak_memory(_run, (stage, _WARM_UP, folder, task, 2), (stage, "train", folder, task, steps))
            found.append((json.loads((folder / "found.json").read_text()), peak))
        (prepared, prepare_peak), (trained, train_peak) = found
    return {
        "task": task,
        "size": size,
        "tokens": int(prepared["tokens"]),
        "text_megabytes": bytes_of_text / 2**20,
        "prepare_seconds": prepared["seconds"],
        "prepare_tokens_per_second": prepared["tokens"] / prepared["seconds"],
        "prepare_megabytes": prepare_peak,
        "train_steps": steps,
        "train_tokens_per_second": trained["tokens"] / trained["seconds"],
        "train_megabytes": train_peak,
    }


def write_text(path: Path, lines: int, words: int, seed: int = 0) -> None:
    """Writes lines of random words; the word of rank r has a probability proportional to 1 / r, after Zipf.

    Args:
        path: the file.
        lines: the number of lines.
        words: the mean number of words per line; every line has at least half as many.
        seed: of the words that are drawn.
    """
    generator = np.random.default_rng(seed)
    vocabulary = np.array([_word(rank) for rank in range(VOCABULARY)])
    shares = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, lines, _LINES_AT_ONCE):
            lengths = generator.integers(words // 2, words + words // 2 + 1, min(_LINES_AT_ONCE, lines - start))
            drawn = vocabulary[np.searchsorted(shares, generator.random(lengths.sum()) * shares[-1])].tolist()
            bounds = pairwise([0, *np.cumsum(lengths).tolist()])
            file.writelines(" ".join(drawn[first:last]) + "\n" for first, last in bounds)


def _word(rank: int) -> str:
    """A word of syllables; as in languages, frequent words are short."""
    syllables = ""
    number = rank + 1
    while number:
        number, syllable = divmod(number, 60)
        syllables += "bdfgklmnprst"[syllable // 5] + "aeiou"[syllable % 5]
    return syllables


def _check_room(folder: Path, words: int) -> None:
    needed, free = words * _BYTES_PER_WORD / 1e9, shutil.disk_usage(folder).free / 1e9
    if needed > free:
        raise SystemExit(
            f"this needs {needed:.1f} GB of disk space in {folder.parent}, and only {free:.1f} GB are free; set TMPDIR "
            "to a folder with more room, or measure less"
        )


def _run(stage: Callable[..., dict[str, float]], text: str, folder: Path, task: str, steps: int) -> None:
    """Runs one stage and writes what it found to a file."""
    (folder / "found.json").write_text(json.dumps(stage(text, folder, task, steps)))


def _prepare(text: str, folder: Path, task: str, steps: int) -> dict[str, float]:
    start = time.perf_counter()
    _, streams = _KINDS[task].prepare(text, folder)
    return {"tokens": sum(map(len, streams)), "seconds": time.perf_counter() - start}


def _prepare_text(text: str, folder: Path) -> tuple[Any, Any]:
    """The tokenizer and the tokens of a text."""
    cache = folder / "cache"
    tokenizer = prepare_tokenizer(folder / f"{text}.txt", vocabulary=_WORDS_KEPT, cache=cache)
    return (tokenizer,), (prepare_stream(folder / f"{text}.txt", tokenizer, cache=cache),)


def _prepare_pairs(text: str, folder: Path) -> tuple[Any, Any]:
    """The tokenizers and the tokens of both sides of a text."""
    cache = folder / "cache"
    files = PairFiles(folder / f"{text}.de", folder / f"{text}.en")
    tokenizers = prepare_tokenizers(files, vocabulary=_SUBWORDS, is_tokenized=True, cache=cache)
    pairs = prepare_pairs(files, *tokenizers, cache=cache)
    return tokenizers, (pairs.source, pairs.target)


def _train(text: str, folder: Path, task: str, steps: int) -> dict[str, float]:
    training, go_to = _KINDS[task].learner(text, folder)
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


def _language_learner(text: str, folder: Path) -> tuple[Any, Callable[[float], None]]:
    """A small language model's learner, and a function that moves it to a place in the text, from 0 to 1."""
    (tokenizer,), (stream,) = _prepare_text(text, folder)
    train = {"epochs": 1, "batch_size": 8, "bptt": 35}
    recipe = LmRecipe.model_validate(
        {"task": "lm", "data": {"path": ".", "tokenizer": "word"}, "model": _MODEL, "train": train}
    )
    task = LanguageModelLearner(recipe, LM.build(recipe, len(tokenizer)), TrainingData((tokenizer,), stream, stream))

    def go_to(place: float) -> None:
        task.position = int(place * task.columns.rows)

    return task, go_to


def _translation_learner(text: str, folder: Path) -> tuple[Any, Callable[[float], None]]:
    """A small translation model's learner, and a function that moves it to a place in the epoch, from 0 to 1."""
    tokenizers, streams = _prepare_pairs(text, folder)
    data = {"path": ".", "source": "de", "target": "en"}
    train = {"epochs": 1, "batch_size": 16}
    recipe = MtRecipe.model_validate({"task": "mt", "data": data, "model": _MODEL, "train": train})
    pairs = PairCorpus(*streams)
    model = MT.build(recipe, *map(len, tokenizers))
    task = TranslationLearner(recipe, model, TrainingData(tokenizers, pairs, pairs))

    def go_to(place: float) -> None:
        task.index = int(place * len(task.plan))

    return task, go_to


class _Kind(NamedTuple):
    """The texts of a task: how they look, and what prepares them and learns from them."""

    words: int  # per line, on average
    sides: tuple[str, ...]  # file endings
    size_of_line: int  # tokens with <eos>, or one pair
    prepare: Callable[[str, Path], tuple[Any, Any]]
    learner: Callable[[str, Path], tuple[Any, Callable[[float], None]]]


_KINDS = {
    "lm": _Kind(24, ("txt",), 25, _prepare_text, _language_learner),
    "mt": _Kind(12, ("de", "en"), 1, _prepare_pairs, _translation_learner),
}


def _size(text: str) -> int:
    number, factor = (text[:-1], {"k": 1e3, "M": 1e6}[text[-1]]) if text[-1:] in ("k", "M") else (text, 1)
    try:
        size = round(float(number) * factor)
    except (ValueError, OverflowError):
        size = 0
    if not 10_000 <= size <= 10**10:
        raise argparse.ArgumentTypeError(f"a size is a number of at least 10k, such as 45k or 4.5M, got {text!r}")
    return size


def main() -> None:
    """Measures each size, and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=_size, action="append", default=[], help="size of a text; repeatable")
    parser.add_argument("--pairs", type=_size, action="append", default=[], help="number of pairs; repeatable")
    parser.add_argument("--steps", type=int, default=300, help="training updates, spread over the whole text")
    parser.add_argument("--json", action="store_true", help="for scripts")
    given = parser.parse_args()
    sizes = [("lm", size) for size in given.tokens] + [("mt", size) for size in given.pairs]
    rows = [measure(*one, given.steps) for one in sizes or [("lm", 40_000), ("lm", 4_000_000)]]
    title = f"preparing, and {given.steps} updates; memory is what a process grows by"
    print_reports(given.json, Report(title, FIELDS, rows))


if __name__ == "__main__":
    main()
