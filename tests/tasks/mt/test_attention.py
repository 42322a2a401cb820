import math

import pytest
import torch

from g2lstm.tasks.mt.model import Attention


@pytest.fixture
def parts():
    torch.manual_seed(0)
    attention = Attention(query_size=4, value_size=6).double()
    values, queries = torch.randn(3, 5, 6).double(), torch.randn(3, 2, 4).double()
    is_padding = torch.arange(5) >= torch.tensor([[5], [2], [1]])
    return attention, values, queries, is_padding


def test_is_the_formula(parts):
    attention, values, queries, is_padding = parts
    contexts, weights = attention(queries, attention.memory(values, is_padding))
    for b, length in enumerate([5, 2, 1]):
        for q in range(2):
            scores = [(queries[b, q] @ attention.key.weight @ values[b, s]) / math.sqrt(4) for s in range(length)]
            expected = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
            assert torch.allclose(weights[b, q, :length], expected)
            assert torch.equal(weights[b, q, length:], torch.zeros(5 - length, dtype=torch.float64))
            assert torch.allclose(contexts[b, q], expected @ values[b, :length])


def test_padding_is_never_seen(parts):
    attention, values, queries, is_padding = parts
    contexts, _ = attention(queries, attention.memory(values, is_padding))
    changed = values.masked_fill(is_padding.unsqueeze(-1), 1e6)
    assert torch.equal(attention(queries, attention.memory(changed, is_padding))[0], contexts)


def test_memory_of_some_sentences(parts):
    attention, values, queries, is_padding = parts
    whole = attention.memory(values, is_padding)
    some = torch.tensor([0, 2])
    contexts, weights = attention(queries[some], whole.select(some))
    expected = attention(queries, whole)
    assert torch.equal(contexts, expected[0][some])
    assert torch.equal(weights, expected[1][some])
