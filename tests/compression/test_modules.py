"""Modules with encoded weights: they equal those with decoded weights, on every backend and in every form of call."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from g2lstm import G2LSTM, G2Error, compress, freeze_, record_gates
from g2lstm.compression.encodings import Grid
from g2lstm.compression.modules import CompressedEmbedding, CompressedLinear, EncodedMatrix
from g2lstm.nn.record import evaluating
from tests.compression.stacks import FORMS, matrix
from tests.compression.twins import twin_of
from tests.nn.layers import LENGTHS, SURFACE, Case, H, I, T, assert_same, flat, make_input, make_layer
from tests.requirements import needs_new_compiler

ROWS, COLUMNS = 13, 70
ALL = [*FORMS, "low rank int8 int4", "low rank dense dense"]
SPECS = [
    "gates=round:0.1,clip:0.3",
    "gates=round:0.1; cell=int8",
    "gates=int4; cell=int4",
    "gates=svd:2",
    "gates=svd:3,int8; cell=svd:2,int4",
]
OPTIONS = [
    {"method": "sharpened"},
    {"method": "sharpened", "gates": "ifo"},
    {"eval_gate": "tempered", "tau": 0.5},
    {"eval_gate": "hard"},
    {"eval_gate": "hard", "gates": "ifo"},
]
COPIES = pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"]
)
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
CLOSE = {"rtol": 1e-12, "atol": 1e-14}  # float64, the same numbers


def encoded(form, like=None):
    like = torch.empty(0) if like is None else like
    return EncodedMatrix(matrix(form, ROWS, COLUMNS, np.random.default_rng(0)), like)


def embedding(form, dtype=torch.float32):
    layer = nn.Embedding(ROWS, COLUMNS, padding_idx=3, dtype=dtype)
    return CompressedEmbedding(layer, encoded(form, layer.weight))


def linear(form, bias=True):
    layer = nn.Linear(COLUMNS, ROWS, bias=bias)
    return CompressedLinear(layer, encoded(form, layer.weight))


def float32(case, spec="gates=round:0.1,clip:0.3; cell=int8", **options):
    """A compressed layer in float32, and its input without gradients."""
    small = compress(make_layer(case, torch.float32, **options), spec)
    x, hx, _ = make_input(case, torch.float32)
    return small, x.detach() if isinstance(x, torch.Tensor) else x, hx


# Embeddings, linear layers, softmax weights


@pytest.mark.parametrize("form", ALL)
def test_embeddings_and_linear_layers_use_the_decoded_matrix(form):
    words, layer = embedding(form), linear(form)
    values = torch.from_numpy(words.encoded.encoding.decode())
    for tokens in (torch.tensor([[10, 6, 10], [0, 12, 2]]), torch.tensor(5), torch.zeros(0, 2, dtype=torch.int64)):
        assert torch.equal(words(tokens), nn.functional.embedding(tokens, values))
    x = torch.randn(2, 5, COLUMNS)
    assert torch.equal(layer(x), nn.functional.linear(x, values, layer.bias))
    assert torch.equal(linear(form, bias=False)(x), nn.functional.linear(x, values))
    assert torch.equal(encoded(form)(x), nn.functional.linear(x, values))
    assert (words.num_embeddings, words.embedding_dim, words.padding_idx) == (ROWS, COLUMNS, 3)
    assert (layer.in_features, layer.out_features) == (COLUMNS, ROWS)
    for token in (-1, ROWS):
        with pytest.raises(IndexError):
            words(torch.tensor([token]))


def test_the_matrix_is_decoded_once_and_follows_the_module():
    layer = encoded("int8")
    assert layer.weight is layer.weight
    assert layer.weight.dtype == torch.float32
    assert layer.double().weight.dtype == torch.float64
    assert layer.scales.dtype == torch.float32  # what is packed does not follow
    assert layer(torch.randn(2, COLUMNS).double()).shape == (2, ROWS)
    assert not list(layer.parameters())
    assert embedding("int8", torch.float64)(torch.tensor([1])).dtype == torch.float64
    layer.float()
    with torch.inference_mode():
        layer(torch.randn(2, COLUMNS))
    layer(torch.randn(2, COLUMNS, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@needs_new_compiler
def test_a_layer_that_was_exported_before_its_first_call_still_works(kind):
    small, x = compress(kind(I, H), "int8"), torch.randn(3, 2, I)
    sizes = {0: torch.export.Dim("time", min=2, max=99), 1: torch.export.Dim("batch", min=2, max=64)}
    program = torch.export.export(small, (torch.randn(5, 4, I),), dynamic_shapes=(sizes,))
    torch.testing.assert_close(program.module()(x)[0], small(x)[0])


@COPIES
def test_tied_modules_share_one_matrix_also_in_copies(copied):
    shared = encoded("int8")
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
        layer = embedding("int4")
    assert layer(torch.tensor([1])).device.type == "cpu"
    assert layer.weight.device.type == "cpu"


# State


@pytest.mark.parametrize("form", ALL)
def test_a_state_dict_holds_the_packed_matrix(form):
    one, other = linear(form), linear(form)
    held = {"bias", "weight", "encoded.header", *(f"encoded.{part}" for part in one.encoded.encoding.packed)}
    assert set(one.state_dict()) == held
    with torch.no_grad():
        for buffer in other.buffers():
            buffer.zero_()
    other.load_state_dict(one.state_dict())
    assert torch.equal(other.weight, one.weight)
    assert torch.equal(other.bias, one.bias)


@pytest.mark.parametrize("strict", [True, False])
def test_a_foreign_state_dict_is_refused(strict):
    one, other = linear("int8"), linear("five levels")
    before = one.weight.clone()
    with pytest.raises(G2Error, match=r"this state_dict has weight as .*grid.*, but the model has .*int8"):
        one.load_state_dict(other.state_dict(), strict=strict)
    with pytest.raises(
        G2Error, match="this state_dict has no packed weight, so it does not come from a model compressed"
    ):
        one.load_state_dict(nn.Linear(COLUMNS, ROWS).state_dict(), strict=strict)
    grid = other.encoded.encoding
    finer = CompressedLinear(nn.Linear(COLUMNS, ROWS), EncodedMatrix(Grid(grid.codes, grid.step / 2), torch.empty(0)))
    with pytest.raises(G2Error, match="load it into a model that was compressed like the one it was saved from"):
        finer.load_state_dict(other.state_dict(), strict=strict)
    damaged = one.state_dict() | {"encoded.codes": one.encoded.codes[:-1]}
    with pytest.raises(G2Error, match=r"weight\.codes' must be int8"):
        one.load_state_dict(damaged, strict=strict)
    with pytest.raises(G2Error, match="the packed weight of this state_dict is damaged"):
        one.load_state_dict(one.state_dict() | {"encoded.header": torch.zeros(4, dtype=torch.uint8)}, strict=strict)
    assert torch.equal(one.weight, before)
    small, *_ = float32(Case("plain"))
    with pytest.raises(G2Error, match="no packed weight_ih_l0"):
        small.load_state_dict(make_layer(Case("plain")).state_dict(), strict=strict)


@pytest.mark.parametrize("layer", [nn.LSTM(5, 6), nn.GRU(5, 6), nn.LSTMCell(5, 6), nn.GRUCell(5, 6)])
@pytest.mark.parametrize("strict", [True, False])
def test_a_model_that_is_not_compressed_refuses_packed_tensors(layer, strict):
    """Also with strict=False, where torch passes over tensors that it does not know."""
    model = nn.ModuleDict({"a": layer, "b": nn.Linear(6, 5)})
    state = compress(model, "int8").state_dict()
    for part in ("a.weight_", "b.weight"):
        with pytest.raises(RuntimeError, match=f"size mismatch for {part}"):
            model.load_state_dict({name: one for name, one in state.items() if name.startswith(part[0])}, strict=False)
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict(state, strict=strict)


def test_a_grid_takes_another_range_of_codes():
    """The weights decide about the range: those of a fresh model have another one than those of a trained model."""
    trained, fresh = nn.LSTM(4, 5), nn.LSTM(4, 5)
    with torch.no_grad():
        trained.weight_ih_l0.mul_(3)
    trained, fresh = (compress(one, "gates=round:0.2; cell=svd:2,int8") for one in (trained, fresh))
    assert trained.state_dict()["weight_ih_l0.i.codes"].shape != fresh.state_dict()["weight_ih_l0.i.codes"].shape
    fresh.load_state_dict(trained.state_dict())
    x = torch.randn(3, 2, 4)
    assert torch.equal(fresh(x)[0], trained(x)[0])


def test_a_layer_follows_the_state_that_it_loads():
    """Both had other weights, in codes of the same range."""
    x = torch.randn(T, 2, I)
    layers = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        layers.append(compress(G2LSTM(I, H), "gates=int8; cell=int4"))
    one, other = layers
    before = one(x)[0]
    one.load_state_dict(other.state_dict())
    assert torch.equal(one(x)[0], other(x)[0])
    assert not torch.equal(one(x)[0], before)


# LSTM layers


@pytest.mark.parametrize(
    ("case", "spec"),
    [
        pytest.param(case, spec, id=f"{case}-{spec}", marks=() if (k + n) % 3 == 0 else pytest.mark.slow)
        for k, case in enumerate(SURFACE)
        for n, spec in enumerate(SPECS)
    ],
)
def test_it_is_the_layer_with_decoded_weights(case, spec):
    layer = make_layer(case)
    small = compress(layer, spec)
    x, hx, _ = make_input(case)
    assert_same(flat(small(x, hx)), flat(twin_of(layer, small)(x, hx)), **CLOSE)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("spec", ["gates=int8", "gates=svd:3,int8"])
def test_every_reading_of_the_gates(options, spec):
    case = Case("two", {"num_layers": 2, "bidirectional": True}, packed=True)
    layer = make_layer(case, **options)
    small = compress(layer, spec)
    x, hx, _ = make_input(case)
    ours, theirs = (one(x, hx, return_gates=True) for one in (small, twin_of(layer, small)))
    assert_same(flat(ours[:2]), flat(theirs[:2]), **CLOSE)
    for name in ("input", "forget", "candidate", "output"):
        for a, b in zip(getattr(ours[2], name), getattr(theirs[2], name), strict=True):
            torch.testing.assert_close(a, b, equal_nan=True, **CLOSE)
    small.eval_gate = "soft" if small.eval_gate != "soft" else "tempered"
    twin = twin_of(layer, small)
    twin.eval_gate = small.eval_gate
    assert_same(flat(small(x, hx)), flat(twin(x, hx)), **CLOSE)


@pytest.mark.parametrize("backend", ["stock", "native", "reference", "auto"])
@pytest.mark.parametrize("spec", ["gates=int8", "gates=svd:2"])
def test_backends(spec, backend):
    layer = make_layer(Case("plain"), torch.float32)
    small, (x, hx, _) = compress(layer, spec), make_input(Case("plain"), torch.float32)
    twin = twin_of(layer, small)
    small.backend = twin.backend = backend
    with evaluating(small), torch.no_grad():
        assert_same(flat(small(x, hx)), flat(twin(x, hx)), rtol=0, atol=1e-7)
    with pytest.raises(G2Error, match="backend must be one of"):
        small.backend = "fast"


def test_how_a_text_is_cut_into_batches_changes_no_more_than_rounding():
    small, x, _ = float32(Case("plain"))
    with torch.no_grad():
        together, alone = small(x)[0], [small(x[:, b : b + 1])[0] for b in range(x.size(1))]
    torch.testing.assert_close(torch.cat(alone, dim=1), together, rtol=0, atol=1e-6)
    assert small(x[:, :0])[0].shape == (T, 0, H)


@pytest.mark.parametrize("spec", ["gates=int8", "gates=svd:2"])
def test_it_cannot_be_trained(spec):
    small, x, hx = float32(Case("plain"), spec)
    small.train()
    with pytest.raises(G2Error, match=r"compressed LSTM can't be trained: call model.eval\(\)"):
        small(x, hx)
    with evaluating(small, "tempered"):
        tempered = small(x, hx)[0]
    assert small.training
    with torch.no_grad():
        sampled = [small(x, hx)[0] for _ in range(2)]
    assert not torch.equal(*sampled)  # noise
    assert not torch.equal(sampled[0], tempered)
    assert not any(p.requires_grad for p in small.parameters())


@pytest.mark.parametrize("options", [{}, *OPTIONS[:3]], ids=str)
@pytest.mark.parametrize("spec", ["gates=round:0.1; cell=int4", "gates=svd:2"])
def test_to_lstm(options, spec):
    case = Case("all", {"num_layers": 2, "bidirectional": True, "proj_size": 3, "dropout": 0.1})
    small = compress(make_layer(case, **options), spec)
    x, hx, _ = make_input(case)
    dense = small.to_lstm()
    assert type(dense) is nn.LSTM
    assert dense.dropout == 0.1
    assert all(p.requires_grad for p in dense.parameters())
    assert_same(flat(dense(x, hx)), flat(small(x, hx)), rtol=0, atol=1e-12)
    before = small(x, hx)[0]
    with torch.no_grad():
        dense.weight_ih_l0.zero_()
    assert torch.equal(small(x, hx)[0], before)
    small.eval_gate = "hard"
    with pytest.raises(G2Error, match="evaluates hard gates"):
        small.to_lstm()


def test_it_is_not_frozen():
    model = nn.ModuleDict({"a": G2LSTM(I, H), "b": compress(nn.LSTM(I, H), "gates=int8")})
    with pytest.raises(G2Error, match=r"b is a CompressedLSTM.*its to_dense\(\)"):
        freeze_(model)
    assert type(model["a"]) is G2LSTM


@COPIES
@pytest.mark.parametrize("spec", ["gates=int8", "gates=svd:2"])
def test_copies(spec, copied):
    small, x, hx = float32(Case("two", {"num_layers": 2}), spec)
    with torch.no_grad():
        batch = small(x, hx)[0]
        other = copied(small)
        assert torch.equal(other(x, hx)[0], batch)
        other.bias_ih_l0.zero_()
    assert small.bias_ih_l0.any()


def test_types():
    small, x, hx = float32(Case("plain"))
    with pytest.raises(G2Error, match=r"input is torch.float64, but the weights are torch.float32"):
        small(x.double())
    expected = small(x, hx)
    small.double()
    wide = small(x.double(), tuple(state.double() for state in hx))
    assert_same(flat(wide), [t.double() for t in flat(expected)], rtol=0, atol=1e-6)
    low = small.bfloat16()(x.bfloat16(), tuple(state.bfloat16() for state in hx))
    assert low[0].dtype == torch.bfloat16
    torch.testing.assert_close(low[0].float(), expected[0], rtol=0, atol=0.05)  # 8 bits of mantissa
    small.float()
    with torch.inference_mode():
        small(x, hx)
    small(x.requires_grad_(), hx)[0].sum().backward()  # what was decoded before serves gradients too


def test_recorded_gates():
    small, *_ = float32(Case("packed", {"bidirectional": True}), weight_dropout=0.5)
    sequences = pack_sequence([torch.randn(length, I) for length in LENGTHS], enforce_sorted=False)
    with record_gates(small) as record, torch.no_grad():
        small(sequences)
    [gates] = record[""]
    assert gates.lengths.tolist() == LENGTHS
    expected = small(sequences, return_gates=True)[2]
    assert torch.equal(gates.forget[1].nan_to_num(), expected.forget[1].nan_to_num())
    small.flatten_parameters()


def test_what_is_printed():
    assert "CompressedLinear(\n  (encoded): EncodedMatrix(13, 70, int4)" in repr(linear("int4"))
    assert "CompressedLSTM(\n  4, 7, num_layers=1, method=gumbel, eval_gate=soft" in repr(float32(Case("plain"))[0])


@needs_new_compiler
def test_torch_export_leaves_a_new_model_as_it_was():
    small, x = compress(G2LSTM(I, H), "int8"), torch.randn(T, 4, I)
    sizes = {0: torch.export.Dim("time", min=2, max=99), 1: torch.export.Dim("batch", min=2, max=64)}
    program = torch.export.export(small, (x,), dynamic_shapes=(sizes,))
    longer = torch.randn(T + 3, 2, I)
    assert type(small(longer)[0]) is torch.Tensor
    torch.testing.assert_close(program.module()(longer)[0], small(longer)[0])
