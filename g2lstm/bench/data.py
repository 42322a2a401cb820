"""`g2lstm bench data`: memory while preparing and training on a text, and on one a hundred times as long."""

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from g2lstm.bench.measure import peak_memory
from g2lstm.config import LmRecipe
from g2lstm.data.corpus import prepare_stream, prepare_tokenizer
from g2lstm.runs.models import build_language_model
from g2lstm.training.lm import LanguageModelTask

WORDS, LINE = 5000, 20


class Row(NamedTuple):
    """One line of the table."""

    size: int  # times the smaller text
    tokens: int
    text_megabytes: float
    seconds: float
    peak_megabytes: float | None


def measure(lines: int = 2_000, sizes: tuple[int, ...] = (1, 100), windows: int = 400) -> Iterator[Row]:
    """Writes texts of `lines` times each size, prepares them and reads windows across the whole of them.

    Args:
        lines: of the smaller text, twenty words each.
        sizes: how many times as long each text is.
        windows: training steps, spread evenly over the text.
    """
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_text(folder / "train.txt", lines * size)
            write_text(folder / "tiny.txt", 50)
            start = time.perf_counter()
            peak = peak_memory(prepare_and_train, (folder, "tiny.txt", 2), (folder, "train.txt", windows))
            seconds = time.perf_counter() - start
            megabytes = (folder / "train.txt").stat().st_size / 2**20
            yield Row(size, lines * size * (LINE + 1), megabytes, seconds, peak)


def write_text(path: Path, lines: int) -> None:
    """Random words, the frequent ones more frequent."""
    generator = random.Random(0)
    words = [f"w{index}" for index in range(WORDS)]
    weights = [1 / (index + 1) for index in range(WORDS)]
    with path.open("w", encoding="utf-8") as file:
        for _ in range(lines):
            file.write(" ".join(generator.choices(words, weights, k=LINE)) + "\n")


def prepare_and_train(folder: Path, text: str, windows: int) -> None:
    """Tokenizer, token stream, and training steps of a small model across the stream."""
    tokenizer = prepare_tokenizer(folder / text, cache=folder / "cache")
    stream = prepare_stream(folder / text, tokenizer, cache=folder / "cache")
    tables = {
        "task": "lm",
        "data": {"path": str(folder)},
        "model": {"embedding": 32, "hidden": 32, "layers": 1},
        "train": {"epochs": 1, "batch_size": 8, "bptt": 35},
    }
    recipe = LmRecipe.model_validate(tables)
    model = build_language_model(recipe, len(tokenizer))
    task = LanguageModelTask(recipe, model, stream, stream)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for index in range(windows):
        task.position = index * task.columns.rows // windows
        batch = task.next_batch()
        optimizer.zero_grad()
        task.loss(task.module, batch).total.backward()  # type: ignore[arg-type]
        optimizer.step()
