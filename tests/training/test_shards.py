"""What each of several processes reads and draws: together all of the text once, noise of one's own."""

import pytest
import torch
from accelerate import Accelerator

from g2lstm import G2Error
from g2lstm.nn.random import draw_noise
from g2lstm.tasks.mt.task import TranslationLearner
from g2lstm.tasks.task import TrainingData
from g2lstm.text.batches import Columns
from g2lstm.text.corpus import prepare_stream, prepare_tokenizer
from g2lstm.training.environment import noise_seed
from g2lstm.training.start import prepare
from tests.training.toys import mt_recipe, write_text


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_columns_of_all_processes_are_the_text_once(data, size):
    text = data / "train.txt"
    stream = prepare_stream(text, prepare_tokenizer(text, cache=data.parent), cache=data.parent)
    everyone = [Columns(stream, 8, rank=rank, world_size=size) for rank in range(size)]
    windows = [columns.window(0, columns.rows) for columns in everyone]
    read = torch.cat([window.tokens.t().flatten() for window in windows])
    assert torch.equal(read, torch.from_numpy(stream.read(0, len(read))))
    assert len(stream) - 1 - len(read) < 8
    targets = torch.cat([window.targets.t().flatten() for window in windows])
    assert torch.equal(targets, torch.from_numpy(stream.read(1, len(read))))


def data_of(learner):
    return TrainingData(learner.tokenizers, learner.batches.corpus, learner.valid)


@pytest.mark.parametrize("options", [{}, {"batch_tokens": 120}])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_batches_of_all_processes_are_the_pairs_once(data, size, options):
    recipe = mt_recipe(data, **options)
    made = prepare(recipe, Accelerator(cpu=True))[0]
    tasks = [TranslationLearner(recipe, made.model, data_of(made), rank=rank, world_size=size) for rank in range(size)]
    read, tokens = [], 0
    while (batches := [task.next_batch() for task in tasks])[0] is not None:
        for batch in batches:
            for column, length in zip(batch.source.t(), batch.source_lengths.tolist(), strict=True):
                read.append(tuple(column[: length - 1].tolist()))
        tokens += sum(int((batch.targets >= 0).sum()) for batch in batches)
        assert {batch.target_tokens for batch in batches} == {sum(int((b.targets >= 0).sum()) for b in batches)}
    expected = [tuple(made.batches.corpus.source.line(index).tolist()) for index in range(len(made.batches.corpus))]
    assert sorted(read) == sorted(expected)


def test_an_epoch_ends_with_the_batches_it_began_with(tmp_path):
    """Batches by tokens depend on the number of processes, each of which needs a pair of every batch."""
    recipe = mt_recipe(write_text(tmp_path / "data", lines=61), batch_tokens=60)
    made = prepare(recipe, Accelerator(cpu=True))[0]

    def task(rank, size):
        return TranslationLearner(recipe, made.model, data_of(made), rank=rank, world_size=size)

    two = task(1, 2)
    one = task(0, 1)
    assert one.plan.bounds.tolist() != two.plan.bounds.tolist()  # else the test says nothing
    two.next_batch()
    one.load_state_dict([two.state_dict()] * 2)
    assert one.index == 1
    assert one.plan.bounds.tolist() == two.plan.bounds.tolist()
    assert one.state_dict()["planned_for"] == 2
    one.start_epoch()
    assert one.state_dict()["planned_for"] == 1
    assert one.plan.bounds.tolist() == task(0, 1).batches.plan(1).bounds.tolist()
    with pytest.raises(G2Error, match=r"started with 1 process\(es\) and has a batch of 1 pair\(s\), which 2"):
        task(0, 2).load_state_dict([task(0, 1).state_dict()])


def test_streams_of_noise_differ_by_process_seed_and_step():
    seeds = {noise_seed(seed, rank, step) for seed in range(9) for rank in range(9) for step in range(9)}
    assert len(seeds) == 9**3
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_noise_of_processes_is_not_correlated():
    """Of n independent pairs the correlation has a deviation of 1 / sqrt(n); the bound is five of them."""
    count = 100_000
    streams = []
    for rank in range(8):
        torch.manual_seed(noise_seed(1, rank))
        streams.append(draw_noise((count,), dtype=torch.float64))
    assert torch.corrcoef(torch.stack(streams)).sub(torch.eye(8)).abs().max() < 5 / count**0.5
    shifted = torch.corrcoef(torch.stack([streams[0][1:], streams[1][:-1]]))[0, 1]
    assert shifted.abs() < 5 / count**0.5
