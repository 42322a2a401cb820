"""`g2lstm bench layer` and `bench train`: training steps of a layer and of the paper's model, against PyTorch."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own usage

from g2lstm.compression.search import Show
from g2lstm.lab.bench.measure import MEMORY, RATE, TIME, Field, Report, Row, compared, peak_memory
from g2lstm.nn.gru import G2GRU
from g2lstm.nn.lstm import G2LSTM
from g2lstm.runs.compressed import interleaved, silent
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.lm.task import activation_regulariser, temporal_regulariser, training_loss
from g2lstm.tasks.model import locked_dropout, word_dropout

PEER = "torch.nn.LSTM"
GRU_PEER = "torch.nn.GRU"

# One layer.
Shape: TypeAlias = tuple[int, int, int, int]  # T, B, I, H
SHAPES: tuple[Shape, ...] = (
    (70, 20, 400, 1150),
    (70, 20, 1150, 1150),
    (70, 80, 1150, 1150),
    (30, 32, 256, 256),
    (30, 64, 1024, 1024),
    (35, 20, 200, 200),
)
_ROUNDS, _SECONDS = 11, 2.5  # of a comparison, and for each of its candidates
_SQUARE = 2048  # rows and columns of the matrices whose product shows what the machine can do
HALF = "bfloat16"  # ours under autocast; the others compute in float32
BACKENDS = ("auto", HALF, "stock", "reference")  # on a CPU `auto` trains with `native`

# The language model of Penn Treebank.
LAYERS, LM_BATCH, STEPS = 3, 20, 70
LM_CANDIDATES = (PEER, "g2lstm", f"g2lstm, {HALF}", "g2lstm, reference")


def measure_layer(
    shapes: Sequence[Shape] = SHAPES, rounds: int | None = None, with_memory: bool = False, show: Show = silent
) -> Iterator[Report]:
    """A training step and an evaluation of each backend against `torch.nn.LSTM`, and a step of the GRU, shape by shape.

    Without a number of rounds, each comparison takes as many as fit into a few seconds, but at least three.
    """
    square = torch.randn(2, _SQUARE, _SQUARE)
    product = min(interleaved({"product": lambda: square[0] @ square[1]}, 7)["product"])
    peak = 2 * _SQUARE**3 / product / 1e9  # GFLOP/s: the most that this machine can do
    fields = (
        Field("what", "what"),
        Field("name", "layer"),
        Field("milliseconds", "ms", ".1f"),
        Field("ratio", "ratio", ".2f"),
        Field("gflops", "GFLOP/s", ".0f"),
        Field("share_of_peak", "of GEMM peak", ".0%"),
        *(MEMORY if with_memory else ()),
    )
    for number, shape in enumerate(shapes):
        show("shapes", number, len(shapes))
        T, B, I, H = shape
        work = 8 * T * B * (I + H) * H / 1e9  # products of a forward pass; the backward pass takes twice as many
        memory = {
            name: peak_memory(_steps, (layer_step, name, (2, 2, 16, 16)), (layer_step, name, shape))
            for name in (PEER, *BACKENDS)
            if with_memory
        }
        rows: list[Row] = []
        for what, peer, names, make, known, gflop in (
            ("train", PEER, (PEER, *BACKENDS), layer_step, memory, 3 * work),
            ("eval", PEER, (PEER, "auto"), layer_evaluation, {}, work),
            ("train", GRU_PEER, (GRU_PEER, "G2GRU"), layer_step, {}, 3 * work * 3 / 4),
        ):
            most = _SECONDS * len(names) if rounds is None else math.inf
            seconds = interleaved({name: make(name, shape) for name in names}, rounds or _ROUNDS, show=show, most=most)
            found = compared(seconds, peer, known, gflops=gflop, share_of_peak=gflop / peak)
            rows += [{"shape": shape, "what": what, **row, "rounds": len(seconds[peer])} for row in found]
        many = f"{min(row['rounds'] for row in rows)} rounds or more"
        title = f"T,B,I,H = {','.join(map(str, shape))}: one layer, {torch.get_num_threads()} threads, median of {many}"
        yield Report(title, fields, rows)
    show("shapes", len(shapes), len(shapes))


def measure_language(rounds: int = 7, show: Show = silent) -> Report:
    """Time and memory of a step of the language model against the same model on `torch.nn.LSTM`."""
    tiny = Size(50, 8, 8)
    memory = {
        name: peak_memory(_steps, (language_step, name, tiny), (language_step, name, Size())) for name in LM_CANDIDATES
    }
    seconds = interleaved({name: language_step(name, Size()) for name in LM_CANDIDATES}, rounds, show=show)
    rows = compared(seconds, PEER, memory, tokens_per_second=STEPS * LM_BATCH)
    title = _title(f"24M language model, batch {LM_BATCH}, {STEPS} steps, gumbel", rounds)
    return Report(title, (Field("name", "model"), *TIME, RATE, *MEMORY), rows)


def _title(what: str, rounds: int) -> str:
    return f"{what}, {torch.get_num_threads()} threads, median of at least {rounds} rounds"


def _steps(make: Callable[..., Callable[[], None]], *arguments: Any) -> None:
    """A few training steps, to measure their memory."""
    step = make(*arguments)
    for _ in range(3):
        step()


def _layer(name: str, I: int, H: int) -> nn.Module:
    makers: dict[str, Callable[[int, int], nn.Module]] = {PEER: nn.LSTM, GRU_PEER: nn.GRU, "G2GRU": G2GRU}
    return makers.get(name, partial(G2LSTM, backend="auto" if name == HALF else name))(I, H)


def _precision(name: str) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=HALF in name)


def layer_step(name: str, shape: Shape) -> Callable[[], None]:
    """Forward and backward on random data, with gradients of the input and the parameters.

    The incoming gradient is of the order of 1, so that there are few denormal numbers: they make `torch.nn.LSTM`
    several times slower, and would flatter our kernel, which flushes them to zero.
    """
    T, B, I, H = shape
    torch.manual_seed(0)
    layer, x, gradient = _layer(name, I, H), torch.randn(T, B, I, requires_grad=True), torch.randn(T, B, H)

    def step() -> None:
        layer.zero_grad()
        x.grad = None
        with _precision(name):
            out, _ = layer(x)
        out.backward(gradient.to(out.dtype))

    return step


def layer_evaluation(name: str, shape: Shape) -> Callable[[], Any]:
    """Forward in evaluation mode, without gradients."""
    T, B, I, H = shape
    torch.manual_seed(0)
    return torch.no_grad()(partial(_layer(name, I, H).eval(), torch.randn(T, B, I)))


class Size(NamedTuple):
    """The size of a language model; the paper's for Penn Treebank has 24M parameters."""

    vocabulary: int = 10_000
    embedding: int = 400
    hidden: int = 1150


