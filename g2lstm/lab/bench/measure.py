"""How benchmarks measure and report: interleaved rounds for time, a fresh process for memory, one row per candidate."""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any, NamedTuple, TypeAlias

import psutil
import torch

from g2lstm.runs.compressed import Show

Row: TypeAlias = dict[str, Any]  # one line of a table, by field: exactly what JSON shows
_MMAP_THRESHOLD = "MALLOC_MMAP_THRESHOLD_"  # setting it stops glibc from adapting it


class Field(NamedTuple):
    """A field of the rows.

    Attributes:
        key: its name in a row.
        heading: its column in the table; an empty one keeps the field out of it.
        form: a format specification for its numbers.
    """

    key: str
    heading: str = ""
    form: str = ""

    def text(self, row: Row) -> str:
        """A row's value as the table shows it; "-" if it was not measured."""
        value = row[self.key]
        if isinstance(value, tuple):
            return ",".join(map(str, value))
        return "-" if value is None else format(value, self.form)


class Report(NamedTuple):
    """The result of a benchmark: one table.

    Attributes:
        title: what was measured, and how.
        fields: what each row holds; the columns from left to right.
        rows: in the order of the table.
        notes: lines that follow it.
        key: under which JSON lists the rows.
    """

    title: str
    fields: Sequence[Field]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    key: str = "rows"


class Timing(NamedTuple):
    """A candidate's median time, and the median over the rounds of its ratio to the peer's time."""

    seconds: float
    ratio: float


def silent(what: str, done: int, total: int) -> None:
    """Shows nothing."""


def interleaved(
    jobs: Mapping[str, Callable[[], Any]], rounds: int, fill: float = 2.0, show: Show = silent
) -> dict[str, list[float]]:
    """The seconds that each job took in each round.

    Every round runs every job once, so all of them see the same machine. A first round is run but not counted.

    Args:
        jobs: by name.
        rounds: the minimum.
        fill: short jobs run in more rounds, up to ten times as many, until this many seconds have passed.
        show: called after each round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    began = time.perf_counter()
    for turn in range(10 * rounds + 1):
        if turn > rounds and time.perf_counter() - began > fill:
            break
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn:
                seconds[name].append(time.perf_counter() - start)
        show("rounds", min(turn, rounds), rounds)
    return seconds


def timings(seconds: Mapping[str, list[float]], peer: str) -> dict[str, Timing]:
    """Each candidate's time and its ratio to the peer's, from the seconds of interleaved rounds."""
    return {
        name: Timing(
            statistics.median(times),
            statistics.median(ours / theirs for ours, theirs in zip(times, seconds[peer], strict=True)),
        )
        for name, times in seconds.items()
    }


def gemm_peak(size: int = 2048, rounds: int = 7) -> float:
    """GFLOP/s of a large square float32 matrix product: the most that this machine can do."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    seconds = interleaved({"gemm": lambda: a @ b}, rounds)["gemm"]
    return 2 * size**3 / min(seconds) / 1e9


class MemoryWatch:
    """Samples the resident memory of some processes until it is stopped.

    Attributes:
        peak: the most bytes that they held together.
    """

    def __init__(self, processes: Callable[[], Sequence[psutil.Process]], interval: float) -> None:
        self.peak = 0
        self._processes, self._interval = processes, interval
        self._is_over = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, sum(map(resident_bytes, self._processes())))
            if self._is_over.wait(self._interval):
                return


def resident_bytes(process: psutil.Process) -> int:
    """The resident memory of a process; 0 once it has ended."""
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def peak_memory(function: Callable[..., Any], warm_up: tuple[Any, ...], arguments: tuple[Any, ...]) -> float:
    """How many megabytes resident memory grew by, at its peak, while `function(*arguments)` ran in a fresh process.

    `function(*warm_up)` runs there first, uncounted: it loads libraries and starts threads. In that process glibc
    returns every large block to the system as soon as it is freed. By default it keeps some of them, and the peak of
    the same program then varies by a tenth from run to run.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run_twice, args=(theirs, torch.get_num_threads(), function, warm_up, arguments))
    with _environment(_MMAP_THRESHOLD, str(128 * 1024)):
        process.start()
    theirs.close()
    try:
        ours.recv()  # it has warmed up
        child = psutil.Process(process.pid)
        before = resident_bytes(child)
        with MemoryWatch(lambda: [child], interval=0.001) as watch:
            ours.send(None)
            ours.recv()  # it has run
    finally:
        ours.close()
        process.join()
    return (watch.peak - before) / 2**20


def _run_twice(
    pipe: Any, threads: int, function: Callable[..., Any], warm_up: tuple[Any, ...], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(threads)
    function(*warm_up)
    pipe.send(None)
    pipe.recv()
    function(*arguments)
    pipe.send(None)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Sets a variable for the processes that are started inside."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
