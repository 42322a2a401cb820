"""`g2lstm bench infer --task mt`: how many sentences a second a trained model translates."""

import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from g2lstm.lab.bench.measure import interleaved
from g2lstm.runs.trained import load_as
from g2lstm.tasks.mt.translate import translate
from g2lstm.tasks.registry import MT

BEAM = 5
_SOME = 100  # sentences of the slow way, one at a time


class Row(NamedTuple):
    """One line of the table."""

    name: str
    sentences: int
    seconds: float
    sentences_per_second: float


def measure(run: Path, rounds: int, data_dir: Path | None = None, split: str = "test") -> Iterator[Row]:
    """Yields a line for each way to translate a split.

    Args:
        run: of a translation model.
        rounds: of all ways in turn; the time of each is the median.
        data_dir: a folder that holds the named data sets.
        split: of the data that it was trained on.
    """
    trained = load_as(MT, run)
    sources, _ = trained.split(split, data_dir)
    encoded = trained.source.encode_lines(sources)
    ways = {
        f"beam {BEAM}": (encoded, BEAM, 64),
        "greedy": (encoded, 1, 64),
        f"beam {BEAM}, one sentence at a time": (encoded[:_SOME], BEAM, 1),
    }
    search = partial(translate, trained.model, source_eos=trained.source.eos_id, target_eos=trained.target.eos_id)
    jobs = {
        name: partial(search, sentences, beam=beam, batch_size=batch_size)
        for name, (sentences, beam, batch_size) in ways.items()
    }
    for name, times in interleaved(jobs, rounds).items():
        count, seconds = len(ways[name][0]), statistics.median(times)
        yield Row(name, count, seconds, count / seconds)
