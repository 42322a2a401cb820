"""What models read in training and evaluation: windows of running text, padded batches of pairs of similar length."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.text.corpus import PairCorpus, TokenStream

IGNORED = -100  # a target that is not predicted; the default of torch's cross entropy


class Window(NamedTuple):
    """What one update of truncated back-propagation reads."""

    tokens: Tensor  # (T, B), int64
    targets: Tensor  # (T, B), int64: the token after each
    position: int  # the row after this window, where reading resumes


class Columns:
    """A stream cut into B columns of equal length, side by side; nothing is copied until it is read.

    Column b starts at token b * rows. The target of each token is the next one in the stream, so no prediction is lost
    between two columns. B is the batch size over all processes, each of which reads its own share of the columns.

    With `keep_tail`, the last tokens are kept even if they do not fill a row, and the places after them are `IGNORED`,
    so that every token but the first is predicted exactly once. Otherwise up to B - 1 tokens at the end are left out.
    """

    def __init__(
        self, stream: TokenStream, batch_size: int, *, rank: int = 0, world_size: int = 1, keep_tail: bool = False
    ) -> None:
        if batch_size < 1 or batch_size % world_size:
            raise G2Error(
                f"the batch size must be a multiple of the number of processes, {world_size}, got {batch_size}"
            )
        predictions = len(stream) - 1
        needed = 1 if keep_tail else batch_size
        if predictions < needed:
            raise G2Error(
                f"a text of {len(stream)} tokens is too short for a batch of {batch_size}, which needs at least "
                f"{needed + 1}; lower train.batch_size, or give more text"
            )
        self.stream = stream
        self.rows = -(-predictions // batch_size) if keep_tail else predictions // batch_size
        self.predictions = predictions if keep_tail else self.rows * batch_size
        self.local_batch = batch_size // world_size
        self._first = rank * self.local_batch

    def window(self, start: int, length: int) -> Window:
        """The rows from `start` on: `length` of them, or as many as remain.

        Returns:
            tokens and targets: (T, B / world_size), with T at most `length`.
        """
        length = min(length, self.rows - start)
        block = np.full((self.local_batch, length + 1), IGNORED, dtype=np.int64)
        for index, row in enumerate(block):
            tokens = self.stream.read((self._first + index) * self.rows + start, length + 1)
            row[: len(tokens)] = tokens
        both = torch.from_numpy(block).t()
        # Past the end of the stream nothing is predicted, so any token will do as the input.
        return Window(both[:-1].clamp_min(0).contiguous(), both[1:].contiguous(), start + length)

    def windows(self, length: int) -> Iterator[Window]:
        """All rows in windows of `length`, the last perhaps shorter."""
        for start in range(0, self.rows, length):
            yield self.window(start, length)


def sample_bptt(
    bptt: int, generator: torch.Generator, *, deviation: float, half_probability: float, minimum: int
) -> int:
    """The length of a window, drawn as for AWD-LSTM: from N(bptt, deviation), sometimes from N(bptt / 2, deviation).

    The mean is halved with `half_probability`; no window is shorter than `minimum`.
    """
    uniform = torch.rand((), dtype=torch.float64, generator=generator).item()
    normal = torch.randn((), dtype=torch.float64, generator=generator).item()
    mean = bptt / 2 if uniform < half_probability else bptt
    return max(minimum, int(mean + deviation * normal))


POOL = 100  # batches whose pairs are sorted together

Integers = npt.NDArray[np.integer]


class PairBatch(NamedTuple):
    """B pairs side by side; the longest have S source and T target tokens."""

    source: Tensor  # (S, B), int64: each sentence and its <eos>, padded with <eos>
    source_lengths: Tensor  # (B,), int64, on the CPU: including the one <eos> that belongs to the sentence
    inputs: Tensor  # (T, B), int64: <eos> and the target, padded with <eos>
    targets: Tensor  # (T, B), int64: the target and its <eos>, padded with IGNORED
    target_tokens: int  # predicted in the batch, over all processes


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Which pairs make up which batch of an epoch."""

    pairs: Integers  # (pairs,): their numbers, batch by batch
    bounds: Integers  # (batches, 2): where in `pairs` each batch begins and ends, in the order of training
    target_tokens: Integers  # (batches,): how many tokens are predicted in each

    def __len__(self) -> int:
        """The number of batches."""
        return len(self.bounds)


