"""Counting gates while a model runs: `watch` for any model, `record_split` for a trained one and its own data."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from g2lstm.errors import G2Error
from g2lstm.look.counts import GateStatistics
from g2lstm.nn.record import record_gates
from g2lstm.tasks.reading import Place, Reading, in_mode
from g2lstm.tasks.trained import Progress, Trained


@contextmanager
def watch(model: nn.Module) -> Iterator[GateStatistics]:
    """Count the gates of every `G2LSTM` and `torch.nn.LSTM` inside `model` while the block runs, without keeping them.

    The model stays in its mode: call `model.eval()` first, unless you want to see the noise of training. Pack
    sequences of different lengths, or their padding is counted too.

    Examples:
        >>> with g2lstm.look.watch(model.eval()) as statistics:
        ...     for x in data:
        ...         model(x)
        >>> for layer in statistics.summary():
        ...     print(layer["name"], layer["gates"]["forget"]["mean"])
    """
    with record_gates(model) as record, ExitStack() as stack:
        statistics = GateStatistics(model, record)
        stack.callback(statistics.drain, record)  # calls of `forward` itself run no hook
        for name, module in model.named_modules():
            if name in record:
                hook = module.register_forward_hook(lambda *_: statistics.drain(record))
                stack.callback(hook.remove)
        yield statistics


@dataclass(frozen=True)
class Recording:
    """Gates that were counted.

    Attributes:
        statistics: the counts.
        mode: evaluation or training, in words.
        data: which text, and how much of it.
    """

    statistics: GateStatistics
    mode: str
    data: dict[str, Any]


def record_split(
    trained: Trained,
    split: str = "valid",
    *,
    samples: int = 10_000,
    eval_gate: str | None = None,
    training: bool = False,
    seed: int = 0,
    data_dir: Path | None = None,
    progress: Progress | None = None,
) -> Recording:
    """Count the gates of a trained model on a split of its own data, in constant memory.

    A language model reads windows of text as in validation: columns side by side, with the state carried over, from
    the start of each column. A translation model reads random pairs, no longer than those of training, and its decoder
    reads the given target.

    Args:
        trained: the model and its tokenizers.
        split: "train", "valid" or "test".
        samples: the most windows or pairs to read.
        eval_gate: "soft", "tempered" or "hard"; None for the model's own.
        training: count as in training, with noise.
        seed: seeds noise, dropout and the choice of pairs.
        data_dir: where the named data sets are.
        progress: called with the samples done and the total.
    """
    if samples < 1:
        raise G2Error(f"samples must be at least 1, got {samples}")
    model = trained.model
    with in_mode(model, eval_gate=eval_gate, training=training, seed=seed) as mode, record_gates(model) as record:
        statistics = GateStatistics(model, record)
        passes = trained.passes(split, data_dir)
        for done, total, is_token in passes.read(samples, seed):
            statistics.drain(record, is_token)
            if progress is not None:
                progress(done, total)
    tokens = {place.side: histograms["input"].steps for place, histograms in statistics.items()}
    return Recording(statistics, mode, {"split": split, passes.unit: done, "tokens": tokens, "sha256": passes.sha256})


def record_reading(trained: Trained, reading: Reading) -> Recording:
    """Count the gates of a text that was read."""
    statistics = GateStatistics(trained.model, dict.fromkeys(layer.name for layer in reading.layers))
    for layer in reading.layers:
        for gate, histogram in statistics[Place(layer.name, layer.direction, layer.title)].items():
            histogram.add(torch.from_numpy(getattr(layer, gate)))
    return Recording(statistics, reading.mode, {"tokens": {side: len(each) for side, each in reading.tokens.items()}})