class PlainAwdLstm(nn.Module):
    """The AWD-LSTM as its authors built it: `nn.LSTM`, a dropped copy of the recurrent weights, all logits at once."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        widths = [size.embedding, *[size.hidden] * (LAYERS - 1), size.embedding]
        self.embedding = nn.Embedding(size.vocabulary, size.embedding)
        self.layers = nn.ModuleList(nn.LSTM(a, b) for a, b in pairwise(widths))
        self.bias = nn.Parameter(torch.zeros(size.vocabulary))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The loss with its regularisers; tokens and targets: (T, B)."""
        x = locked_dropout(word_dropout(self.embedding(tokens), tokens, len(self.bias), 0.1), 0.4)
        raw = x
        for index, layer in enumerate(self.layers):
            dropped = F.dropout(layer.get_parameter("weight_hh_l0"), 0.5)
            raw, _ = torch.func.functional_call(layer, {"weight_hh_l0": dropped}, (x,))
            x = locked_dropout(raw, 0.4 if index == LAYERS - 1 else 0.25)
        logits = F.linear(x, self.embedding.weight, self.bias)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return loss + 2 * activation_regulariser(x) + temporal_regulariser(raw)


def backward(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """A training step: forward and backward."""

    def step() -> None:
        model.zero_grad()
        loss().backward()

    return step


def language_step(name: str, size: Size) -> Callable[[], None]:
    """A training step on random tokens."""
    torch.manual_seed(0)
    tokens, targets = torch.randint(size.vocabulary, (2, STEPS, LM_BATCH))
    if name == PEER:
        peer = PlainAwdLstm(size)
        return backward(peer, lambda: peer(tokens, targets))
    backend = "reference" if "reference" in name else "auto"
    model = LanguageModel(*size, LAYERS, method="gumbel", backend=backend)

    def loss() -> Tensor:
        with _precision(name):
            out = model(tokens)
            return training_loss(out.features, out.raw, targets, model.output_weight, model.softmax_bias).total

    return backward(model, loss)
