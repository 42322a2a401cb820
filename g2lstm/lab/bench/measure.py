"""How benchmarks measure and report: interleaved rounds for time, a fresh process for memory, one row per candidate."""

import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import psutil
import torch

from g2lstm.runs.compressed import interleaved

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
        return float(ours.recv()) / 2**20
    finally:
        ours.close()
        process.join()


def _run_twice(
    pipe: Any, threads: int, function: Callable[..., Any], warm_up: tuple[Any, ...], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(threads)
    function(*warm_up)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # on Linux, the mark starts again from what is resident now
    before = psutil.Process().memory_info().rss
    function(*arguments)
    pipe.send(_high_water_mark() - before)


def _high_water_mark() -> int:
    """The most bytes that were ever resident in this process."""
    with suppress(OSError):  # Linux's getrusage won't do: a new process inherits the mark of the one that started it
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):  # Windows
        return int(memory.peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts bytes


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