class TrainingBatches:
    """Training pairs in batches: each pair once per epoch, in an order determined by seed and epoch.

    The pairs are shuffled; then about a hundred batches' worth at a time is sorted by length and cut into batches, and
    the batches are shuffled. Batch i of epoch e is always the same, so two numbers are enough to resume training.

    A batch has `batch_size` pairs, or slightly fewer to keep batches equal; or as many pairs as fit into
    `batch_tokens`: source and target, each with `<eos>` and padding. Both sizes are over all processes; each reads its
    share, at least one pair. Pairs with an empty side, or with more than `max_length` tokens on a side, are left out.

    Memory holds 16 bytes per pair, and 8 in a plan. Tokens stay in their files.
    """

    def __init__(
        self,
        corpus: PairCorpus,
        source_eos: int,
        target_eos: int,
        *,
        batch_size: int | None = None,
        batch_tokens: int | None = None,
        max_length: int = 64,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.corpus = corpus
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self._eos = source_eos, target_eos
        self._batch_tokens = batch_tokens
        sides = corpus.source.lengths, corpus.target.lengths
        lengths = np.stack(sides, axis=1, dtype=np.int32, casting="same_kind")
        has_text = lengths.min(axis=1) > 0
        is_kept = has_text & (lengths.max(axis=1) <= max_length)
        self._numbers, self._lengths = np.flatnonzero(is_kept), lengths[is_kept]
        self.kept, self.empty = len(self._numbers), len(corpus) - int(has_text.sum())
        self.too_long = len(corpus) - self.kept - self.empty
        if self.kept < world_size:
            raise G2Error(
                f"only {self.kept} of {len(corpus)} pairs can be trained on, and each of {world_size} process(es) "
                f"needs one: {self.too_long} have more than {max_length} tokens on a side, {self.empty} an empty side; "
                "raise data.max_length, or use more text"
            )
        if batch_size is not None:
            self._ends, self._pools = self._by_pairs(batch_size)
        elif batch_tokens is not None:
            self._pools = self._by_tokens(batch_tokens)

    def _by_pairs(self, batch_size: int) -> tuple[Integers, list[int]]:
        """The ends of the batches, and the bounds of the pools."""
        if batch_size < self.world_size:
            raise G2Error(
                f"a batch must have at least one pair per process, {self.world_size} in all, got {batch_size}; raise "
                "train.batch_size, or use fewer processes"
            )
        # The second term ensures that each process gets a pair of the last batch too.
        count = min(-(-self.kept // batch_size), self.kept // self.world_size)
        bounds = _evenly(self.kept, count)
        return np.array(bounds[1:]), [*bounds[:-1:POOL], self.kept]

    def _by_tokens(self, batch_tokens: int) -> list[int]:
        """The bounds of the pools; the ends of the batches depend on the order."""
        # Up to 2 * processes - 1 pairs may have to share a batch, because two batches would be too small.
        needed = (2 * self.world_size - 1) * (int(self._lengths.max(axis=0).sum()) + 2)
        if batch_tokens < needed:
            raise G2Error(
                f"a batch must have room for the longest sentences, {needed} tokens for {self.world_size} process(es), "
                f"got {batch_tokens}; raise train.batch_tokens, or lower data.max_length"
            )
        tokens = int(self._lengths.sum()) + 2 * self.kept
        return _evenly(self.kept, max(1, tokens // (POOL * batch_tokens)))

    def plan(self, epoch: int) -> BatchPlan:
        """The batches of an epoch, the same in every process."""
        generator = np.random.default_rng((self.seed, epoch))
        order = generator.permutation(self.kept)
        bounds, tokens = [], []
        for start, end in pairwise(self._pools):
            pool = order[start:end]
            lengths = self._lengths[pool]
            by_length = np.lexsort((lengths.sum(axis=1), lengths.max(axis=1)))  # the least padding of orders tried
            order[start:end], lengths = self._numbers[pool[by_length]], lengths[by_length]
            if self._batch_tokens is None:
                ends = self._ends[slice(*np.searchsorted(self._ends, (start, end), side="right"))]
            else:
                ends = start + np.array(_cut(lengths, self._batch_tokens, self.world_size))
            starts = np.array([start, *ends[:-1]])
            bounds.append(np.stack((starts, ends), axis=1))
            tokens.append(np.add.reduceat(lengths[:, 1], starts - start) + ends - starts)
        shuffled = generator.permutation(sum(map(len, bounds)))
        return BatchPlan(order, np.concatenate(bounds)[shuffled], np.concatenate(tokens)[shuffled])

    def batch(self, plan: BatchPlan, index: int) -> PairBatch:
        """This process's share of a batch: the one at `index` in the plan of an epoch."""
        start, end = plan.bounds[index]
        pairs = plan.pairs[start + self.rank : end : self.world_size]
        return pair_batch(self.corpus, pairs, *self._eos)._replace(target_tokens=int(plan.target_tokens[index]))


def evaluation_batches(
    corpus: PairCorpus, source_eos: int, target_eos: int, *, batch_size: int
) -> Iterator[tuple[npt.NDArray[np.int64], PairBatch]]:
    """All pairs in batches of similar length; the last batch may be smaller.

    Yields:
        The numbers of the pairs in the corpus, (B,), and the batch.
    """
    order = np.lexsort((corpus.source.lengths, corpus.target.lengths))
    for start in range(0, len(order), batch_size):
        pairs = order[start : start + batch_size]
        yield pairs, pair_batch(corpus, pairs, source_eos, target_eos)


def pair_batch(corpus: PairCorpus, pairs: Integers, source_eos: int, target_eos: int) -> PairBatch:
    """The pairs of these numbers, side by side."""
    source, source_lengths = corpus.source.columns(pairs, source_eos)
    target, target_lengths = corpus.target.columns(pairs, target_eos)
    inputs = np.full_like(target, target_eos)
    inputs[1:] = target[:-1]
    target[np.arange(len(target))[:, None] > target_lengths] = IGNORED
    return PairBatch(
        torch.from_numpy(source),
        torch.from_numpy(source_lengths + 1),
        torch.from_numpy(inputs),
        torch.from_numpy(target),
        int(target_lengths.sum()) + len(pairs),
    )


def _evenly(total: int, slices: int) -> list[int]:
    """The bounds of slices of equal size, give or take one."""
    return [total * number // slices for number in range(slices + 1)]


def _cut(lengths: Integers, batch_tokens: int, least: int) -> list[int]:
    """The ends of batches of pairs with lengths (pairs, 2): as many as fit into `batch_tokens`, and at least `least`.

    2 * least - 1 pairs always fit.
    """
    ends: list[int] = []
    start, total = 0, len(lengths)
    while start < total:
        most = batch_tokens // (int(lengths[start].sum()) + 2)
        sizes = np.maximum.accumulate(lengths[start : start + most], axis=0).sum(axis=1) + 2
        end = start + int(np.searchsorted(sizes * np.arange(1, len(sizes) + 1), batch_tokens, side="right"))
        if 0 < total - end < least:  # too few would remain
            end = total - least if total - least - start >= least else total
        ends.append(end)
        start = end
    return ends
