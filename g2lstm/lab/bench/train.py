"""`g2lstm bench train`: a training step of the paper's language model against the same model on `torch.nn.LSTM`."""

import statistics
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own usage

from g2lstm.lab.bench.measure import interleaved, median_ratio, peak_memory
from g2lstm.tasks.dropout import locked_dropout, word_dropout
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.lm.objective import activation_regulariser, temporal_regulariser, training_loss

LAYERS, BATCH, STEPS = 3, 20, 70
PEER = "torch.nn.LSTM"
CONTESTANTS = (PEER, "g2lstm", "g2lstm, reference")


class Size(NamedTuple):
    """Of a model; the paper's for Penn Treebank has 24M parameters."""

    vocabulary: int = 10_000
    embedding: int = 400
    hidden: int = 1150


class Row(NamedTuple):
    """One line of the table."""

    name: str
    milliseconds: float
    ratio: float
    tokens_per_second: float
    megabytes: float | None
    memory_ratio: float | None


class PlainAwdLstm(nn.Module):
    """The AWD-LSTM as its authors built it: `nn.LSTM`, a dropped copy of the recurrent weights, all logits at once."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        widths = [size.embedding, *[size.hidden] * (LAYERS - 1), size.embedding]
        self.embedding = nn.Embedding(size.vocabulary, size.embedding)
        self.layers = nn.ModuleList(nn.LSTM(a, b) for a, b in pairwise(widths))
        self.bias = nn.Parameter(torch.zeros(size.vocabulary))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """tokens, targets: (T, B) to the loss with its regularisers."""
        x = locked_dropout(word_dropout(self.embedding(tokens), tokens, len(self.bias), 0.1), 0.4)
        raw = x
        for index, layer in enumerate(self.layers):
            dropped = F.dropout(layer.get_parameter("weight_hh_l0"), 0.5)
            raw, _ = torch.func.functional_call(layer, {"weight_hh_l0": dropped}, (x,))
            x = locked_dropout(raw, 0.4 if index == LAYERS - 1 else 0.25)
        logits = F.linear(x, self.embedding.weight, self.bias)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return loss + 2 * activation_regulariser(x) + temporal_regulariser(raw)


def measure(rounds: int = 7) -> Iterator[Row]:
    """Yields a line for each contestant."""
    memory = {name: peak_memory(train_steps, (name, Size(50, 8, 8)), (name, Size())) for name in CONTESTANTS}
    seconds = interleaved({name: training_step(name, Size()) for name in CONTESTANTS}, rounds)
    for name, times in seconds.items():
        middle, megabytes, theirs = statistics.median(times), memory[name], memory[PEER]
        memory_ratio = megabytes / theirs if megabytes and theirs else None
        ratio = median_ratio(times, seconds[PEER])
        yield Row(name, middle * 1e3, ratio, STEPS * BATCH / middle, megabytes, memory_ratio)


def training_step(name: str, size: Size) -> Callable[[], None]:
    """Forward and backward of a model on random tokens."""
    torch.manual_seed(0)
    tokens, targets = torch.randint(size.vocabulary, (2, STEPS, BATCH))
    if name == PEER:
        peer = PlainAwdLstm(size)

        def step() -> None:
            peer.zero_grad()
            peer(tokens, targets).backward()

        return step
    backend = "reference" if "reference" in name else "auto"
    model = LanguageModel(*size, LAYERS, method="gumbel", backend=backend)

    def our_step() -> None:
        model.zero_grad()
        out = model(tokens)
        training_loss(out.features, out.raw, targets, model.output_weight, model.softmax_bias).total.backward()

    return our_step


def train_steps(name: str, size: Size) -> None:
    """A few steps, for the measurement of memory."""
    step = training_step(name, size)
    for _ in range(3):
        step()
