"""The compressed layer: it equals the layer with expanded weights, on every path and in every form of call."""

import copy
import pickle
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torch.nn.utils.rnn import pack_sequence

from g2lstm import G2LSTM, G2Error, compress, freeze_, record_gates
from g2lstm.compression import kernel, lstm, thin
from g2lstm.compression.kernel import KernelSession
from g2lstm.compression.matrix import LowRank
from g2lstm.compression.reader import Reader
from g2lstm.nn.kernel import Found
from g2lstm.nn.mode import evaluating
from tests.compression.twins import twin_of
from tests.nn.layers import LENGTHS, SURFACE, B, Case, H, I, T, assert_same, flat, make_input, make_layer

SPECS = [
    "gates=round:0.1,clip:0.3",
    "gates=round:0.1; cell=int8",
    "gates=int4; cell=int4",
    "gates=svd:2",
    "gates=svd:3,int8; cell=svd:2,int4",
    "cell=svd:2",
]
OPTIONS = [
    {"method": "sharpened"},
    {"method": "sharpened", "gates": "ifo"},
    {"eval_gate": "tempered", "tau": 0.5},
    {"eval_gate": "hard"},
    {"eval_gate": "hard", "gates": "ifo"},
]
GATES = ("input", "forget", "candidate", "output")
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

# Float64, the same numbers in both: only the order of sums differs.
CLOSE = {"rtol": 1e-10, "atol": 1e-12}
# Reading packed rounds vectors to 16 bits: each pre-activation is off by at most max|v| / 65278 times the sum of its
# row's |weights|, here 4 / 65278 · 2, and c by about twice that more in each of 6 steps: 1.5e-3 if all errors went one
# way. They do not.
PACKED = {"rtol": 0, "atol": 1e-4}


def float32(case, spec="gates=round:0.1,clip:0.3; cell=int8", **options):
    """A compressed layer in float32, and its input without gradients."""
    small = compress(make_layer(case, torch.float32, **options), spec)
    x, hx, _ = make_input(case, torch.float32)
    return small, x.detach() if isinstance(x, torch.Tensor) else x, hx


def one_sequence(case, x, hx):
    """The same call with the first sequence of the batch only."""
    x = x[:1] if case.layer.get("batch_first") else x[:, :1]
    return x, None if hx is None else tuple(state[:, :1] for state in hx)


def unpacked(small, *call, **options):
    with evaluating(small), torch.no_grad():
        return small(*call, **options)


@pytest.fixture
def reads(monkeypatch):
    """Counts what is read packed."""
    counted, read = [], Reader.read
    monkeypatch.setattr(Reader, "read", lambda *call: counted.append(1) or read(*call))
    return counted


@pytest.mark.parametrize("case", SURFACE, ids=str)
@pytest.mark.parametrize("spec", SPECS)
def test_it_is_the_layer_with_expanded_weights(case, spec):
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
    for name in GATES:
        for a, b in zip(getattr(ours[2], name), getattr(theirs[2], name), strict=True):
            torch.testing.assert_close(a, b, equal_nan=True, **CLOSE)
    small.eval_gate = "soft" if small.eval_gate != "soft" else "tempered"
    twin = twin_of(layer, small)
    twin.eval_gate = small.eval_gate
    assert_same(flat(small(x, hx)), flat(twin(x, hx)), **CLOSE)


@pytest.mark.parametrize("spec", ["gates=svd:2; cell=svd:3,int8", "gates=svd:2"])
def test_low_rank_is_never_multiplied_out(spec, monkeypatch):
    small, x, hx = float32(Case("bidirectional", {"bidirectional": True}), spec)

    def refuse(_):
        raise AssertionError("multiplied out")

    monkeypatch.setattr(LowRank, "dequantize", refuse)
    with torch.no_grad():
        small(x, hx, return_gates=True)
        small(*one_sequence(Case("plain"), x, hx), return_gates=True)
    unpacked(small, x[:, :1])
    with pytest.raises(AssertionError, match="multiplied out"):
        small.to_lstm()


