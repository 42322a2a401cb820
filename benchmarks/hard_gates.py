"""What gates of 0 or 1 save in a step: what they could let us skip in a trained model, and what they do save.

python benchmarks/hard_gates.py RUN [--text TEXT] [--rounds N] [--json]

A closed input gate makes its candidate superfluous, and an empty cell its output gate. The kernel computes whole panels
of units, so it could only skip a panel whose units are all closed. The first table has both: the share of closed units,
and that of closed panels, of 16 units as they come and of 16 units sorted by how often they open. The second table has
the time of a step of the preset `small`, with soft and with hard gates, at the stacks of `g2lstm bench infer`.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from g2lstm.cli.bench import print_reports
from g2lstm.compression.model import compress
from g2lstm.compression.stream import stream
from g2lstm.lab.bench.infer import STACKS, make_stack
from g2lstm.lab.bench.measure import Field, Report, Row, timings
from g2lstm.nn.lstm import G2LSTM
from g2lstm.runs.compressed import interleaved
from g2lstm.runs.trained import load
from g2lstm.tasks.lm.trained import TrainedLanguageModel

_UNITS = 16  # the smallest panel: a vector of AVX-512
_WORDS = 900  # what `Trained.read` takes at most, and some room
_GATES = ("soft", "hard")

Open = npt.NDArray[np.bool_]


def count(run: Path, text: str | None) -> Report:
    """Reads a text, by default the beginning of the test split, and counts closed gates in every layer."""
    trained = load(run)
    assert isinstance(trained, TrainedLanguageModel), "only language models read a text alone"
    if text is None:
        text = " ".join(Path(trained.files("test")).read_text().split()[:_WORDS])
    reading = trained.read(text, eval_gate="hard")
    rows = [
        _counted(number, np.asarray(layer.input) > 0, np.asarray(layer.forget) > 0)
        for number, layer in enumerate(reading.layers)
    ]
    fields = (
        Field("layer", "layer"),
        Field("closed", "closed input gates", ".1%"),
        Field("empty", "cells of 0", ".1%"),
        Field("products", "products to skip by unit", ".1%"),
        Field("panels", "closed panels", ".1%"),
        Field("sorted_panels", "… if sorted", ".1%"),
    )
    return Report(f"{run}: {len(reading.layers[0].input):,} words, hard gates", fields, rows)


def _counted(layer: int, is_open: Open, is_kept: Open) -> Row:
    closed, empty = 1 - float(is_open.mean()), 1 - float(np.mean(list(_filled(is_open, is_kept))))
    by_use = np.argsort(is_open.mean(0))
    return {
        "layer": layer,
        "closed": closed,
        "empty": empty,
        "products": (closed + empty) / 4,  # one of four matrices each
        "panels": _closed_panels(is_open),
        "sorted_panels": _closed_panels(is_open[:, by_use]),
    }


def _filled(is_open: Open, is_kept: Open) -> Iterator[Open]:
    """After each step, which cells hold anything: those just written, or kept from before."""
    filled = np.zeros_like(is_open[0])
    for opened, kept in zip(is_open, is_kept, strict=True):
        filled = opened | (kept & filled)
        yield filled


def _closed_panels(is_open: Open) -> float:
    steps, units = is_open.shape
    panels = is_open[:, : units - units % _UNITS].reshape(steps, -1, _UNITS)
    return 1 - float(panels.any(2).mean())


def time_steps(rounds: int) -> Report:
    """One step at batch 1 with random weights, as in `g2lstm bench infer`."""
    rows: list[Row] = []
    for stack in STACKS:
        lstm, inputs = make_stack(stack)
        sessions = {
            gates: stream(compress(G2LSTM.from_lstm(lstm, eval_gate=gates), "small")).sequence for gates in _GATES
        }
        seconds = interleaved({gates: partial(run, inputs) for gates, run in sessions.items()}, rounds)
        for gates, timing in timings(seconds, _GATES[0]).items():
            micro = 1e6 * timing.seconds / len(inputs)
            rows.append({"stack": str(stack), "gates": gates, "microseconds": micro, "ratio": timing.ratio})
    fields = (Field("stack", "stack"), Field("gates", "gates"), Field("microseconds", "µs per step", ",.1f"))
    title = f"preset small, batch 1, {torch.get_num_threads()} threads, median of {rounds} rounds"
    return Report(title, (*fields, Field("ratio", "ratio to soft", ".2f")), rows, key="steps")


def main() -> None:
    """Reads the arguments, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a language model with binary gates")
    parser.add_argument("--text", help="what to read; by default the beginning of the test split")
    parser.add_argument("--rounds", type=int, default=30, help="at least this many interleaved rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    print_reports(options.json, count(options.run, options.text), time_steps(options.rounds))


if __name__ == "__main__":
    main()
