"""The session in numpy against `torch.nn.LSTM`, and what every session refuses."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from g2lstm import G2LSTM
from g2lstm.compression.encodings import Dense, LowRank
from g2lstm.compression.kernel import KernelSession
from g2lstm.compression.session import Layer, PlainSession, Term
from g2lstm.errors import G2Error

SESSIONS = [PlainSession, KernelSession]


def layers_of(lstm):
    """Each gate's matrices by themselves; those of W_x of the first gate as factors of full rank."""
    layers = []
    for k in range(lstm.num_layers):
        w_x, w_h, b_x, b_h = (p.detach().float().numpy() for p in lstm.all_weights[k])
        hidden = len(w_x) // 4
        terms = [Term(Dense(rows), "h", gate) for gate, rows in enumerate(np.split(w_h, 4))]
        terms.append(Term(LowRank(Dense(np.eye(hidden, dtype=np.float32)), Dense(w_x[:hidden] * 2)), "x", factor=0.5))
        terms += [Term(Dense(rows), "x", gate) for gate, rows in enumerate(np.split(w_x, 4)) if gate]
        layers.append(Layer(w_x.shape[1], tuple(terms), b_x + b_h))
    return layers


def test_it_is_an_lstm():
    lstm = nn.LSTM(5, 7, num_layers=2)
    x, h, c = torch.randn(6, 5), torch.randn(2, 7), torch.randn(2, 7)
    wanted, (h_last, c_last) = lstm.double()(x.double(), (h.double(), c.double()))
    for session, bound in [
        (PlainSession(layers_of(lstm), dtype=np.float64), 1e-6),  # the weights went through float32
        (PlainSession(layers_of(lstm)), 1e-5),
        (KernelSession(layers_of(lstm)), 1e-5),
    ]:
        session.set_state(list(zip(h, c, strict=True)))
        out = [session.sequence(x[:2]), *(session.step(one)[None] for one in x[2:])]
        np.testing.assert_allclose(np.concatenate(out), wanted.detach(), atol=bound)
        for k, (ours_h, ours_c) in enumerate(session.get_state()):
            np.testing.assert_allclose(ours_h, h_last[k].detach(), atol=bound)
            np.testing.assert_allclose(ours_c, c_last[k].detach(), atol=bound)


def test_the_plain_session_keeps_low_rank_thin(monkeypatch):
    """Eight matrices of 20 x 20, each as 20 x 2 and 2 x 20, and nothing else."""

    def refuse(_):
        raise AssertionError("multiplied out")

    monkeypatch.setattr(LowRank, "decode", refuse)
    thin = LowRank(Dense(np.zeros((20, 2), np.float32)), Dense(np.zeros((2, 20), np.float32)))
    terms = tuple(Term(thin, source, gate) for source in ("x", "h") for gate in range(4))
    session = PlainSession([Layer(20, terms, np.zeros(80, np.float32))])
    [layer] = session._layers
    assert sum(factor.size for _, _, factors in layer.products for factor in factors) == 8 * 2 * 40
    assert not session.step(np.ones(20)).any()


@pytest.mark.parametrize("gates", ["if", "ifo"])
@pytest.mark.parametrize("kind", SESSIONS)
def test_hard_gates_are_those_of_the_layer(kind, gates):
    layer = G2LSTM(4, 6, gates=gates, eval_gate="hard").eval()
    x = torch.randn(9, 4)
    session = kind(layers_of(layer), hard=gates)
    np.testing.assert_allclose(session.sequence(x), layer(x)[0].detach(), atol=1e-5)


@pytest.mark.parametrize("kind", SESSIONS)
def test_wrong_shapes_are_named(kind):
    session = kind(layers_of(nn.LSTM(5, 7, num_layers=2)))
    for x in (np.zeros(4), np.zeros((1, 5)), 1.0):
        with pytest.raises(G2Error, match=r"a step takes a vector of shape \(5,\), got"):
            session.step(x)
    for x in (np.zeros(5), np.zeros((5, 4)), np.zeros((1, 1, 5))):
        with pytest.raises(G2Error, match=r"a sequence has the shape \(T, 5\), got"):
            session.sequence(x)
    for states in ([], [(np.zeros(7), np.zeros(7))], [(np.zeros(7), np.zeros(6))] * 2):
        with pytest.raises(G2Error, match="the states h and c of the layers have the shapes"):
            session.set_state(states)


