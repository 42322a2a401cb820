import math
from itertools import pairwise

import pytest
import torch

from g2lstm.tasks.lm import evaluate
from g2lstm.tasks.lm.evaluate import CacheMemory, cached_perplexity, mix, perplexity, read, score, tune_cache
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.lm.recipe import CacheSection

VOCABULARY = 13


def settings_of(window, theta, share):
    return CacheSection.model_validate({"window": window, "theta": theta, "lambda": share})


def by_double_loop(features, targets, window, theta):
    """p_cache of each target straight from its definition."""
    result = []
    for t in range(len(features)):
        weights = {i: math.exp(theta * float(features[t] @ features[i])) for i in range(max(0, t - window), t)}
        same = sum(weight for i, weight in weights.items() if targets[i] == targets[t])
        result.append(same / sum(weights.values()) if weights else math.nan)
    return torch.tensor(result, dtype=torch.float64)


@pytest.fixture
def stream():
    return torch.randn(150, 4, dtype=torch.float64), torch.randint(VOCABULARY, (150,))


@pytest.mark.parametrize("window", [1, 7, 40, 149, 150, 1000])
@pytest.mark.parametrize("theta", [0.01, 0.5, 2.0])
def test_equals_the_double_loop(stream, window, theta, monkeypatch):
    expected = by_double_loop(*stream, window, theta)
    for rows in (1, 16, 128):
        monkeypatch.setattr(evaluate, "_ROWS", rows)
        got = CacheMemory([window], [theta]).probabilities(*stream)[0, 0]
        assert torch.allclose(got, expected, atol=1e-12, equal_nan=True), rows


def test_many_settings_at_once_and_in_pieces(stream):
    features, targets = stream
    windows, thetas = (60, 3, 20), (0.3, 1.0)
    memory = CacheMemory(windows, thetas)
    cuts = (0, 1, 50, 51, 90, 150)
    parts = [memory.probabilities(features[a:b], targets[a:b]) for a, b in pairwise(cuts)]
    got = torch.cat(parts, dim=2)
    for k, window in enumerate(memory.windows):
        for j, theta in enumerate(thetas):
            expected = by_double_loop(features, targets, window, theta)
            assert torch.allclose(got[k, j], expected, atol=1e-12, equal_nan=True)


def test_far_similar_states_do_not_drown_the_near_window():
    features = torch.tensor([[30.0], [1.0], [-1.0], [30.0], [30.0]])  # scores up to 900: exp overflows without care
    targets = torch.tensor([5, 6, 6, 6, 6])
    got = CacheMemory([2, 4], [1.0]).probabilities(features, targets)[:, 0]
    assert got[:, 1:].isfinite().all()
    assert torch.allclose(got[0, 3], torch.tensor(1.0, dtype=torch.float64))  # of the last two, both were followed by 6
    assert torch.allclose(got[1, 3], torch.tensor(0.0, dtype=torch.float64))  # step 0 outweighs all
    assert torch.allclose(got[1, 4], torch.tensor(0.5, dtype=torch.float64))


def test_memory_does_not_grow(stream):
    memory = CacheMemory([10], [1.0])
    memory.probabilities(*stream)
    assert memory._features.shape == (10, 4)
    assert memory._features.untyped_storage().nbytes() == 10 * 4 * 8


@pytest.fixture
def model():
    return LanguageModel(VOCABULARY, 6, 8, 2).double()


@pytest.mark.parametrize("columns", [1, 4])
def test_perplexity_is_the_mixture(model, columns):
    tokens = torch.randint(VOCABULARY, (400,))
    settings = settings_of(50, 3.0, 0.2)
    (block,) = read(model, tokens, columns=1, steps=1000)
    from_cache = by_double_loop(block.features, block.targets, 50, 3.0)
    p = block.log_probabilities.exp()
    mixed = 0.8 * p + 0.2 * from_cache
    mixed[0] = p[0]  # nothing before it to point to
    got = cached_perplexity(model, tokens, settings, columns=columns, steps=64)
    assert got.nats == pytest.approx(-mixed.log().sum().item(), rel=1e-9)
    assert got.tokens == 399


def test_mixture_is_a_distribution(model):
    tokens = torch.randint(VOCABULARY, (60,))
    (block,) = read(model, tokens)
    total = 0.0
    for word in range(VOCABULARY):  # the last token replaced by each word in turn
        targets = block.targets.clone()
        targets[-1] = word
        total += CacheMemory([30], [1.0]).probabilities(block.features, targets)[0, 0, -1].item()
    assert total == pytest.approx(1.0)


def test_no_share_is_no_cache(model):
    tokens = torch.randint(VOCABULARY, (100,))
    assert cached_perplexity(model, tokens, settings_of(10, 1.0, 0.0)).nats == pytest.approx(
        perplexity(model, tokens).nats
    )


def test_search_finds_the_best_of_a_fine_grid(model):
    tokens = torch.tensor([1, 5, 2, 7, 3, 9, 4, 4] * 40 + torch.randint(VOCABULARY, (80,)).tolist())
    tuned = tune_cache(model, tokens, windows=(8, 30), thetas=(0.5, 2.0))
    (block,) = read(model, tokens)
    memory = CacheMemory((8, 30), (0.5, 2.0))
    from_cache = memory.probabilities(block.features, block.targets)
    grid = {
        (window, theta, share / 50): score([mix(block.log_probabilities, from_cache[k, j], share / 50)]).perplexity
        for k, window in enumerate(memory.windows)
        for j, theta in enumerate(memory.thetas)
        for share in range(50)
    }
    best = min(grid, key=grid.get)
    assert (tuned.window, tuned.theta) == best[:2]
    assert abs(tuned.lambda_ - best[2]) <= 0.02
    assert cached_perplexity(model, tokens, tuned).perplexity <= grid[best] + 1e-6


def test_search_may_find_that_no_cache_is_best(model):
    tuned = tune_cache(model, torch.arange(VOCABULARY), windows=(5,), thetas=(1.0,))  # no token comes twice
    assert tuned.lambda_ == 0.0