def test_low_rank_takes_two_thin_products(monkeypatch):
    """I = 4 inputs through 2 numbers to 7 units for each of i and f; g and o together."""
    small, x, hx = float32(Case("plain"), "gates=svd:2")
    shapes = []
    monkeypatch.setattr(thin, "product", lambda v, w: shapes.append((len(v), *w.shape)) or linear(v, w))
    unpacked(small, x, hx)
    of_x = [(B, 2, I), (B, H, 2), (B, 2, I), (B, H, 2), (B, 2 * H, I)]
    of_h = [(B, 2, H), (B, H, 2), (B, 2, H), (B, H, 2), (B, 2 * H, H)]
    assert shapes == (of_x + of_h) * T


@pytest.mark.parametrize(
    "case",
    [
        Case("plain"),
        Case("batch_first", {"batch_first": True}),
        Case("two", {"num_layers": 2, "bidirectional": True}),
        Case("no_bias", {"bias": False}, states=False),
    ],
    ids=str,
)
@pytest.mark.parametrize("spec", ["gates=round:0.1,clip:0.3; cell=int8", "gates=svd:3,int8; cell=int4"])
def test_one_sequence_is_read_packed(case, spec, reads):
    small, *call = float32(case, spec)
    call = one_sequence(case, *call)
    expected = unpacked(small, *call, return_gates=True)
    assert not reads
    with torch.no_grad():
        ours = small(*call, return_gates=True)
        assert_same(flat(small(*call)), flat(ours[:2]), rtol=0, atol=0)  # looking at gates changes nothing
    assert len(reads) == 2 * small.num_layers * small.directions
    assert_same(flat(ours[:2]), flat(expected[:2]), **PACKED)
    assert not torch.equal(ours[0], expected[0])
    assert ours[0].shape == expected[0].shape
    for name in GATES:
        for a, b in zip(getattr(ours[2], name), getattr(expected[2], name), strict=True):
            torch.testing.assert_close(a, b, **PACKED)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_read_packed_with_every_reading_of_the_gates(options, reads):
    """Factors in float32, which are not rounded: no hard gate turns."""
    small, *call = float32(Case("plain"), "gates=svd:3; cell=svd:4", **options)
    call = one_sequence(Case("plain"), *call)
    for gate in ("soft", "tempered", "hard", "soft"):  # the packed weights follow
        small.eval_gate = gate
        with torch.no_grad():
            assert_same(flat(small(*call)), flat(unpacked(small, *call)), rtol=0, atol=1e-5)
    assert len(reads) == 4


def test_reading_packed_is_exactly_what_a_session_does():
    small, *call = float32(Case("two", {"num_layers": 2}), method="sharpened")
    x, (h, c) = one_sequence(Case("plain"), *call)
    session = KernelSession(small.session_layers(small.gate_rule()))
    session.set_state([(h[k, 0].detach(), c[k, 0].detach()) for k in range(2)])
    with torch.no_grad():
        out, (h, c) = small(x, (h, c))
    assert np.array_equal(session.sequence(x[:, 0]), out[:, 0])
    assert np.array_equal(session.get_state(), torch.stack([h[:, 0], c[:, 0]], dim=1))


@pytest.mark.parametrize("case", [c for c in SURFACE if "proj_size" not in c.layer], ids=str)
def test_a_few_sequences_are_read_packed(case, reads):
    assert B == lstm.MOST_SEQUENCES
    small, x, hx = float32(case)
    with torch.no_grad():
        assert_same(flat(small(x, hx)), flat(unpacked(small, x, hx)), **PACKED)
    assert reads


