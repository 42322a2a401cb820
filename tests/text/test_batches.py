from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from g2lstm.errors import G2Error
from g2lstm.text import batches
from g2lstm.text.batches import IGNORED, PairBatch, TrainingBatches, evaluation_batches
from g2lstm.text.corpus import PairCorpus, PairFiles, prepare_pairs
from g2lstm.text.tokenize import train_word_tokenizer

WORDS = 400
# Two tokenizers whose <eos> differ would be hard to make; any numbers do for the batches.
SOURCE_EOS, TARGET_EOS = 1001, 1002
Lengths = list[tuple[int, int]]


def make_pairs(folder: Path, lengths: Lengths) -> PairCorpus:
    """Pairs of these lengths; every line of a pair begins with the number of the pair, as a token."""
    files = PairFiles(folder / "source", folder / "target")
    tokenizer = train_word_tokenizer([" ".join(f"{number:04}" for number in range(WORDS))])
    for side, file in enumerate(files):
        lines = (" ".join(f"{number:04}" for number in range(k, k + pair[side])) for k, pair in enumerate(lengths))
        file.write_text("".join(f"{line}\n" for line in lines))
    return prepare_pairs(files, tokenizer, tokenizer, cache=folder)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> PairCorpus:
    """Three hundred pairs of all lengths up to 12, each side on its own; the first of them have empty sides."""
    generator = np.random.default_rng(0)
    lengths = [(0, 3), (4, 0), (0, 0), *generator.integers(1, 13, (297, 2)).tolist()]
    return make_pairs(tmp_path_factory.mktemp("mixed"), lengths)


def number_of(column: torch.Tensor) -> int:
    return int(column[0]) - 2  # after <unk> and <eos>


def check(pairs: PairCorpus, batch: PairBatch) -> list[int]:
    """Checks each column against what the corpus has; the numbers of the pairs, which are their first tokens."""
    source, lengths, inputs, targets, _ = batch
    assert all(part.dtype == torch.int64 and part.is_contiguous() for part in (source, lengths, inputs, targets))
    assert len(source) == lengths.max()
    assert len(inputs) == len(targets) == int((targets != IGNORED).sum(dim=0).max())
    numbers = []
    for column in range(source.shape[1]):
        number = number_of(source[:, column])
        ids, translation = (side.line(number).tolist() for side in (pairs.source, pairs.target))
        assert lengths[column] == len(ids) + 1
        assert source[:, column].tolist() == ids + [SOURCE_EOS] * (len(source) - len(ids))
        padding = len(targets) - len(translation) - 1
        assert inputs[:, column].tolist() == [TARGET_EOS, *translation] + [TARGET_EOS] * padding
        assert targets[:, column].tolist() == [*translation, TARGET_EOS] + [IGNORED] * padding
        numbers.append(number)
    return numbers


def size_of(parts: list[PairBatch]) -> int:
    """Tokens of a whole batch with its padding, whatever the share of each process is."""
    source, target = (max(len(getattr(part, name)) for part in parts) for name in ("source", "targets"))
    return (source + target) * sum(part.source.shape[1] for part in parts)


def test_a_batch_by_hand(tmp_path: Path) -> None:
    pairs = make_pairs(tmp_path, [(2, 1), (1, 3)])
    made = TrainingBatches(pairs, 8, 9, batch_size=2)
    plan = made.plan(0)
    assert len(plan) == 1
    batch = made.batch(plan, 0)
    assert batch.source.tolist() == [[2, 3], [3, 8], [8, 8]]
    assert batch.source_lengths.tolist() == [3, 2]
    assert batch.inputs.tolist() == [[9, 9], [2, 3], [9, 4], [9, 5]]
    assert batch.targets.tolist() == [[2, 3], [9, 4], [IGNORED, 5], [IGNORED, 9]]
    assert batch.target_tokens == 6
    assert batch.source_lengths.device.type == "cpu"