@pytest.mark.parametrize("kind", SESSIONS)
def test_layers_that_do_not_fit_each_other_are_refused(kind):
    first, second = layers_of(nn.LSTM(5, 7, num_layers=2))
    with pytest.raises(G2Error, match="at least one layer"):
        kind([])
    with pytest.raises(G2Error, match="a layer of 5 inputs can't read a layer of 7 units"):
        kind([second, first])
    with pytest.raises(G2Error, match="hard gates must be one of .* got 'fi'"):
        kind([first], hard="fi")
    top = Layer.softmax(Dense(torch.zeros(3, 6).numpy()), np.zeros(3, np.float32))
    with pytest.raises(G2Error, match="a softmax of 6 inputs can't read a layer of 7 units"):
        kind([first], softmax=top)


def test_a_softmax_checks_itself():
    matrix, bias = Dense(torch.zeros(3, 7).numpy()), np.zeros(3, np.float32)
    for wrong in (bias.astype(np.float64), bias[None]):
        with pytest.raises(G2Error, match=r"the bias of a layer must be float32 \(V,\)"):
            Layer.softmax(matrix, wrong)
    with pytest.raises(G2Error, match=r"must have the shape \(2, 7\), got \(3, 7\)"):
        Layer.softmax(matrix, bias[:2])


@pytest.mark.parametrize("kind", SESSIONS)
def test_a_softmax_is_on_top(kind):
    lstm = nn.LSTM(5, 7)
    weight, bias, x = torch.randn(11, 7), torch.randn(11) + 200, torch.randn(4, 5)  # exp(200) is too large for float32
    wanted = (lstm(x)[0] @ weight.T + bias).log_softmax(-1).detach()
    dense = Dense(weight.numpy())
    for matrix in (dense, LowRank(dense, Dense(np.eye(7, dtype=np.float32)))):
        session = kind(layers_of(lstm), softmax=Layer.softmax(matrix, bias.numpy()))
        assert (session.inputs, session.units, session.outputs) == (5, [7], 11)
        np.testing.assert_allclose(session.sequence(x), wanted, atol=1e-4)
        session.reset()
        np.testing.assert_allclose(session.step(x[0]), wanted[0], atol=1e-4)


def test_layers_check_themselves():
    bias, square = np.zeros(12, np.float32), Dense(torch.zeros(3, 3).numpy())
    for wrong in (bias[:11], bias.astype(np.float64), bias[None]):
        with pytest.raises(G2Error, match="the bias of a layer must be float32"):
            Layer(3, (), wrong)
    for inputs, wrong in ((0, bias), (2**24, bias), (3, bias[:0])):
        with pytest.raises(G2Error, match="a layer has 1 to 16777215 inputs and units"):
            Layer(inputs, (), wrong)
    for term in (
        Term(square, "h", gate=4),
        Term(square, "h", gate=-1),
        Term(square, "x"),
        Term(Dense(torch.zeros(4, 3).numpy()), "h"),
        Term(Dense(torch.zeros(9, 3).numpy()), "h", gate=2),
    ):
        with pytest.raises(G2Error, match=r"that reads . must have the shape \(3, .\), got \(., 3\) of gate"):
            Layer(2, (term,), bias)
    with pytest.raises(G2Error, match="a residual layer has as many inputs as units, got 2 and 3"):
        Layer(2, (), bias, residual=True)
    with pytest.raises(G2Error, match="source must be 'x' or 'h', got 'c'"):
        Layer(3, (Term(square, "c"),), bias)
    with pytest.raises(G2Error, match="factor must be finite, got nan"):
        Layer(3, (Term(square, "x", factor=float("nan")),), bias)


def test_sessions_and_encodings_work_without_torch():
    """A runtime without torch reads compressed weights with NumPy and the kernel."""
    code = """
import sys
sys.modules["torch"] = None  # importing it fails
import numpy as np
from g2lstm.compression.encodings import FORMS, Integers
from g2lstm.compression.kernel import open_session
from g2lstm.compression.session import Layer, Term
from g2lstm.compression.encodings import Entry
matrix = Integers(np.ones((3, 3), np.int8), np.ones((3, 1), np.float16), 4, 32)
again = Entry("w", matrix.describe()).unpack(matrix.packed)
layer = Layer(3, (Term(again, "x"),), np.zeros(12, np.float32))
print(type(open_session([layer])).__name__, open_session([layer]).step(np.ones(3)).shape)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("KernelSession (3,)\n", "")
