"""The time and memory that recording gates costs, against a pass that returns and forgets them.

python benchmarks/gates.py [RUN] [--samples N] [--rounds N] [--data-dir DIR] [--json]
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from g2lstm.cli.bench import print_reports
from g2lstm.lab.bench.measure import Field, Report, peak_memory, timings
from g2lstm.look.counts import GateStatistics
from g2lstm.nn.record import record_gates
from g2lstm.runs.compressed import interleaved
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.trained import load
from g2lstm.tasks.reading import in_mode
from g2lstm.tasks.recipes import load_recipe, task_of
from g2lstm.tasks.trained import Passes, Trained
from g2lstm.text.corpus import prepare_tokenizer

ALONE, RETURNED, RECORDED = "no gates", "gates returned", "gates recorded"
CANDIDATES = (ALONE, RETURNED, RECORDED)
RECIPE = "ptb-small"
SPLIT = "train"
_SAMPLES = {"windows": 60, "pairs": 500}  # several batches; the embedded text has ten times as many


def measure(run: Path | None, samples: int | None, rounds: int, data_dir: Path | None) -> tuple[Report, Report]:
    """Reads part of a run's training data in three ways; then records as much, and ten times as much, for memory.

    Args:
        run: a run directory; without one, a model of `RECIPE`'s size with random weights reads the embedded text.
        samples: the number of text windows or sentence pairs; fewer if there are fewer.
        rounds: the minimum number of interleaved rounds.
        data_dir: a folder that holds the named data sets.
    """
    with _trained(run) as path:
        trained = load(path)
        data = trained.passes(SPLIT, data_dir)
        count = samples or _SAMPLES[data.unit]
        jobs: dict[str, Callable[[], object]] = {name: partial(read, trained, data, count, name) for name in CANDIDATES}
        seconds = interleaved(jobs, rounds)
        times = [
            {"name": name, "milliseconds": 1e3 * timing.seconds, "ratio": timing.ratio}
            for name, timing in timings(seconds, RETURNED).items()
        ]
        memory = []
        for many in (count, 10 * count):
            peak = peak_memory(load_and_record, (path, count, data_dir), (path, many, data_dir))
            read_samples, tokens = read(trained, data, many, RECORDED)
            memory.append({"samples": read_samples, "tokens": tokens, "megabytes": peak})
    what = f"a random model of {RECIPE}'s size" if run is None else str(run)
    title = f"{what}, {SPLIT}, {memory[0]['samples']:,} samples, {torch.get_num_threads()} threads"
    ratio = Field("ratio", f"ratio to {RETURNED!r}", ".3f")
    peaks = (Field("samples", "samples", ","), Field("tokens", "tokens", ","), Field("megabytes", "peak MB", ".0f"))
    return (
        Report(title, (Field("name", "pass"), Field("milliseconds", "ms", ".0f"), ratio), times, key="times"),
        Report("memory above the start, recorded in a fresh process", peaks, memory, key="memory"),
    )


def read(trained: Trained, data: Passes, samples: int, name: str) -> tuple[int, int]:
    """One pass: the number of samples that it read, and of the tokens whose gates the first layer counted.

    Args:
        trained: the model.
        data: the split.
        samples: the most to read.
        name: one of `CANDIDATES`.
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
    """Everything that recording takes, to measure its memory."""
    trained = load(path)
    read(trained, trained.passes(SPLIT, data_dir), samples, RECORDED)


@contextmanager
def _trained(run: Path | None) -> Iterator[Path]:
    """The run, or a temporary one with random weights."""
    if run is not None:
        yield run
        return
    recipe = load_recipe(RECIPE, ["data.name=embedded"])
    tokenizer = prepare_tokenizer(recipe.data.files()["train"], recipe.data.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = task_of(recipe).build(recipe, len(tokenizer))
        RunDirectory.create(path, recipe, {"tokenizer.json": tokenizer}).save_weights(model.state_dict(), {})
        yield path


def main() -> None:
    """Measures, and prints two tables or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, help=f"a run; without one, a random model of {RECIPE}'s size")
    parser.add_argument("--samples", type=int, help="windows of text (60 by default) or sentence pairs (500)")
    parser.add_argument("--rounds", type=int, default=7, help="the minimum number of interleaved rounds")
    parser.add_argument("--data-dir", type=Path, help="the folder that holds the named data sets")
    parser.add_argument("--json", action="store_true", help="for scripts")
    given = parser.parse_args()
    reports = measure(given.run, given.samples, given.rounds, given.data_dir)
    print_reports(given.json, *reports)


if __name__ == "__main__":
    main()