def test_what_is_not_read_packed(reads, monkeypatch):
    small, *call = float32(Case("plain"))
    x, hx = one_sequence(Case("plain"), *call)
    with torch.no_grad():
        small(x.expand(-1, lstm.MOST_SEQUENCES + 1, -1))
        for spec in ("gates=svd:2; cell=int8", "gates=int8"):
            float32(Case("plain"), spec)[0](x.expand(-1, 2, -1))
        small.double()(x.double())
        small.float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            small(x, hx)
        small.train()(x, hx)
        small.eval().backend = "reference"
        small(x, hx)
        small.backend = "auto"
        projected, *_ = float32(Case("projection", {"proj_size": 3}))
        projected(x)
    x.requires_grad_()
    out, _ = small(x)
    out.sum().backward()
    assert x.grad.abs().sum() > 0
    with torch.no_grad():
        monkeypatch.setattr(kernel, "find", lambda: Found(None, "not compiled: for this test"))
        small(x)
        assert not reads
        monkeypatch.undo()
        assert small(x)[0].requires_grad is False


def test_packed_weights_follow_the_biases(reads):
    small, x, _ = float32(Case("plain"))
    other, *_ = float32(Case("plain"))
    with torch.no_grad():
        small(x[:, :1])
        other.bias_ih_l0.add_(0.5)
        small.load_state_dict(other.state_dict())
        assert torch.equal(small(x[:, :1])[0], other(x[:, :1])[0])
    assert len(reads) == 3


@pytest.mark.parametrize("made_in", [torch.no_grad, torch.inference_mode])
def test_packed_weights_follow_changes_that_torch_does_not_count(made_in):
    with made_in():
        small, x, _ = float32(Case("plain"))
        small(x[:, :1])
        small.bias_ih_l0.data.add_(0.5)
        packed = small(x[:, :1])[0]
    torch.testing.assert_close(packed, unpacked(small, x[:, :1])[0], **PACKED)


def test_a_batch_of_no_sequences():
    small, x, _ = float32(Case("two", {"num_layers": 2, "bidirectional": True}))
    with torch.no_grad():
        out, (h, c) = small(x[:, :0])
    assert out.shape == (T, 0, 2 * H)
    assert h.shape == c.shape == (4, 0, H)


def test_another_thread_that_stops_evaluating_changes_nothing(reads):
    small, x, _ = float32(Case("plain"))
    entered, leave = threading.Event(), threading.Event()

    def evaluate():
        with evaluating(small):
            entered.set()
            leave.wait()

    thread = threading.Thread(target=evaluate)
    thread.start()
    entered.wait()
    with evaluating(small), torch.no_grad():
        leave.set()
        thread.join()
        small(x[:, :1])
    assert not reads
    with torch.no_grad():
        small(x[:, :1])
    assert len(reads) == 1


