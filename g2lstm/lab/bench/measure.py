"""How benchmarks measure and report: interleaved rounds for time, a fresh process for memory, one row per candidate."""

import multiprocessing
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import psutil
import torch

Row: TypeAlias = dict[str, Any]  # one line of a table, by field: exactly what JSON shows
_MMAP_THRESHOLD = "MALLOC_MMAP_THRESHOLD_"  # setting it stops glibc from adapting it


class Field(NamedTuple):
    """A field of the rows."""

    key: str
    heading: str = ""  # its heading in the table; a field without one is not in the table
    form: str = ""  # a format specification for its numbers

    def text(self, row: Row) -> str:
        """A row's value as the table shows it; "-" if it was not measured."""
        value = row[self.key]
        if isinstance(value, tuple):
            return ",".join(map(str, value))
        return "-" if value is None else format(value, self.form)


TIME = (Field("milliseconds", "ms", ".0f"), Field("ratio", "ratio", ".2f"))
RATE = Field("tokens_per_second", "tokens/s", ",.0f")
MEMORY = (Field("megabytes", "peak MB", ".0f"), Field("memory_ratio", "memory ratio", ".2f"))


class Report(NamedTuple):
    """The result of a benchmark: one table."""

    title: str
    fields: Sequence[Field]  # the columns from left to right
    rows: Sequence[Row]
    notes: Sequence[str] = ()  # lines that follow the table
    key: str = "rows"  # the key of the rows in JSON


class Timing(NamedTuple):
    """A candidate's median time, and the median over the rounds of its ratio to the peer's time."""

    seconds: float
    ratio: float


def timings(seconds: Mapping[str, list[float]], peer: str) -> dict[str, Timing]:
    """Each candidate's time and its ratio to the peer's, from the seconds of interleaved rounds."""
    return {
        name: Timing(
            statistics.median(times),
            statistics.median(ours / theirs for ours, theirs in zip(times, seconds[peer], strict=True)),
        )
        for name, times in seconds.items()
    }


def compared(
    seconds: Mapping[str, list[float]], peer: str, memory: Mapping[str, float] | None = None, **amounts: float
) -> list[Row]:
    """A row for each candidate: its time, its ratio to the peer's, the amounts of work per second, and its memory."""
    rows = []
    for name, timing in timings(seconds, peer).items():
        row: Row = {"name": name, "milliseconds": timing.seconds * 1e3, "ratio": timing.ratio}
        row |= {what: amount / timing.seconds for what, amount in amounts.items()}
        if memory is not None:
            ratio = memory[name] / memory[peer] if memory.get(peer) else None
            row |= {"megabytes": memory.get(name), "memory_ratio": ratio}
        rows.append(row)
    return rows


def peak_memory(function: Callable[..., Any], warm_up: tuple[Any, ...], arguments: tuple[Any, ...]) -> float:
    """By how many megabytes resident memory grew, at its peak, while `function(*arguments)` ran in a fresh process.

    `function(*warm_up)` runs there first, uncounted: it loads libraries and starts threads. In that process glibc
    returns every large block to the system as soon as it is freed. By default it keeps some of them, and the peak of
    the same program then varies by a tenth from run to run.
    """
    before = os.environ.get(_MMAP_THRESHOLD)
    os.environ[_MMAP_THRESHOLD] = str(128 * 1024)
    spawn = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(1, spawn, torch.set_num_threads, (torch.get_num_threads(),)) as process:
            process.submit(function, *warm_up).result()
            start = process.submit(_resident).result()
            process.submit(function, *arguments).result()
            return (process.submit(_high_water_mark).result() - start) / 2**20
    finally:
        os.environ.pop(_MMAP_THRESHOLD)
        os.environ.update({} if before is None else {_MMAP_THRESHOLD: before})


@contextmanager
def busy_beside(count: int) -> Iterator[None]:
    """Lets so many processes count in circles meanwhile, as on a machine that others use too."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _resident() -> int:
    """The bytes that are resident in this process now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # on Linux, the high-water mark starts again from here
    return int(psutil.Process().memory_info().rss)


def _high_water_mark() -> int:
    """The most bytes that were ever resident in this process."""
    with suppress(OSError):  # not getrusage: on Linux a new process inherits that mark from the one that started it
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):  # Windows
        return int(memory.peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts bytes
