"""`g2lstm bench train`: a training step of the paper's two models, ours against plain PyTorch's."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own usage
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from g2lstm.lab.bench.measure import Field, Report, peak_memory, timings
from g2lstm.nn.gate import GateRule
from g2lstm.nn.lstm import G2LSTM
from g2lstm.nn.random import draw_noise
from g2lstm.runs.compressed import Show, interleaved, silent
from g2lstm.tasks.cross_entropy import cross_entropy
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.lm.training import activation_regulariser, temporal_regulariser, training_loss
from g2lstm.tasks.model import locked_dropout, word_dropout
from g2lstm.tasks.mt.model import Attention, TranslationModel

TIME = (Field("milliseconds", "ms", ".0f"), Field("ratio", "ratio", ".2f"))
RATE = Field("tokens_per_second", "tokens/s", ",.0f")

# The language model of Penn Treebank.
LAYERS, LM_BATCH, STEPS = 3, 20, 70
PEER = "torch.nn.LSTM"
LM_CANDIDATES = (PEER, "g2lstm", "g2lstm, reference")

# The translation model of IWSLT'14.
RULE, NOISE_RATE = GateRule(0.9), 0.2  # the paper's, and the layer's defaults
VOCABULARY, WIDTH, BATCH, LENGTH, DROPOUT = 25_000, 256, 32, 26, 0.2
OURS, G2_LOOP = "g2lstm", "loop of G² cells"
PLAIN_LOOP, LATE_LOOP = "loop of nn.LSTMCell, no noise", "loop of nn.LSTMCell, no noise, softmax after it"
MT_CANDIDATES = (OURS, G2_LOOP, PLAIN_LOOP, LATE_LOOP)


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


class G2Cell(nn.LSTMCell):
    """One step of the paper's layer: noise and temperature in its input and forget gates."""

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The new states; x: (B, I), h and c: (B, H)."""
        h, c = state
        alpha = F.linear(x, self.weight_ih, self.bias_ih) + F.linear(h, self.weight_hh, self.bias_hh)
        i, f, g, o = RULE(alpha, draw_noise((len(x), 2 * self.hidden_size), rate=NOISE_RATE))
        c = f * c + i * g
        return o * c.tanh(), c


class LoopModel(nn.Module):
    """The same translation model with a decoder that takes one step of all its layers at a time.

    Args:
        encoder: the class of the encoder's layers.
        cell: the class of the decoder's layers.
        softmax_inside: compute each step's loss within the loop, as decoders written step by step usually do.
    """

    def __init__(self, encoder: type[nn.LSTM | G2LSTM], cell: type[nn.LSTMCell], softmax_inside: bool = True) -> None:
        super().__init__()
        self.softmax_inside = softmax_inside
        self.source, self.target = (nn.Embedding(VOCABULARY, WIDTH) for _ in range(2))
        self.first, self.second = encoder(WIDTH, WIDTH, bidirectional=True), encoder(2 * WIDTH, WIDTH)
        self.bridge = nn.Linear(WIDTH, 2 * WIDTH)
        self.attention = Attention(WIDTH, WIDTH)
        self.lower, self.upper = cell(WIDTH, WIDTH), cell(2 * WIDTH, WIDTH)
        self.output = nn.Linear(2 * WIDTH, WIDTH)
        self.softmax = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, lengths: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over the target tokens, ignoring those after a sentence's end."""
        x = locked_dropout(self.source(source), DROPOUT)
        packed, _ = self.first(pack_padded_sequence(x, lengths, enforce_sorted=False))
        x, _ = self.second(locked_dropout(pad_packed_sequence(packed)[0], DROPOUT))
        values = locked_dropout(x, DROPOUT).transpose(0, 1)
        is_padding = torch.arange(len(source)) >= lengths.unsqueeze(1)
        memory = self.attention.memory(values, is_padding)
        mean = values.masked_fill(is_padding.unsqueeze(2), 0.0).sum(1) / lengths.unsqueeze(1)
        states = self.bridge(mean).tanh().chunk(2, dim=-1)
        h, k = ((state, torch.zeros_like(state)) for state in states)
        embedded = locked_dropout(self.target(inputs), DROPOUT)
        count = int((targets >= 0).sum())
        between, last = (locked_dropout(torch.ones_like(embedded[:1]), DROPOUT)[0] for _ in range(2))  # masks
        loss, features = embedded.new_zeros(()), []
        for x_t, target in zip(embedded, targets, strict=True):
            h = self.lower(x_t, h)
            context = self.attention(h[0].unsqueeze(1), memory)[0].squeeze(1)
            k = self.upper(torch.cat([h[0] * between, context], dim=-1), k)
            out = self.output(torch.cat([k[0], context], dim=-1)).tanh() * last
            if self.softmax_inside:
                loss = loss + F.cross_entropy(self.softmax(out), target, reduction="sum")
            features.append(out)
        if self.softmax_inside:
            return loss / count
        return F.cross_entropy(self.softmax(torch.stack(features)).flatten(0, 1), targets.flatten())