def test_threads_take_turns(monkeypatch):
    """Between the state that a thread sets and the steps it takes from there, no other comes in."""
    small, *_ = float32(Case("plain"))
    calls = [(torch.randn(3, 1, I), (torch.randn(1, 1, H), torch.randn(1, 1, H))) for _ in range(4)]
    results, sequence = {}, KernelSession.sequence

    def slow(session, x):
        time.sleep(0.01)
        return sequence(session, x)

    def read(k):
        with torch.no_grad():
            results[k] = small(*calls[k])[0]

    with torch.no_grad():
        expected = [small(*call)[0] for call in calls]
    monkeypatch.setattr(KernelSession, "sequence", slow)
    threads = [threading.Thread(target=read, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(results[k], expected[k]) for k in range(4))


@pytest.mark.parametrize("spec", ["gates=int8", "gates=svd:2"])
def test_it_cannot_be_trained(spec):
    small, x, hx = float32(Case("plain"), spec)
    small.train()
    with pytest.raises(G2Error, match=r"compressed LSTM cannot be trained: call model.eval\(\)"):
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
    # One factor times the other is rounded to float32.
    assert_same(flat(dense(x, hx)), flat(small(x, hx)), rtol=0, atol=1e-6 if "svd" in spec else 1e-12)
    small.eval_gate = "hard"
    with pytest.raises(G2Error, match="evaluates hard gates"):
        small.to_lstm()


def test_it_is_not_frozen():
    model = nn.ModuleDict({"a": G2LSTM(I, H), "b": compress(nn.LSTM(I, H), "gates=int8")})
    with pytest.raises(G2Error, match=r"b is a CompressedLSTM.*its to_lstm\(\) makes new ones"):
        freeze_(model)
    assert type(model["a"]) is G2LSTM


@pytest.mark.parametrize("spec", ["gates=int8", "gates=svd:2"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_copies(spec, copied):
    small, x, hx = float32(Case("two", {"num_layers": 2}), spec)
    with torch.no_grad():
        batch, alone = small(x, hx)[0], small(x[:, :1])[0]
        other = copied(small)
        assert torch.equal(other(x, hx)[0], batch)
        assert torch.equal(other(x[:, :1])[0], alone)
        other.bias_ih_l0.zero_()
    assert small.bias_ih_l0.any()
    assert other.matrices.keys() == small.matrices.keys()


def test_state_dicts_belong_to_their_matrices():
    small, *_ = float32(Case("plain"))
    again, *_ = float32(Case("plain"))
    state = {name: tensor.clone() for name, tensor in small.state_dict().items()}
    assert state.keys() == {"bias_ih_l0", "bias_hh_l0", "_extra_state"}
    again.load_state_dict(state)
    other, *_ = float32(Case("plain"), "gates=round:0.05,clip:0.15; cell=int8")  # the same codes, for all one knows
    with pytest.raises(G2Error, match="saved with other compressed matrices"):
        other.load_state_dict(state)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        small.load_state_dict(make_layer(Case("plain")).state_dict())


def test_types_and_what_is_left_of_the_weights():
    small, x, hx = float32(Case("plain"))
    assert small.weight_ih_l0.shape == (4 * H, I)
    assert small.weight_ih_l0.is_meta
    with pytest.raises(AttributeError, match="weight_ih_l1"):
        small.weight_ih_l1  # noqa: B018
    with pytest.raises(G2Error, match=r"input is torch.float64, but the weights are torch.float32"):
        small(x.double())
    expected = unpacked(small, x, hx)
    small.double()
    wide = small(x.double(), tuple(state.double() for state in hx))
    assert_same(flat(wide), [t.double() for t in flat(expected)], rtol=0, atol=1e-6)
    low = small.bfloat16()(x.bfloat16(), tuple(state.bfloat16() for state in hx))
    assert low[0].dtype == torch.bfloat16
    torch.testing.assert_close(low[0].float(), expected[0], rtol=0, atol=0.05)  # 8 bits of mantissa
    small.float()
    with torch.inference_mode():
        small(x, hx)
    small(x.requires_grad_(), hx)[0].sum().backward()  # what was expanded before serves gradients too


def test_backends():
    small, x, hx = float32(Case("plain"))
    outputs = []
    for backend in ("stock", "native", "reference", "auto"):
        small.backend = backend
        outputs.append(flat(unpacked(small, x, hx)))
    for output in outputs[1:]:
        assert_same(output, outputs[0], rtol=0, atol=1e-6)
    thin, *_ = float32(Case("plain"), "gates=svd:2", backend="native")
    assert thin.backend == "reference"
    for backend in ("stock", "native"):
        with pytest.raises(G2Error, match=f"backend '{backend}' needs whole matrices.*low rank.*'auto' or 'reference'"):
            thin.backend = backend
    with pytest.raises(G2Error, match="backend must be one of"):
        thin.backend = "fast"
    thin.backend = "auto"
    assert thin.backend == "reference"


def test_recorded_gates_and_hooks_of_lstm_calls():
    small, *_ = float32(Case("packed", {"bidirectional": True}), weight_dropout=0.5)
    sequences = pack_sequence([torch.randn(length, I) for length in LENGTHS], enforce_sorted=False)
    with evaluating(small), record_gates(small) as record, torch.no_grad():
        small(sequences)
    [gates] = record[""]
    assert gates.lengths.tolist() == LENGTHS
    expected = unpacked(small, sequences, return_gates=True)[2]
    assert torch.equal(gates.forget[1].nan_to_num(), expected.forget[1].nan_to_num())
    small.flatten_parameters()
    assert small.weight_dropout == 0
