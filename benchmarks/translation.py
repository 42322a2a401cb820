"""The paper's translation models: a training step against decoders that loop; given RUNs, how fast they translate.

python benchmarks/translation.py [RUN...] [--source FILE] [--rounds N] [--data-dir DIR] [--json]
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own usage
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from g2lstm.cli.bench import print_reports
from g2lstm.lab.bench.measure import RATE, TIME, Field, Report, compared
from g2lstm.lab.bench.train import backward
from g2lstm.nn.gate import GateRule
from g2lstm.nn.lstm import G2LSTM
from g2lstm.nn.random import draw_noise
from g2lstm.runs.compressed import interleaved
from g2lstm.runs.trained import load_as
from g2lstm.tasks.model import cross_entropy, locked_dropout
from g2lstm.tasks.mt.beam import translate
from g2lstm.tasks.mt.model import Attention, TranslationModel
from g2lstm.tasks.recipes import MT

RULE, NOISE_RATE = GateRule(0.9), 0.2  # the paper's, and the layer's defaults
VOCABULARY, WIDTH, BATCH, LENGTH, DROPOUT = 25_000, 256, 32, 26, 0.2
OURS, G2_LOOP = "g2lstm", "loop of G² cells"
PLAIN_LOOP, LATE_LOOP = "loop of nn.LSTMCell, no noise", "loop of nn.LSTMCell, no noise, softmax after it"
CANDIDATES = (OURS, G2_LOOP, PLAIN_LOOP, LATE_LOOP)
BEAM, SINGLY = 5, 100  # hypotheses; sentences to translate one at a time, which is slow


class G2Cell(nn.LSTMCell):
    """One step of the paper's layer: noise and temperature in its input and forget gates."""

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The new states; x: (B, I), h and c: (B, H)."""
        h, c = state
        alpha = F.linear(x, self.weight_ih, self.bias_ih) + F.linear(h, self.weight_hh, self.bias_hh)
        i, f, g, o = RULE.lstm(alpha, draw_noise((len(x), 2 * self.hidden_size), rate=NOISE_RATE))
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


def measure_steps(rounds: int) -> Report:
    """Times a step of every candidate."""
    seconds = interleaved({name: translation_step(name) for name in CANDIDATES}, rounds)
    rows = compared(seconds, OURS, tokens_per_second=int(_lengths().sum()))
    threads = torch.get_num_threads()
    title = f"IWSLT'14 model, batch {BATCH}, gumbel, {threads} threads, median of at least {rounds} rounds"
    return Report(title, (Field("name", "decoder"), *TIME, RATE), rows)


def translation_step(name: str) -> Callable[[], None]:
    """A training step on random sentences of 20 to 26 tokens; the mean of IWSLT'14 is 23."""
    torch.manual_seed(0)
    source, inputs, targets = torch.randint(VOCABULARY, (3, LENGTH, BATCH))
    lengths = _lengths()
    targets = targets.masked_fill(torch.arange(LENGTH).unsqueeze(1) >= lengths, -100)
    if name != OURS:
        peer = LoopModel(G2LSTM, G2Cell) if name == G2_LOOP else LoopModel(nn.LSTM, nn.LSTMCell, name == PLAIN_LOOP)
        return backward(peer, lambda: peer(source, lengths, inputs, targets))
    model = TranslationModel(VOCABULARY, VOCABULARY, WIDTH, WIDTH, 2, 2, tied="none", method="gumbel")

    def loss() -> Tensor:
        wanted = targets >= 0
        features = model(source, lengths, inputs)[wanted]
        return cross_entropy(features, model.output_weight, model.softmax_bias, targets[wanted])

    return backward(model, loss)


def _lengths() -> Tensor:
    lengths = torch.randint(20, LENGTH + 1, (BATCH,), generator=torch.Generator().manual_seed(0))
    lengths[0] = LENGTH
    return lengths


def measure_search(runs: Sequence[Path], rounds: int, source: Path | None, data_dir: Path | None) -> Report:
    """How many sentences trained models translate per second, in the session on packed weights and in torch."""
    jobs: dict[tuple[str, str, str], Callable[[], object]] = {}
    counts = {}
    for run in runs:
        trained = load_as(MT, run)
        lines = (
            trained.split("test", data_dir)[0] if source is None else source.read_text(encoding="utf-8").splitlines()
        )
        encoded = trained.source.encode_lines(lines)
        search = partial(translate, trained.model, source_eos=trained.source.eos_id, target_eos=trained.target.eos_id)
        for how, sentences, beam, size in (
            (f"beam {BEAM}", encoded, BEAM, 64),
            ("greedy", encoded, 1, 64),
            (f"beam {BEAM}, one at a time", encoded[:SINGLY], BEAM, 1),
        ):
            for path, packed in (("session", True), ("torch", False)):
                counts[run.name, how, path] = len(sentences)
                jobs[run.name, how, path] = partial(search, sentences, beam=beam, batch_size=size, packed=packed)
    rows = []
    for key, times in interleaved(jobs, rounds).items():
        rate = counts[key] / min(times)
        rows.append(dict(zip(("run", "search", "path"), key, strict=True)) | {"sentences_per_second": rate})
    fields = (*map(Field, ("run", "search", "path"), ("run", "search", "computed by")),)
    title = f"{torch.get_num_threads()} threads, best of at least {rounds} interleaved rounds"
    return Report(title, (*fields, Field("sentences_per_second", "sentences/s", ".0f")), rows)


def main() -> None:
    """Measures, and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="runs, to translate their test set")
    parser.add_argument("--source", type=Path, metavar="FILE", help="translate these lines instead")
    parser.add_argument("--rounds", type=int, default=5, help="the minimum number of interleaved rounds")
    parser.add_argument("--data-dir", type=Path, help="the folder that holds the named data sets")
    parser.add_argument("--json", action="store_true", help="for scripts")
    given = parser.parse_args()
    if given.runs:
        report = measure_search(given.runs, given.rounds, given.source, given.data_dir)
    else:
        report = measure_steps(given.rounds)
    print_reports(given.json, report)


if __name__ == "__main__":
    main()