@settings(max_examples=60)
@given(
    more=st.integers(0, 40),
    world=st.sampled_from([1, 2, 3]),
    is_in_tokens=st.booleans(),
    max_length=st.sampled_from([2, 5, 12, 300]),
    pool=st.sampled_from([1, 2, 100]),
    epoch=st.integers(0, 3),
)
def test_every_pair_once_in_an_epoch(
    mixed: PairCorpus, more: int, world: int, is_in_tokens: bool, max_length: int, pool: int, epoch: int
) -> None:
    longest = 2 * (min(max_length, 12) + 1)
    limit = (2 * world - 1) * longest + 11 * more if is_in_tokens else world + more
    size = {"batch_tokens" if is_in_tokens else "batch_size": limit}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "POOL", pool)
        made = [
            TrainingBatches(
                mixed, SOURCE_EOS, TARGET_EOS, **size, max_length=max_length, seed=5, rank=rank, world_size=world
            )
            for rank in range(world)
        ]
    plans = [one.plan(epoch) for one in made]
    assert len({len(plan) for plan in plans}) == 1
    seen = []
    for index in range(len(plans[0])):
        parts = [one.batch(plan, index) for one, plan in zip(made, plans, strict=True)]
        assert min(part.source.shape[1] for part in parts) >= 1
        assert {part.target_tokens for part in parts} == {sum(int((part.targets >= 0).sum()) for part in parts)}
        for part in parts:
            seen += check(mixed, part)
        if is_in_tokens:
            assert size_of(parts) <= limit
        else:
            assert sum(part.source.shape[1] for part in parts) <= max(limit, 2 * world - 1)
    lengths = list(zip(mixed.source.lengths.tolist(), mixed.target.lengths.tolist(), strict=True))
    assert sorted(seen) == [k for k, pair in enumerate(lengths) if min(pair) > 0 and max(pair) <= max_length]
    assert made[0].kept == len(seen)
    assert made[0].empty == 3
    assert made[0].too_long == 297 - len(seen)


def test_batches_are_of_equal_size(mixed: PairCorpus) -> None:
    made = TrainingBatches(mixed, SOURCE_EOS, TARGET_EOS, batch_size=64)
    plan = made.plan(0)
    assert sorted(np.diff(plan.bounds)[:, 0].tolist()) == [59, 59, 59, 60, 60]


def test_batches_by_tokens_are_full(mixed: PairCorpus) -> None:
    made = TrainingBatches(mixed, SOURCE_EOS, TARGET_EOS, batch_tokens=500)
    plan = made.plan(0)
    sizes = sorted(size_of([made.batch(plan, index)]) for index in range(len(plan)))
    assert len(plan) <= 1.4 * sum(sizes) / 500
    assert sizes[len(sizes) // 2] > 450


def test_like_lengths_come_together(mixed: PairCorpus) -> None:
    def padding(pool: int) -> float:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batches, "POOL", pool)
            made = TrainingBatches(mixed, SOURCE_EOS, TARGET_EOS, batch_size=8)
        plan = made.plan(0)
        parts = [made.batch(plan, index) for index in range(len(plan))]
        needed = sum(int(part.source_lengths.sum()) + part.target_tokens for part in parts)
        return sum(size_of([part]) for part in parts) / needed

    assert padding(100) < 1.35 < 1.5 < padding(1)


def test_the_order_is_a_function_of_seed_and_epoch(mixed: PairCorpus) -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        made = TrainingBatches(mixed, SOURCE_EOS, TARGET_EOS, batch_size=16, seed=seed)
        made.plan(7)  # other plans do not matter
        plan = made.plan(epoch)
        return [check(mixed, made.batch(plan, index)) for index in range(len(plan))]

    first = order(1, 0)
    assert order(1, 0) == first
    for other in (order(1, 1), order(2, 0)):
        assert other != first
        assert sorted(map(sorted, other)) != sorted(map(sorted, first))  # not just the same batches in another order
    longest = [max(mixed.source.lengths[batch].max(), mixed.target.lengths[batch].max()) for batch in first]
    assert longest not in (sorted(longest), sorted(longest, reverse=True))


