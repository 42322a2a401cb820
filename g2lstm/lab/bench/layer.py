"""`g2lstm bench layer`: a training step and an evaluation of each backend against `torch.nn.LSTM`."""

import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from g2lstm.lab.bench.measure import gemm_peak, interleaved, median_ratio, peak_memory
from g2lstm.nn.lstm import G2LSTM

SHAPES = (
    (70, 20, 400, 1150),
    (70, 20, 1150, 1150),
    (70, 80, 1150, 1150),
    (30, 32, 256, 256),
    (30, 64, 1024, 1024),
    (35, 20, 200, 200),
)
PEER = "torch.nn.LSTM"
BACKENDS = ("auto", "stock", "reference")  # on a CPU `auto` trains with `native`


class Row(NamedTuple):
    """One line of the table."""

    shape: tuple[int, int, int, int]
    what: str  # "train" or "eval"
    name: str
    milliseconds: float
    ratio: float
    gflops: float
    share_of_peak: float
    megabytes: float | None
    memory_ratio: float | None


def measure(shapes: tuple[tuple[int, int, int, int], ...] = SHAPES, rounds: int = 11) -> Iterator[Row]:
    """Yields the table's lines as they are measured: for each shape, training and evaluation of every contestant."""
    peak = gemm_peak()
    for shape in shapes:
        memory = {name: peak_memory(train_steps, (name, (2, 2, 16, 16)), (name, shape)) for name in (PEER, *BACKENDS)}
        yield from _rows(shape, "train", {n: training_step(n, shape) for n in (PEER, *BACKENDS)}, rounds, peak, memory)
        yield from _rows(shape, "eval", {n: evaluation(n, shape) for n in (PEER, "auto")}, rounds, peak, {})


def _rows(
    shape: tuple[int, int, int, int],
    what: str,
    jobs: dict[str, Callable[[], Any]],
    rounds: int,
    peak: float,
    memory: dict[str, float | None],
) -> Iterator[Row]:
    seconds = interleaved(jobs, rounds)
    work = step_gflop(shape) * (1 if what == "train" else 1 / 3)
    for name, times in seconds.items():
        speed = work / statistics.median(times)
        ratio, megabytes, theirs = median_ratio(times, seconds[PEER]), memory.get(name), memory.get(PEER)
        memory_ratio = megabytes / theirs if megabytes and theirs else None
        milliseconds = statistics.median(times) * 1e3
        yield Row(shape, what, name, milliseconds, ratio, speed, speed / peak, megabytes, memory_ratio)


def step_gflop(shape: tuple[int, int, int, int]) -> float:
    """Of a training step: forward, and twice that backward; products only."""
    T, B, I, H = shape
    return 3 * 2 * T * B * (I + H) * 4 * H / 1e9


def make_layer(name: str, shape: tuple[int, int, int, int]) -> nn.Module:
    """The contestant of this name."""
    _, _, I, H = shape
    return nn.LSTM(I, H) if name == PEER else G2LSTM(I, H, method="gumbel", backend=name)


def training_step(name: str, shape: tuple[int, int, int, int]) -> Callable[[], None]:
    """Forward and backward, gradients of input and parameters, on random data.

    The gradient that comes in has the size of 1, so that few denormal numbers arise: they slow `torch.nn.LSTM` down
    several times, and would flatter the kernel, which flushes them.
    """
    T, B, I, H = shape
    torch.manual_seed(0)
    layer, x, gradient = make_layer(name, shape), torch.randn(T, B, I, requires_grad=True), torch.randn(T, B, H)

    def step() -> None:
        layer.zero_grad()
        x.grad = None
        out, _ = layer(x)
        out.backward(gradient)

    return step


def evaluation(name: str, shape: tuple[int, int, int, int]) -> Callable[[], None]:
    """Forward in evaluation mode without gradients."""
    T, B, I, _ = shape
    torch.manual_seed(0)
    layer, x = make_layer(name, shape).eval(), torch.randn(T, B, I)

    def step() -> None:
        with torch.no_grad():
            layer(x)

    return step


def train_steps(name: str, shape: tuple[int, int, int, int], steps: int = 3) -> None:
    """A few steps, for the measurement of memory."""
    step = training_step(name, shape)
    for _ in range(steps):
        step()
