from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from g2lstm.errors import G2Error
from g2lstm.text.batches import IGNORED, Columns, sample_bptt
from g2lstm.text.corpus import TokenStream, prepare_stream
from g2lstm.text.tokenize import train_word_tokenizer

COUNT = 103


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> TokenStream:
    """Tokens that are all different, but for the last one."""
    folder = tmp_path_factory.mktemp("stream")
    line = " ".join(f"{k:03}" for k in range(COUNT - 1))
    (folder / "text").write_text(line)
    return prepare_stream(folder / "text", train_word_tokenizer([line]), cache=folder)


def short(stream: TokenStream, tmp_path: Path, count: int) -> TokenStream:
    (tmp_path / "text").write_text(" ".join("a" * (count - 1)) if count > 1 else "")
    return prepare_stream(tmp_path / "text", train_word_tokenizer(["a"]), cache=tmp_path)


def test_columns_stand_side_by_side(stream: TokenStream) -> None:
    columns = Columns(stream, 4)
    assert (columns.rows, columns.predictions) == (25, 100)
    window = columns.window(0, 3)
    first = torch.tensor([[0, 25, 50, 75], [1, 26, 51, 76], [2, 27, 52, 77]]) + 2
    assert torch.equal(window.tokens, first)
    assert torch.equal(window.targets, first + 1)
    assert window.position == 3
    assert window.tokens.dtype == window.targets.dtype == torch.int64
    assert window.tokens.is_contiguous()
    assert window.targets.is_contiguous()
    last = columns.window(24, 70)
    assert last.tokens.tolist() == [[26, 51, 76, 101]]
    assert last.targets.tolist() == [[27, 52, 77, 102]]
    assert last.position == columns.rows


@given(st.integers(1, 120), st.integers(1, 30), st.sampled_from([1, 2, 3]))
def test_with_the_tail_every_token_is_predicted_once(
    stream: TokenStream, per_rank: int, length: int, world: int
) -> None:
    everything = stream.read(0, COUNT).tolist()
    seen: list[tuple[int, int]] = []
    for rank in range(world):
        columns = Columns(stream, per_rank * world, rank=rank, world_size=world, keep_tail=True)
        assert columns.predictions == COUNT - 1
        for window in columns.windows(length):
            assert window.tokens.shape[1] == columns.local_batch == per_rank
            assert int(window.tokens.min()) >= 0
            keep = window.targets != IGNORED
            seen += zip(window.tokens[keep].tolist(), window.targets[keep].tolist(), strict=True)
    assert sorted(seen) == sorted(pairwise(everything))


@given(st.integers(1, 34), st.integers(1, 30), st.sampled_from([1, 2, 3]))
def test_without_the_tail_each_token_at_most_once(stream: TokenStream, per_rank: int, length: int, world: int) -> None:
    everything = stream.read(0, COUNT).tolist()
    seen: list[tuple[int, int]] = []
    batch = per_rank * world
    for rank in range(world):
        columns = Columns(stream, batch, rank=rank, world_size=world)
        for window in columns.windows(length):
            seen += zip(window.tokens.flatten().tolist(), window.targets.flatten().tolist(), strict=True)
    assert len(seen) == columns.predictions > COUNT - 1 - batch
    assert sorted(seen) == list(pairwise(everything))[: len(seen)]


def test_ranks_together_are_the_whole_batch(stream: TokenStream) -> None:
    whole = Columns(stream, 6).window(2, 5)
    parts = [Columns(stream, 6, rank=rank, world_size=3).window(2, 5) for rank in range(3)]
    assert torch.equal(torch.cat([part.tokens for part in parts], dim=1), whole.tokens)
    assert torch.equal(torch.cat([part.targets for part in parts], dim=1), whole.targets)


AWD = {"deviation": 5.0, "half_probability": 0.05, "minimum": 5}


def test_a_text_shorter_than_the_batch(stream: TokenStream, tmp_path: Path) -> None:
    assert Columns(short(stream, tmp_path, 5), 4).rows == 1
    with pytest.raises(
        G2Error, match="a text of 5 tokens is too short for a batch of 5, which needs at least 6; lower train.b"
    ):
        Columns(short(stream, tmp_path, 5), 5)
    assert Columns(short(stream, tmp_path, 2), 5, keep_tail=True).predictions == 1


def test_processes_that_do_not_fit(stream: TokenStream) -> None:
    with pytest.raises(G2Error, match="the batch size must be a multiple of the number of processes, 2, got 5"):
        Columns(stream, 5, world_size=2)
    with pytest.raises(G2Error, match="the batch size must be a multiple of the number of processes, 1, got 0"):
        Columns(stream, 0)


def test_lengths_are_distributed_as_stated() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([sample_bptt(70, generator, **AWD) for _ in range(20_000)], dtype=torch.float64)
    short, usual = lengths[lengths < 52.5], lengths[lengths >= 52.5]
    # Of 20,000 draws: five standard errors each way; truncation to a whole number takes one half off the mean.
    assert abs(len(short) / 20_000 - 0.05) < 5 * (0.05 * 0.95 / 20_000) ** 0.5
    assert abs(usual.mean() - 69.5) < 5 * 5 / 19_000**0.5
    assert abs(short.mean() - 34.5) < 5 * 5 / 1_000**0.5
    assert abs(usual.std() - 5) < 5 * 5 / (2 * 19_000) ** 0.5


def test_lengths_have_a_lower_bound_and_may_be_fixed() -> None:
    generator = torch.Generator().manual_seed(0)
    assert min(sample_bptt(6, generator, **AWD) for _ in range(200)) == 5
    assert {sample_bptt(35, generator, deviation=0.0, half_probability=0.0, minimum=5) for _ in range(20)} == {35}
    assert {sample_bptt(35, generator, deviation=0.0, half_probability=1.0, minimum=5) for _ in range(20)} == {17}


def test_a_length_is_a_function_of_the_generator() -> None:
    draws = [sample_bptt(70, torch.Generator().manual_seed(seed), **AWD) for seed in (1, 1, 2, 3)]
    assert draws[0] == draws[1]
    assert len(set(draws)) > 1