def test_a_batch_is_read_at_any_time(mixed: PairCorpus) -> None:
    made = TrainingBatches(mixed, SOURCE_EOS, TARGET_EOS, batch_tokens=300, seed=3)
    plan = made.plan(2)
    forth = [made.batch(plan, index) for index in range(len(plan))]
    back = [made.batch(made.plan(2), index) for index in reversed(range(len(plan)))]
    for one, other in zip(forth, reversed(back), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one[:4], other[:4], strict=True))
        assert one.target_tokens == other.target_tokens


def test_evaluation_reads_every_pair(mixed: PairCorpus) -> None:
    seen, sizes, lengths = [], [], []
    for numbers, batch in evaluation_batches(mixed, SOURCE_EOS, TARGET_EOS, batch_size=32):
        seen += numbers.tolist()
        sizes.append(len(numbers))
        lengths.append(mixed.target.lengths[numbers].max())
        full = [k for k, number in enumerate(numbers) if mixed.source.lengths[number]]
        assert [number_of(batch.source[:, k]) for k in full] == numbers[full].tolist()
        assert batch.source_lengths.tolist() == (mixed.source.lengths[numbers] + 1).tolist()
        assert (
            batch.target_tokens == int((batch.targets >= 0).sum()) == mixed.target.lengths[numbers].sum() + len(numbers)
        )
    assert sorted(seen) == list(range(300))
    assert sizes == [32] * 9 + [12]
    assert lengths == sorted(lengths)


def test_evaluation_of_empty_sides(tmp_path: Path) -> None:
    ((numbers, batch),) = evaluation_batches(make_pairs(tmp_path, [(0, 1), (2, 0)]), 8, 9, batch_size=5)
    assert numbers.tolist() == [1, 0]
    assert batch.source.tolist() == [[3, 8], [4, 8], [8, 8]]
    assert batch.source_lengths.tolist() == [3, 1]
    assert batch.inputs.tolist() == [[9, 9], [9, 2]]
    assert batch.targets.tolist() == [[9, 2], [IGNORED, 9]]


def test_sizes_that_cannot_be(mixed: PairCorpus) -> None:
    with pytest.raises(
        G2Error, match="a batch must have at least one pair per process, 3 in all, got 2; raise train.batch_size"
    ):
        TrainingBatches(mixed, 0, 1, batch_size=2, world_size=3)
    with pytest.raises(G2Error, match="a batch must have at least one pair per process, 1 in all, got 0"):
        TrainingBatches(mixed, 0, 1, batch_size=0)
    TrainingBatches(mixed, 0, 1, batch_tokens=78, world_size=2)
    with pytest.raises(
        G2Error, match=r"a batch must have room for the longest sentences, 78 tokens for 2 process\(es\), got 77; raise"
    ):
        TrainingBatches(mixed, 0, 1, batch_tokens=77, world_size=2)


def test_nothing_left_to_train_on(tmp_path: Path) -> None:
    pairs = make_pairs(tmp_path, [(5, 1), (1, 6), (0, 2), (2, 2)])
    assert TrainingBatches(pairs, 0, 1, batch_size=8, max_length=4).kept == 1
    for max_length, world, left in ((1, 1, 0), (4, 2, 1), (0, 1, 0)):
        message = (
            rf"only {left} of 4 pairs can be trained on, and each of {world} process\(es\) needs one: {3 - left} have "
            rf"more than {max_length} tokens on a side, 1 an empty side; raise data.max_length, or use more text"
        )
        with pytest.raises(G2Error, match=message):
            TrainingBatches(pairs, 0, 1, batch_size=8, max_length=max_length, world_size=world)
