"""`g2lstm bench layer`: a training step and an evaluation of each backend against `torch.nn.LSTM`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from g2lstm.lab.bench.measure import Field, Report, Row, gemm_peak, peak_memory, timings
from g2lstm.nn.lstm import G2LSTM
from g2lstm.runs.compressed import Show, interleaved, silent

Shape: TypeAlias = tuple[int, int, int, int]  # T, B, I, H

SHAPES: tuple[Shape, ...] = (
    (70, 20, 400, 1150),
    (70, 20, 1150, 1150),
    (70, 80, 1150, 1150),
    (30, 32, 256, 256),
    (30, 64, 1024, 1024),
    (35, 20, 200, 200),
)
PEER = "torch.nn.LSTM"
BACKENDS = ("auto", "stock", "reference")  # on a CPU `auto` trains with `native`
FIELDS = (
    Field("shape", "T,B,I,H"),
    Field("what", "what"),
    Field("name", "layer"),
    Field("milliseconds", "ms", ".1f"),
    Field("ratio", "ratio", ".2f"),
    Field("gflops", "GFLOP/s", ".0f"),
    Field("share_of_peak", "of GEMM peak", ".0%"),
    Field("megabytes", "peak MB", ".0f"),
    Field("memory_ratio", "memory ratio", ".2f"),
)


def measure(shapes: Sequence[Shape] = SHAPES, rounds: int = 11, show: Show = silent) -> Report:
    """Trains and evaluates every candidate at each shape."""
    peak, rows = gemm_peak(), []
    for number, shape in enumerate(shapes):
        show("shapes", number, len(shapes))
        memory = {name: peak_memory(train_steps, (name, (2, 2, 16, 16)), (name, shape)) for name in (PEER, *BACKENDS)}
        trained = {name: training_step(name, shape) for name in (PEER, *BACKENDS)}
        evaluated = {name: evaluation(name, shape) for name in (PEER, "auto")}
        for what, jobs, each in (("train", trained, memory), ("eval", evaluated, {})):
            seconds = interleaved(jobs, rounds, show=show)
            rows += _rows(shape, what, seconds, peak, each)
    title = f"one layer, float32, {torch.get_num_threads()} threads, median of at least {rounds} rounds"
    return Report(title, FIELDS, rows)


def _rows(
    shape: Shape, what: str, seconds: Mapping[str, list[float]], peak: float, memory: Mapping[str, float]
) -> list[Row]:
    work = step_gflop(shape) * (1 if what == "train" else 1 / 3)
    return [
        {
            "shape": shape,
            "what": what,
            "name": name,
            "milliseconds": timing.seconds * 1e3,
            "ratio": timing.ratio,
            "gflops": work / timing.seconds,
            "share_of_peak": work / timing.seconds / peak,
            "megabytes": memory.get(name),
            "memory_ratio": memory[name] / memory[PEER] if memory.get(PEER) else None,
        }
        for name, timing in timings(seconds, PEER).items()
    ]


def step_gflop(shape: Shape) -> float:
    """The work of a training step, counting matrix products only: once forward, twice that backward."""
    T, B, I, H = shape
    return 3 * 2 * T * B * (I + H) * 4 * H / 1e9


def make_layer(name: str, shape: Shape) -> nn.Module:
    """The candidate of this name."""
    _, _, I, H = shape
    return nn.LSTM(I, H) if name == PEER else G2LSTM(I, H, method="gumbel", backend=name)


def training_step(name: str, shape: Shape) -> Callable[[], None]:
    """Forward and backward on random data, with gradients of the input and the parameters.

    The incoming gradient is of the order of 1, so that few denormal numbers arise: they slow `torch.nn.LSTM` down
    several times, and would flatter our kernel, which flushes them.
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


def evaluation(name: str, shape: Shape) -> Callable[[], Any]:
    """Forward in evaluation mode, without gradients."""
    T, B, I, _ = shape
    torch.manual_seed(0)
    return torch.no_grad()(partial(make_layer(name, shape).eval(), torch.randn(T, B, I)))


def train_steps(name: str, shape: Shape, steps: int = 3) -> None:
    """A few training steps, to measure their memory."""
    step = training_step(name, shape)
    for _ in range(steps):
        step()
