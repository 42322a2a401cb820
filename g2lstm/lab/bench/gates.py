"""`g2lstm bench gates`: what recording gates costs beside a pass that returns them, in time and in memory."""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from g2lstm.lab.bench.measure import interleaved, median_ratio, peak_memory
from g2lstm.look.statistics import GateStatistics
from g2lstm.nn.record import record_gates
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.trained import load
from g2lstm.tasks.reading import in_mode
from g2lstm.tasks.recipes import load_recipe
from g2lstm.tasks.registry import task_of
from g2lstm.tasks.trained import Passes, Trained
from g2lstm.text.corpus import prepare_tokenizer
from g2lstm.text.registry import lm_files

ALONE, RETURNED, RECORDED = "no gates", "gates returned", "gates recorded"
CONTESTANTS = (ALONE, RETURNED, RECORDED)
RECIPE = "ptb-small"
SPLIT = "train"
_SAMPLES = {"windows": 60, "pairs": 500}  # several batches; the embedded text has ten times as many


class Time(NamedTuple):
    """How long a pass takes."""

    name: str
    milliseconds: float
    ratio: float  # to the pass with gates returned


class Memory(NamedTuple):
    """How far memory rises while gates are recorded."""

    samples: int
    tokens: int  # of the first layer
    megabytes: float | None


class Found(NamedTuple):
    """What was measured."""

    times: list[Time]
    memory: list[Memory]  # of the samples whose time was measured, and of ten times as many


def measure(
    run: Path | None = None,
    samples: int | None = None,
    rounds: int = 7,
    data_dir: Path | None = None,
    recipe: str = RECIPE,
) -> Found:
    """Reads some of a run's training data three ways, in turn; and records as much, and ten times as much, for memory.

    Args:
        run: a run directory; else a model of the recipe's size with random weights, on the embedded text.
        samples: windows of text or sentence pairs; fewer where there are not as many.
        rounds: at least so many.
        data_dir: where named data sets are.
        recipe: of the random model.
    """
    with _trained(run, recipe) as path:
        trained = load(path)
        data = trained.passes(SPLIT, data_dir)
        count = samples or _SAMPLES[data.unit]
        jobs: dict[str, Callable[[], object]] = {
            name: partial(read, trained, data, count, name) for name in CONTESTANTS
        }
        seconds = interleaved(jobs, rounds)
        times = [
            Time(name, 1e3 * statistics.median(each), median_ratio(each, seconds[RETURNED]))
            for name, each in seconds.items()
        ]
        memory = []
        for many in (count, 10 * count):
            peak = peak_memory(load_and_record, (path, count, data_dir), (path, many, data_dir))
            memory.append(Memory(*read(trained, data, many, RECORDED), peak))
    return Found(times, memory)


def read(trained: Trained, data: Passes, samples: int, name: str) -> tuple[int, int]:
    """One pass of one contestant: how many samples it read, and how many tokens its first layer counted.

    Args:
        trained: the model.
        data: the split.
        samples: at most.
        name: of `CONTESTANTS`.
    """
    model, passes = trained.model, data.read(samples, 0)
    with in_mode(model):
        if name == ALONE:
            return max(each.done for each in passes), 0
        with record_gates(model) as record:
            counted, done = GateStatistics(model, record), 0
            for each in passes:
                done = each.done
                if name == RECORDED:
                    counted.drain(record, each.is_token)
                else:
                    for calls in record.values():
                        calls.clear()
    return done, next(iter(counted.values()))["input"].steps


def load_and_record(path: Path, samples: int, data_dir: Path | None) -> None:
    """The whole of it, for the measurement of memory."""
    trained = load(path)
    read(trained, trained.passes(SPLIT, data_dir), samples, RECORDED)


@contextmanager
def _trained(run: Path | None, recipe_name: str) -> Iterator[Path]:
    """The run, or one with random weights, which is gone afterwards."""
    if run is not None:
        yield run
        return
    recipe = load_recipe(recipe_name, ["data.name=embedded"])
    tokenizer = prepare_tokenizer(lm_files("embedded")["train"], recipe.data.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = task_of(recipe).build(recipe, len(tokenizer))
        RunDirectory.create(path, recipe, {"tokenizer.json": tokenizer}).save_weights(model.state_dict(), {})
        yield path
