"""Compressed embeddings, linear layers and softmax weights, and that tied ones are one."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from g2lstm.compression.matrix import Dense, GroupInt4, LowRank
from g2lstm.compression.table import CompressedEmbedding, CompressedLinear, CompressedTable, Table
from g2lstm.errors import G2Error
from tests.compression.stacks import FORMS, matrix

ROWS, COLUMNS = 13, 70
ALL = [*FORMS, "low rank int8 int4", "low rank dense dense"]


def table(form):
    return Table(matrix(form, ROWS, COLUMNS, np.random.default_rng(0)))


def embedding(form, dtype=torch.float32):
    return CompressedEmbedding(nn.Embedding(ROWS, COLUMNS, padding_idx=3, dtype=dtype), table(form))


def linear(form, bias=True):
    return CompressedLinear(nn.Linear(COLUMNS, ROWS, bias=bias), table(form))


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("tokens", [[[10, 6, 10], [0, 12, 2]], [12, 0, 12], 5], ids=str)
def test_lookup_expands_only_the_rows_asked_for(form, tokens):
    layer, tokens = embedding(form), torch.tensor(tokens)
    rows = layer(tokens)
    assert rows.shape == (*tokens.shape, COLUMNS)
    assert set(layer.table._expanded) <= {"right"}
    # Of low rank, the product of one row is summed in another order than that of all.
    torch.testing.assert_close(rows, layer.matrix.dequantize()[tokens], rtol=0, atol=1e-7 if "rank" in form else 0)
    assert torch.equal(layer(tokens.int()), rows)


def test_odd_lookups():
    layer = embedding("int4")
    assert layer(torch.zeros(0, 2, dtype=torch.int64)).shape == (0, 2, COLUMNS)
    for token in (-1, ROWS):
        with pytest.raises(IndexError):
            layer(torch.tensor([token]))
    assert (layer.num_embeddings, layer.embedding_dim, layer.padding_idx) == (ROWS, COLUMNS, 3)


@pytest.mark.parametrize("form", ALL)
def test_linear_is_the_product_with_the_expanded_matrix(form):
    layer, x = linear(form), torch.randn(2, 5, COLUMNS)
    expected = nn.functional.linear(x, layer.matrix.dequantize(), layer.bias)
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-6)
    bare = linear(form, bias=False)
    torch.testing.assert_close(bare(x), expected - layer.bias, rtol=1e-5, atol=1e-6)
    assert (layer.in_features, layer.out_features) == (COLUMNS, ROWS)


def test_low_rank_is_never_multiplied_out(monkeypatch):
    def refuse(_):
        raise AssertionError("multiplied out")

    monkeypatch.setattr(LowRank, "dequantize", refuse)
    embedding("low rank int8 int8")(torch.tensor([1, 2]))
    layer = linear("low rank int8 int8")
    layer(torch.randn(3, COLUMNS))
    features, weight = layer.factors(torch.randn(3, COLUMNS))
    assert features.shape == (3, 11)
    assert weight.shape == (ROWS, 11)
    with pytest.raises(AssertionError, match="multiplied out"):
        layer.weight  # noqa: B018


def test_what_was_multiplied_out_for_somebody_is_not_kept():
    layer = linear("low rank int8 int8")
    torch.testing.assert_close(layer.weight, layer.matrix.dequantize())
    layer(torch.randn(3, COLUMNS))
    assert layer.table._expanded.keys() == {"left", "right"}


def test_the_dense_matrix_is_expanded_once_and_follows_the_module():
    layer = CompressedTable(table("int8"), torch.empty(0))
    assert layer.weight is layer.weight
    assert layer.weight.dtype == torch.float32
    assert layer.double().weight.dtype == torch.float64
    assert layer(torch.randn(2, COLUMNS).double()).shape == (2, ROWS)
    assert not list(layer.parameters())
    assert embedding("int8", torch.float64)(torch.tensor([1])).dtype == torch.float64
    layer.float()
    with torch.inference_mode():
        layer(torch.randn(2, COLUMNS))
    layer(torch.randn(2, COLUMNS, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_tied_modules_share_one_matrix_also_in_copies(copied):
    shared = table("int8")
    model = nn.ModuleList(
        [
            CompressedEmbedding(nn.Embedding(ROWS, COLUMNS), shared),
            CompressedLinear(nn.Linear(COLUMNS, ROWS), shared),
        ]
    )
    assert model[0].weight is model[1].weight
    other = copied(model)
    assert other[0].weight is other[1].weight
    assert other[0].weight is not model[0].weight
    assert torch.equal(other[0].weight, model[0].weight)


def test_skeletons_on_the_meta_device():
    with torch.device("meta"):
        layer = CompressedEmbedding(nn.Embedding(ROWS, COLUMNS), table("int4"))
    assert layer(torch.tensor([1])).device.type == "cpu"
    assert layer.weight.device.type == "cpu"


def test_state_dicts_belong_to_their_matrix():
    one, same, other = linear("int8"), linear("int8"), linear("five levels")
    assert one.state_dict().keys() == {"bias", "_extra_state"}
    same.load_state_dict(one.state_dict())
    assert torch.equal(same.bias, one.bias)
    with pytest.raises(G2Error, match=r"saved with other .* no state_dict holds; .* as compression.storage does"):
        other.load_state_dict(one.state_dict())
    grid = other.matrix
    finer = CompressedLinear(nn.Linear(COLUMNS, ROWS), Table(type(grid)(grid.codes, grid.step / 2)))
    with pytest.raises(G2Error, match="saved with other compressed matrices"):
        finer.load_state_dict(other.state_dict())


def test_what_is_printed():
    assert repr(linear("int4")) == "CompressedLinear(13, 70, GroupInt4)"
    assert isinstance(linear("int4").matrix, GroupInt4)
    assert isinstance(linear("dense").matrix, Dense)
