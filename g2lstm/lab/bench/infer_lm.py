"""`g2lstm bench infer RUN` of a language model: size, speed and quality of its LSTM layers, ours against the peers'."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from g2lstm.errors import G2Error
from g2lstm.lab.bench.infer import CONTESTANTS, OURS, PEERS, bursts, make_ours
from g2lstm.lab.bench.measure import median_ratio
from g2lstm.lab.bench.peers import Runner, Vectors
from g2lstm.nn.mode import lstms
from g2lstm.runs.trained import load_as
from g2lstm.tasks.lm.evaluate import score
from g2lstm.tasks.lm.trained import TrainedLanguageModel
from g2lstm.tasks.registry import LM

TOKENS = 20_000


class Row(NamedTuple):
    """One line of the table."""

    name: str
    megabytes: float | None  # of the layers' weights: a peer's int8 take a byte each, with float32 biases
    microseconds: float | None  # a step through all layers; the median of the rounds
    ratio: float | None  # to the fastest peer, of the same rounds
    perplexity: float | None
    tokens: int  # that were predicted
    missing: str  # why it was not measured


def measure(
    run: Path,
    rounds: int = 15,
    data_dir: Path | None = None,
    split: str = "test",
    tokens: int = TOKENS,
    advance: Callable[[], None] = lambda: None,
) -> Iterator[Row]:
    """Yields a line for each way to run the layers of a trained model, embedding and softmax being the same.

    Each reads the same text, a token at a time, and is then timed, layer by layer, on what it read.

    Args:
        run: of a language model that is not compressed.
        rounds: of the timing.
        data_dir: a folder that holds the named data sets.
        split: of the data that the model was trained on.
        tokens: of the split that are predicted, from its start; fewer if it has fewer.
        advance: called when a contestant has read the text.
    """
    trained = load_as(LM, run)
    if trained.run.compression is not None:
        raise G2Error(f"{run} is compressed already; give the run that it was made of")
    text = torch.from_numpy(trained.split(split, data_dir).read(0, tokens + 1))
    tokens = len(text) - 1
    plain = [layer.to_lstm().eval().requires_grad_(False) for layer in lstms(trained.model)]
    weights = sum(parameter.numel() for lstm in plain for parameter in lstm.parameters() if parameter.dim() > 1)
    biases = sum(parameter.numel() for lstm in plain for parameter in lstm.parameters()) - weights
    runners: dict[str, Runner] = {}
    rows: dict[str, Row] = {}
    for name in CONTESTANTS:
        try:
            layers, features, stored = _read(name, plain, trained.model.embedding(text[:-1]).detach().numpy())
            stored = stored or (weights * (1 if "int8" in name else 4) + biases * 4)
            rows[name] = Row(name, stored / 1e6, None, None, _perplexity(trained, features, text[1:]), tokens, "")
            runners[name] = _together(layers)
        except G2Error as why:
            rows[name] = Row(name, None, None, None, None, tokens, f"not available: {why}")
        advance()
    seconds = bursts(runners, rounds)
    fastest = min((name for name in PEERS if name in seconds), key=lambda name: statistics.median(seconds[name]))
    for name, row in rows.items():
        if name in seconds:
            ratio = median_ratio(seconds[name], seconds[fastest])
            yield row._replace(microseconds=statistics.median(seconds[name]) * 1e6, ratio=ratio)
        else:
            yield row


def _read(name: str, lstms: Sequence[nn.LSTM], inputs: Vectors) -> tuple[list[Runner], Vectors, int]:
    """Runs a text (N, I) through the layers; what runs each, the last one's output (N, H), and the bytes of ours."""
    layers, stored = [], 0
    for lstm in lstms:
        if name in PEERS:
            run = PEERS[name](lstm, inputs)
        else:
            run, size = make_ours(lstm, OURS[name], inputs)
            stored += size
        layers.append(run)
        inputs = np.stack([run(1).copy() for _ in range(len(inputs))])
    return layers, inputs, stored


def _perplexity(trained: TrainedLanguageModel, features: Vectors, targets: Tensor) -> float:
    with torch.no_grad():
        return score([-trained.model.token_losses(torch.from_numpy(features), targets)]).perplexity


def _together(layers: Sequence[Runner]) -> Runner:
    def run(number: int) -> Vectors:
        for layer in layers:
            out = layer(number)
        return out

    return run
