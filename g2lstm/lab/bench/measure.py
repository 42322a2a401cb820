"""How things are measured: interleaved rounds for time, a process of its own for memory."""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

_HIGH_WATER = Path("/proc/self/clear_refs")
_RETURN_BLOCKS = "MALLOC_MMAP_THRESHOLD_"  # set at all, it stops being adapted


def interleaved(jobs: Mapping[str, Callable[[], Any]], rounds: int, fill: float = 2.0) -> dict[str, list[float]]:
    """Seconds of each job in each round; every round runs every job once, so that all see the same machine.

    One round before those is run and not counted.

    Args:
        jobs: by name.
        rounds: at least so many.
        fill: short jobs are run in more rounds, up to ten times as many, until so many seconds have passed.
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
    return seconds


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over rounds of our time divided by theirs in the same round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def gemm_peak(size: int = 2048, rounds: int = 7) -> float:
    """GFLOP/s of a large square float32 matrix product: what this machine can do at most."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    seconds = interleaved({"gemm": lambda: a @ b}, rounds)["gemm"]
    return 2 * size**3 / min(seconds) / 1e9


def peak_memory(function: Callable[..., Any], warm_up: tuple[Any, ...], arguments: tuple[Any, ...]) -> float | None:
    """Megabytes by which resident memory rose at most while `function(*arguments)` ran in a fresh process.

    Before that `function(*warm_up)` runs once, uncounted: it loads libraries and starts threads. In that process glibc
    hands every large block back to the system as soon as it is freed; by default it keeps some, as its heuristics have
    it, and the same program's peak varies by a tenth from run to run. None where the system does not tell; the
    function runs there too.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_measure_peak, args=(sender, torch.get_num_threads(), function, warm_up, arguments)
    )
    before = os.environ.get(_RETURN_BLOCKS)
    os.environ[_RETURN_BLOCKS] = str(128 * 1024)
    try:
        process.start()
    finally:
        if before is None:
            del os.environ[_RETURN_BLOCKS]
        else:
            os.environ[_RETURN_BLOCKS] = before
    sender.close()
    try:
        peak: float | None = receiver.recv()
    finally:
        process.join()
    return peak


def _measure_peak(
    sender: Any, threads: int, function: Callable[..., Any], warm_up: tuple[Any, ...], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(threads)
    function(*warm_up)
    try:
        _HIGH_WATER.write_text("5")  # resets the mark
        before: int | None = _status("VmRSS")
    except OSError:
        before = None
    function(*arguments)
    sender.send(None if before is None else (_status("VmHWM") - before) / 1024)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"no {field} in /proc/self/status")
