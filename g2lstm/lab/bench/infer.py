"""`g2lstm bench infer`: LSTM layers step by step at batch 1, against other runtimes."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from g2lstm.compression.model import compress, encoded_matrices
from g2lstm.compression.search import Show
from g2lstm.compression.spec import PRESETS
from g2lstm.compression.stream import stream
from g2lstm.errors import G2Error
from g2lstm.lab.bench import peers
from g2lstm.lab.bench.measure import Field, Report, Row, Timing, timings
from g2lstm.lab.bench.peers import Runner, Vectors, c_runner
from g2lstm.nn.lstm import G2LSTM
from g2lstm.runs.compressed import silent

PEERS: dict[str, peers.Peer] = {
    "torch.nn.LSTM float32": peers.torch_float32,
    "torch dynamic int8": peers.torch_int8,
    "ONNX Runtime float32": peers.onnx_runtime,
    "ONNX Runtime dynamic int8": partial(peers.onnx_runtime, quantised=True),
    "OpenVINO float32": peers.openvino,
}
OURS = {
    "ours, float32": None,
    "ours, int8": "gates=int8; cell=int8",
    "ours, five levels and int8": "gates=round:0.2,clip:0.4; cell=int8",
    "ours, small": PRESETS["small"],
}
IN_C = {  # the specs, and the compiler's flags
    "C, int8": ("gates=int8; cell=int8", ("-O3", "-march=native")),
    "C, small": (PRESETS["small"], ("-O3", "-march=native")),
    "C, small, plain -O2": (PRESETS["small"], ("-O2",)),
}
CANDIDATES = (*PEERS, *OURS, *IN_C)
_INPUTS = 64
_PAUSE = 0.05  # seconds: the last candidate's threads keep a core busy for a while as they wait for work
_BURST = 0.05  # seconds that a candidate runs in each round
STEP_TIME = (Field("microseconds", "µs per step", ",.1f"), Field("ratio", "ratio to the fastest peer", ".2f"))


class Stack(NamedTuple):
    """The width of the input, the width of each layer, and the number of layers."""

    inputs: int
    hidden: int
    layers: int

    def __str__(self) -> str:
        """As tables show it."""
        first = "" if self.inputs == self.hidden else f"{self.inputs}→"
        return f"{first}{self.hidden}×{self.layers}"


STACKS = (Stack(400, 1150, 3), Stack(650, 650, 2), Stack(256, 256, 2))


def measure_stacks(rounds: int = 15, stacks: Sequence[Stack] = STACKS, show: Show = silent) -> Iterator[Report]:
    """One step of stacks of LSTM layers with random weights, one stack after the other."""
    size = Field("stored_bytes", "bytes in a file, in C of flash", ",")
    fields = (Field("name", "candidate"), *STEP_TIME, size)
    for number, stack in enumerate(stacks):
        show("stacks", number, len(stacks))
        lstm, inputs = make_stack(stack)

        def make(name: str, lstm: nn.LSTM = lstm, inputs: Vectors = inputs) -> tuple[Runner, Row]:
            runner, size = make_candidate(name, lstm, inputs)
            return runner, {"stored_bytes": None if name in PEERS else size}

        rows = measure_candidates(make, {"stored_bytes": None}, rounds, show)
        threads = f"{torch.get_num_threads()} threads, C one"
        title = f"{stack}: one step, batch 1, {threads}, median of {rounds} rounds"
        yield Report(title, fields, [{"stack": str(stack), **row} for row in rows], missing_notes(rows))
    show("stacks", len(stacks), len(stacks))


def make_stack(stack: Stack) -> tuple[nn.LSTM, Vectors]:
    """Random inputs, and random weights that go beyond the levels that gates are clipped to, as trained weights do."""
    generator = torch.Generator().manual_seed(0)
    lstm = nn.LSTM(*stack).eval().requires_grad_(False)
    for parameter in lstm.parameters():
        parameter.normal_(std=0.2, generator=generator)
    return lstm, torch.randn(_INPUTS, stack.inputs, generator=generator).numpy()


def make_candidate(name: str, lstm: nn.LSTM, inputs: Vectors) -> tuple[Runner, int]:
    """What runs a stack, and the bytes of its weights; a peer's int8 weights count as one byte, its biases as four."""
    if name in PEERS:
        weights = sum(parameter.numel() for parameter in lstm.parameters() if parameter.dim() > 1)
        biases = sum(parameter.numel() for parameter in lstm.parameters()) - weights
        return PEERS[name](lstm, inputs), weights * (1 if "int8" in name else 4) + biases * 4
    if name in IN_C:
        in_c, flags = IN_C[name]
        return c_runner(compress(G2LSTM.from_lstm(lstm), in_c), inputs, flags)
    spec = OURS[name]
    model = lstm if spec is None else compress(G2LSTM.from_lstm(lstm), spec)
    matrices = encoded_matrices(model)
    stored = sum(matrix.stored_bytes for matrix in matrices.values()) + 4 * sum(p.numel() for p in model.parameters())
    step = stream(model).step
    return peers.repeated(lambda count: step(inputs[count % len(inputs)]).astype(np.float32, copy=False)), stored


def time_runners(runners: dict[str, Runner], rounds: int, show: Show = silent) -> dict[str, Timing]:
    """Seconds per step, and the ratio to the fastest peer.

    All candidates run in this process, one after the other in each round. Before each there is a pause, so that the
    threads of the last candidate fall asleep, and then a few steps that are not counted.
    """
    steps = {}
    for name, run in runners.items():
        run(2)
        start = time.perf_counter()
        run(3)
        steps[name] = max(3, int(_BURST * 3 / (time.perf_counter() - start)))
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(rounds):
        show("rounds", turn, rounds)
        for name, run in runners.items():
            time.sleep(_PAUSE)
            run(steps[name] // 4 + 1)
            start = time.perf_counter()
            run(steps[name])
            seconds[name].append((time.perf_counter() - start) / steps[name])
    show("rounds", rounds, rounds)
    return timings(seconds, min((n for n in PEERS if n in seconds), key=lambda n: statistics.median(seconds[n])))


def measure_candidates(make: Callable[[str], tuple[Runner, Row]], empty: Row, rounds: int, show: Show) -> list[Row]:
    """A row for each candidate: what `make` says about it, its time or, if it is missing, why."""
    runners: dict[str, Runner] = {}
    rows = []
    for number, name in enumerate(CANDIDATES):
        show("preparing", number, len(CANDIDATES))
        row = {"name": name, "microseconds": None, "ratio": None, **empty, "missing": ""}
        try:
            runners[name], facts = make(name)
            row |= facts
        except G2Error as why:
            row["missing"] = f"not available: {why}"
        rows.append(row)
    found = time_runners(runners, rounds, show)
    for row in rows:
        if timing := found.get(row["name"]):
            row |= {"microseconds": timing.seconds * 1e6, "ratio": timing.ratio}
    return rows


def missing_notes(rows: Sequence[Row]) -> list[str]:
    """A line for each candidate that could not be measured."""
    return list(dict.fromkeys(f"{row['name']}: {row['missing']}" for row in rows if row["missing"]))
