"""`g2lstm bench infer`: one step of a stack of LSTM layers at batch 1, ours against the ways that others have."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from g2lstm.compression.model import compress, encoded_matrices
from g2lstm.compression.spec import PRESETS
from g2lstm.compression.stream import stream
from g2lstm.errors import G2Error
from g2lstm.lab.bench import peers
from g2lstm.lab.bench.measure import median_ratio
from g2lstm.lab.bench.peers import Runner, Vectors

PEERS = {
    "torch.nn.LSTM float32": peers.torch_float32,
    "torch dynamic int8": peers.torch_int8,
    "ONNX Runtime float32": peers.onnxruntime_float32,
    "ONNX Runtime dynamic int8": peers.onnxruntime_int8,
}
OURS = {
    "ours, float32": None,
    "ours, int8": "gates=int8; cell=int8",
    "ours, five levels and int8": "gates=round:0.2,clip:0.4; cell=int8",
    "ours, small": PRESETS["small"],
}
_INPUTS = 64
_PAUSE = 0.05  # seconds: the threads of the one before wait for work in a loop for some time, and would take a core
_BURST = 0.05  # seconds that a contestant runs in each round


class Stack(NamedTuple):
    """How wide the input is, how wide each layer, and how many layers there are."""

    inputs: int
    hidden: int
    layers: int

    def __str__(self) -> str:
        """As tables have it."""
        first = "" if self.inputs == self.hidden else f"{self.inputs}→"
        return f"{first}{self.hidden}×{self.layers}"


STACKS = (Stack(400, 1150, 3), Stack(650, 650, 2), Stack(256, 256, 2))
CONTESTANTS = (*PEERS, *OURS)


class Row(NamedTuple):
    """One line of the table."""

    stack: str
    name: str
    microseconds: float | None  # a step; the median of the rounds
    ratio: float | None  # to the fastest peer, of the same rounds
    stored_bytes: int | None  # of the weights in a file, of ours
    missing: str  # why it was not measured


def measure(
    rounds: int = 15, stacks: tuple[Stack, ...] = STACKS, advance: Callable[[], None] = lambda: None
) -> Iterator[Row]:
    """Yields the lines of a stack when it has been measured.

    All run in this process, one after the other in each round, with a pause before each in which the threads of the
    one before fall asleep, and some steps that are not counted.

    Args:
        rounds: of each stack.
        stacks: to be measured.
        advance: called after each round.
    """
    for stack in stacks:
        lstm, inputs = make_stack(stack)
        runners: dict[str, Runner] = {}
        sizes: dict[str, int] = {}
        missing: dict[str, str] = {}
        for name, peer in PEERS.items():
            try:
                runners[name] = peer(lstm, inputs)
            except G2Error as why:
                missing[name] = f"not available: {why}"
        for name, spec in OURS.items():
            runners[name], sizes[name] = make_ours(lstm, spec, inputs)
        seconds = bursts(runners, rounds, advance)
        fastest = min((name for name in PEERS if name in seconds), key=lambda name: statistics.median(seconds[name]))
        for name in CONTESTANTS:
            if name in missing:
                yield Row(str(stack), name, None, None, None, missing[name])
            else:
                median = statistics.median(seconds[name]) * 1e6
                yield Row(str(stack), name, median, median_ratio(seconds[name], seconds[fastest]), sizes.get(name), "")


def make_stack(stack: Stack) -> tuple[nn.LSTM, Vectors]:
    """Random weights that reach beyond the levels that gates are clipped to, as trained ones do; and inputs."""
    generator = torch.Generator().manual_seed(0)
    lstm = nn.LSTM(*stack).eval().requires_grad_(False)
    for parameter in lstm.parameters():
        parameter.normal_(std=0.2, generator=generator)
    return lstm, torch.randn(_INPUTS, stack.inputs, generator=generator).numpy()


def make_ours(lstm: nn.LSTM, spec: str | None, inputs: Vectors) -> tuple[Runner, int]:
    """A session of a stack, compressed or not, and how many bytes its weights take in a file."""
    model = lstm if spec is None else compress(lstm, spec)
    matrices = encoded_matrices(model)
    stored = sum(matrix.stored_bytes for matrix in matrices.values()) + 4 * sum(p.numel() for p in model.parameters())
    session, count = stream(model), 0

    def run(number: int) -> Vectors:
        nonlocal count
        for _ in range(number):
            out = session.step(inputs[count % len(inputs)])
            count += 1
        return out.astype(np.float32, copy=False)

    return run, stored


def bursts(
    runners: dict[str, Runner], rounds: int, advance: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Seconds of a step of each in each round."""
    steps = {}
    for name, run in runners.items():
        run(2)
        start = time.perf_counter()
        run(3)
        steps[name] = max(3, int(_BURST * 3 / (time.perf_counter() - start)))
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, run in runners.items():
            time.sleep(_PAUSE)
            run(steps[name] // 4 + 1)
            start = time.perf_counter()
            run(steps[name])
            seconds[name].append((time.perf_counter() - start) / steps[name])
        advance()
    return seconds