def measure_language(rounds: int = 7, show: Show = silent) -> Report:
    """Time and memory of a step of the language model against the same model on `torch.nn.LSTM`."""
    memory = {name: peak_memory(language_steps, (name, Size(50, 8, 8)), (name, Size())) for name in LM_CANDIDATES}
    seconds = interleaved({name: language_step(name, Size()) for name in LM_CANDIDATES}, rounds, show=show)
    rows = [
        {
            "name": name,
            "milliseconds": timing.seconds * 1e3,
            "ratio": timing.ratio,
            "tokens_per_second": STEPS * LM_BATCH / timing.seconds,
            "megabytes": memory[name],
            "memory_ratio": memory[name] / memory[PEER] if memory[PEER] else None,
        }
        for name, timing in timings(seconds, PEER).items()
    ]
    title = f"24M language model, batch {LM_BATCH}, {STEPS} steps, gumbel, {torch.get_num_threads()} threads, "
    memory_fields = (Field("megabytes", "peak MB", ".0f"), Field("memory_ratio", "memory ratio", ".2f"))
    fields = (Field("name", "model"), *TIME, RATE, *memory_fields)
    return Report(title + f"median of at least {rounds} rounds", fields, rows)


def measure_translation(rounds: int = 7, show: Show = silent) -> Report:
    """Time of a step of the translation model against decoders that loop."""
    seconds = interleaved({name: translation_step(name) for name in MT_CANDIDATES}, rounds, show=show)
    rows = [
        {
            "name": name,
            "milliseconds": timing.seconds * 1e3,
            "ratio": timing.ratio,
            "tokens_per_second": int(_lengths().sum()) / timing.seconds,
        }
        for name, timing in timings(seconds, OURS).items()
    ]
    title = (
        f"IWSLT'14 model, batch {BATCH}, gumbel, {torch.get_num_threads()} threads, median of at least {rounds} rounds"
    )
    return Report(title, (Field("name", "decoder"), *TIME, RATE), rows)


def _step(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    """Forward and backward."""

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
        return _step(peer, lambda: peer(tokens, targets))
    backend = "reference" if "reference" in name else "auto"
    model = LanguageModel(*size, LAYERS, method="gumbel", backend=backend)

    def loss() -> Tensor:
        out = model(tokens)
        return training_loss(out.features, out.raw, targets, model.output_weight, model.softmax_bias).total

    return _step(model, loss)


def language_steps(name: str, size: Size) -> None:
    """A few training steps, to measure their memory."""
    step = language_step(name, size)
    for _ in range(3):
        step()


def translation_step(name: str) -> Callable[[], None]:
    """A training step on random sentences of 20 to 26 tokens; the mean of IWSLT'14 is 23."""
    torch.manual_seed(0)
    source, inputs, targets = torch.randint(VOCABULARY, (3, LENGTH, BATCH))
    lengths = _lengths()
    targets = targets.masked_fill(torch.arange(LENGTH).unsqueeze(1) >= lengths, -100)
    if name != OURS:
        peer = LoopModel(G2LSTM, G2Cell) if name == G2_LOOP else LoopModel(nn.LSTM, nn.LSTMCell, name == PLAIN_LOOP)
        return _step(peer, lambda: peer(source, lengths, inputs, targets))
    model = TranslationModel(VOCABULARY, VOCABULARY, WIDTH, WIDTH, 2, 2, tied="none", method="gumbel")

    def loss() -> Tensor:
        wanted = targets >= 0
        features = model(source, lengths, inputs)[wanted]
        return cross_entropy(features, model.output_weight, model.softmax_bias, targets[wanted])

    return _step(model, loss)


def _lengths() -> Tensor:
    lengths = torch.randint(20, LENGTH + 1, (BATCH,), generator=torch.Generator().manual_seed(0))
    lengths[0] = LENGTH
    return lengths


MEASUREMENTS = {"lm": measure_language, "mt": measure_translation}  # by task
