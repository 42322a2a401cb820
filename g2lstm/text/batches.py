"""Sentence pairs as training and evaluation read them: padded batches of about one length."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.text.pairs import PairCorpus
from g2lstm.text.windows import IGNORED

POOL = 100  # batches whose pairs are sorted together
_SCAN = 1 << 16  # pairs whose lengths are looked at together

Integers = npt.NDArray[np.integer]


class PairBatch(NamedTuple):
    """Some pairs side by side: S source and T target tokens of the longest, B pairs."""

    source: Tensor  # (S, B), int64: each sentence and its <eos>, then more <eos>
    source_lengths: Tensor  # (B,), int64, on the CPU: with the one <eos> that belongs to the sentence
    inputs: Tensor  # (T, B), int64: <eos>, then the target, then more <eos>
    targets: Tensor  # (T, B), int64: the target and its <eos>, then IGNORED
    target_tokens: int  # that are predicted in the batch of all processes together


@dataclass(frozen=True, eq=False)
class Plan:
    """Which pairs make which batch of an epoch.

    Attributes:
        pairs: (pairs,): their numbers, those of a batch together.
        bounds: (batches, 2): where in `pairs` each batch begins and ends, in the order of training.
        target_tokens: (batches,): how many tokens are predicted in each.
    """

    pairs: Integers
    bounds: Integers
    target_tokens: Integers

    def __len__(self) -> int:
        """How many batches there are."""
        return len(self.bounds)


class TrainingBatches:
    """Training pairs in batches: each pair once an epoch, in an order that seed and epoch decide.

    The pairs are shuffled; out of about a hundred batches' worth at a time, those of like length come together; and the
    batches are shuffled. Batch i of epoch e is always the same, so two numbers are enough to go on with training.

    Memory holds 6 bytes for each pair, 8 if `max_length` is above 255, and 4 in a plan. Tokens stay in their files.

    Args:
        corpus: the pairs.
        source_eos: `<eos>` of the source tokenizer.
        target_eos: `<eos>` of the target tokenizer.
        batch_size: pairs in a batch, over all processes together, or a few less so that all batches have as many; or
        batch_tokens: tokens in a batch at most, over all processes together: source and target, each with its `<eos>`
            and the padding.
        max_length: pairs with more tokens on a side are left out, as are those with none.
        seed: of the order.
        rank: which process this is; it reads its own share of each batch.
        world_size: how many processes there are; each gets at least one pair of every batch.

    Attributes:
        kept: how many pairs are trained on.
        too_long: how many are left out for their length.
        empty: how many are left out for an empty side.
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
        if (batch_size is None) == (batch_tokens is None):
            raise G2Error(
                f"give the size of a batch either in pairs or in tokens, got batch_size={batch_size} and "
                f"batch_tokens={batch_tokens}"
            )
        if not 0 <= rank < world_size:
            raise G2Error(f"the rank must lie between 0 and {world_size - 1}, got {rank}")
        self.corpus = corpus
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self._eos = source_eos, target_eos
        self._batch_tokens = batch_tokens
        self._numbers, self._lengths, self.empty = _scan(corpus, max_length)
        self.kept = len(self._numbers)
        self.too_long = len(corpus) - self.kept - self.empty
        if self.kept < world_size:
            raise G2Error(
                f"{self.kept} of {len(corpus)} pairs are left to train on, and each of {world_size} process(es) needs "
                f"one: {self.too_long} have more than {max_length} tokens on a side, {self.empty} an empty side; raise "
                "data.max_length, or use more text"
            )
        if batch_size is not None:
            self._ends, self._pools = self._by_pairs(batch_size)
        elif batch_tokens is not None:
            self._pools = self._by_tokens(batch_tokens)

    def _by_pairs(self, batch_size: int) -> tuple[Integers, list[int]]:
        """The ends of the batches, and the bounds of the pools."""
        if batch_size < self.world_size:
            raise G2Error(
                f"a batch must have a pair for each process, {self.world_size} at least, got {batch_size}; raise "
                "train.batch_size, or use fewer processes"
            )
        # The second keeps a pair of every batch for each process, where the last batch would have too few.
        count = min(-(-self.kept // batch_size), self.kept // self.world_size)
        bounds = _evenly(self.kept, count)
        return np.array(bounds[1:]), [*bounds[:-1:POOL], self.kept]

    def _by_tokens(self, batch_tokens: int) -> list[int]:
        """The bounds of the pools; where batches end depends on the order."""
        # Twice as many pairs as processes, less one, may have to be one batch, since two would be too small.
        needed = (2 * self.world_size - 1) * (int(self._lengths.max(axis=0).sum()) + 2)
        if batch_tokens < needed:
            raise G2Error(
                f"a batch must have room for the longest sentences, {needed} tokens for {self.world_size} process(es), "
                f"got {batch_tokens}; raise train.batch_tokens, or lower data.max_length"
            )
        tokens = int(self._lengths.sum(dtype=np.int64)) + 2 * self.kept
        return _evenly(self.kept, max(1, tokens // (POOL * batch_tokens)))

    def plan(self, epoch: int) -> Plan:
        """The batches of an epoch, the same in every process."""
        generator = np.random.default_rng((self.seed, epoch))
        order = np.arange(self.kept, dtype=self._numbers.dtype)
        generator.shuffle(order)
        bounds, tokens = [], []
        for start, end in pairwise(self._pools):
            pool = order[start:end]
            lengths = self._lengths[pool]
            by_length = np.lexsort((lengths.sum(axis=1), lengths.max(axis=1)))  # of some orders, the least padding
            order[start:end], lengths = self._numbers[pool[by_length]], lengths[by_length]
            if self._batch_tokens is None:
                ends = self._ends[slice(*np.searchsorted(self._ends, (start, end), side="right"))]
            else:
                ends = start + np.array(_cut(lengths, self._batch_tokens, self.world_size))
            starts = np.array([start, *ends[:-1]])
            bounds.append(np.stack((starts, ends), axis=1))
            tokens.append(np.add.reduceat(lengths[:, 1], starts - start, dtype=np.int64) + ends - starts)
        shuffled = generator.permutation(sum(map(len, bounds)))
        return Plan(order, np.concatenate(bounds)[shuffled], np.concatenate(tokens)[shuffled])

    def batch(self, plan: Plan, index: int) -> PairBatch:
        """This process's share of a batch.

        Args:
            plan: of the epoch.
            index: of the batch, from 0 on.
        """
        start, end = plan.bounds[index]
        pairs = plan.pairs[start + self.rank : end : self.world_size]
        return _pad(self.corpus, pairs, *self._eos, int(plan.target_tokens[index]))


def evaluation_batches(
    corpus: PairCorpus, source_eos: int, target_eos: int, *, batch_size: int
) -> Iterator[tuple[npt.NDArray[np.int64], PairBatch]]:
    """All pairs in batches, those of like length together; none is left out.

    Args:
        corpus: the pairs.
        source_eos: `<eos>` of the source tokenizer.
        target_eos: `<eos>` of the target tokenizer.
        batch_size: pairs in a batch; the last may have fewer.

    Yields:
        the numbers of the pairs in the corpus, (B,), and the batch.
    """
    order = np.lexsort((corpus.source_lengths, corpus.target_lengths))
    for start in range(0, len(order), batch_size):
        pairs = order[start : start + batch_size]
        tokens = int(corpus.target_lengths[pairs].sum()) + len(pairs)
        yield pairs, _pad(corpus, pairs, source_eos, target_eos, tokens)


def _pad(corpus: PairCorpus, pairs: Integers, source_eos: int, target_eos: int, target_tokens: int) -> PairBatch:
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
        target_tokens,
    )


def _scan(corpus: PairCorpus, max_length: int) -> tuple[Integers, Integers, int]:
    """Which pairs to keep, their lengths (kept, 2) in the smallest type that holds them, and how many are empty."""
    numbers = np.empty(len(corpus), dtype=np.min_scalar_type(len(corpus)))
    lengths = np.empty((len(corpus), 2), dtype=np.min_scalar_type(max(max_length, 0)))
    kept = empty = 0
    for start in range(0, len(corpus), _SCAN):
        stop = start + _SCAN
        both = np.stack((corpus.source_lengths[start:stop], corpus.target_lengths[start:stop]), axis=1)
        is_empty = both.min(axis=1) == 0
        is_kept = ~is_empty & (both.max(axis=1) <= max_length)
        more = kept + int(is_kept.sum())
        numbers[kept:more] = start + np.flatnonzero(is_kept)
        lengths[kept:more] = both[is_kept]
        kept, empty = more, empty + int(is_empty.sum())
    return numbers[:kept], lengths[:kept], empty


def _evenly(total: int, parts: int) -> list[int]:
    """The bounds of parts of equal size, give or take one."""
    return [total * part // parts for part in range(parts + 1)]


def _cut(lengths: Integers, batch_tokens: int, least: int) -> list[int]:
    """The ends of batches that have as many pairs as fit, and at least `least`.

    Args:
        lengths: (pairs, 2), in order.
        batch_tokens: that a batch may have, with padding; 2 * least - 1 pairs fit in any case.
        least: pairs that a batch must have.
    """
    ends: list[int] = []
    start, total = 0, len(lengths)
    while start < total:
        most = batch_tokens // (int(lengths[start].sum(dtype=np.int64)) + 2)
        sizes = np.maximum.accumulate(lengths[start : start + most], axis=0).sum(axis=1, dtype=np.int64) + 2
        end = start + int(np.searchsorted(sizes * np.arange(1, len(sizes) + 1), batch_tokens, side="right"))
        if 0 < total - end < least:  # too few would be left
            end = total - least if total - least - start >= least else total
        ends.append(end)
        start = end
    return ends
