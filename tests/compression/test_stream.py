"""Sessions against the forward call of the models they were made from, within the bounds that `stream` derives."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from g2lstm import G2LSTM, freeze_
from g2lstm.compression import kernel
from g2lstm.compression.kernel import KernelSession
from g2lstm.compression.model import compress
from g2lstm.compression.recurrent import session_layers
from g2lstm.compression.session import Layer, PlainSession
from g2lstm.compression.stream import TokenSession, can_replace, encoding_of, stream
from g2lstm.errors import G2Error
from g2lstm.nn.kernel import Found
from g2lstm.nn.record import evaluating
from g2lstm.tasks.lm.model import LanguageModel
from tests.compression.stacks import FACTORS, FORMS, exact_steps, matrix

DENSE = {"atol": 3e-6, "rtol": 0}  # float32, sums in another order
SPECS = [
    "gates=round:0.2,clip:0.4; cell=int8; embedding=int8; softmax=int8",
    "gates=round:0.05; cell=int4; embedding=int4; softmax=int4",
    "gates=svd:3; cell=svd:3,int8; embedding=svd:4; softmax=svd:4,int4",
    "cell=int8; embedding=round:0.01",
]


@pytest.fixture(params=["kernel", "plain"], autouse=True)
def session_kind(request, monkeypatch):
    """Every test with the compiled kernel, and as on a machine without one."""
    if request.param == "plain":
        monkeypatch.setattr(kernel, "find", lambda: Found(None, "not compiled: for this test"))
    return KernelSession if request.param == "kernel" else PlainSession


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def forward(model, x, state=None):
    """The model's own output and states, unpacked, without the batch."""
    with torch.no_grad(), evaluating(model):
        out, (h, c) = model(x, state)
    return out.numpy(), h.numpy(), c.numpy()


def language_model(**options):
    model = LanguageModel(23, 8, 12, 3, **options).eval()
    with torch.no_grad():
        model.softmax_bias.normal_()
    return model


def log_probabilities(model, tokens, state=None):
    with torch.no_grad(), evaluating(model):
        features, _, state = model(torch.tensor(tokens).unsqueeze(1), state)
        return model.logits(features[:, 0]).log_softmax(-1).numpy(), state


def check_dense(lstm, x, session_kind):
    session = stream(lstm)
    assert type(session) is session_kind
    out, h, c = forward(lstm, x)
    half = len(x) // 2
    found = [session.sequence(x[:half]), *(session.step(one)[None] for one in x[half:])]
    np.testing.assert_allclose(np.concatenate(found), out, **DENSE)
    for k, (h_found, c_found) in enumerate(session.get_state()):
        np.testing.assert_allclose(h_found, h[k], **DENSE)
        np.testing.assert_allclose(c_found, c[k], **DENSE)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layers", [1, 3])
def test_a_plain_lstm(layers, bias, session_kind):
    check_dense(nn.LSTM(5, 9, layers, bias=bias, batch_first=True), torch.randn(8, 5), session_kind)


@pytest.mark.parametrize("eval_gate", ["soft", "tempered", "hard"])
@pytest.mark.parametrize("method", ["gumbel", "sharpened", "sigmoid"])
@pytest.mark.parametrize("gates", ["if", "ifo"])
def test_every_reading_of_the_gates(method, eval_gate, gates, session_kind):
    lstm = G2LSTM(5, 9, 2, method=method, eval_gate=eval_gate, gates=gates, tau=None if method == "sharpened" else 0.5)
    check_dense(lstm, torch.randn(8, 5), session_kind)


@pytest.mark.parametrize("method", ["gumbel", "sharpened"])
@pytest.mark.parametrize("spec", SPECS)
def test_a_compressed_lstm_is_within_the_bound(spec, method):
    """The session and the model's own way, both against exact arithmetic."""
    lstm = compress(G2LSTM(6, 11, 2, method=method), spec)
    x, state = torch.randn(5, 6), (torch.rand(2, 11) - 0.5, torch.randn(2, 11))
    states = list(zip(*(one.numpy() for one in state), strict=True))
    session = stream(lstm)
    session.set_state(list(zip(*state, strict=True)))
    out, h, c = forward(lstm, x, state)
    for t, exact in enumerate(exact_steps(session_layers(lstm)[0], x.numpy(), states)):
        exact.out.check(session.step(x[t]))
        exact.out.check(out[t])
    for k, found in enumerate(session.get_state()):
        for near, one, own in zip(exact.states[k], found, (h[k], c[k]), strict=True):
            near.check(one)
            near.check(own)


def test_hard_gates_of_a_compressed_lstm():
    lstm = compress(G2LSTM(6, 11, 2, eval_gate="hard", gates="ifo"), "gates=int8; cell=int8")
    x = torch.randn(5, 6)
    np.testing.assert_allclose(stream(lstm).sequence(x), forward(lstm, x)[0], atol=1e-3)
    lstm.eval_gate = "soft"
    assert np.abs(stream(lstm).sequence(x) - forward(lstm, x)[0]).max() < 1e-3


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_a_language_model(residual, tied, session_kind):
    model, tokens = language_model(residual=residual, tied=tied), [3, 22, 0, 7, 7]
    session = stream(model)
    assert isinstance(session, TokenSession)
    assert type(session._session) is session_kind
    assert session.vocabulary_size == 23
    expected, _ = log_probabilities(model, tokens)
    np.testing.assert_allclose([session.step(token) for token in tokens], expected, **DENSE)
    session.reset()
    np.testing.assert_allclose(session.sequence(torch.tensor(tokens)), expected, **DENSE)
    assert session.sequence([]).shape == (0, 23)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("spec", SPECS)
def test_a_compressed_language_model_is_within_the_bound(spec, tied):
    model, tokens = compress(language_model(tied=tied, residual=not tied, method="sharpened"), spec), [3, 22, 0, 7, 7]
    session = stream(model)
    found = session.sequence(tokens)
    own, _ = log_probabilities(model, tokens)
    top = Layer.softmax(
        encoding_of(model.embedding if tied else model.softmax_weight), model.softmax_bias.detach().numpy()
    )
    layers = [
        replace(layer, residual=not tied and layer.inputs == layer.hidden)
        for lstm in model.layers
        for layer in session_layers(lstm)[0]
    ]
    x = model.embedding(torch.tensor(tokens)).detach().numpy()
    zero = [(np.zeros(one.hidden), np.zeros(one.hidden)) for one in layers]
    for t, exact in enumerate(exact_steps(layers, x, zero, softmax=top)):
        exact.out.check(found[t])
        exact.out.check(own[t])


@pytest.mark.parametrize("form", [*FORMS, *(f"low rank {left} {right}" for left, right in FACTORS)])
def test_rows_are_those_of_the_matrix(form):
    one = matrix(form, 9, 100, np.random.default_rng(0))
    numbers = np.array([3, 8, 0, 3])
    found, wanted = one.rows(numbers), one.decode()[numbers]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-5 if "rank" in form else 0, atol=1e-7 if "rank" in form else 0)


def test_only_the_embedding_is_compressed():
    model, tokens = compress(language_model(), "embedding=int8"), [3, 22, 0]
    np.testing.assert_allclose(stream(model).sequence(tokens), log_probabilities(model, tokens)[0], atol=1e-4)


@pytest.mark.parametrize("spec", [None, "small"])
@pytest.mark.parametrize("tied", [True, False])
def test_several_streams_of_a_language_model(tied, spec):
    model = language_model(tied=tied, residual=not tied)
    model = model if spec is None else compress(model, spec)
    tokens = torch.randint(23, (5, 3))
    found = stream(model, batch=3).sequence(tokens)
    for column in range(3):
        np.testing.assert_allclose(found[:, column], stream(model).sequence(tokens[:, column]), atol=1e-3)


def test_states_go_between_model_and_session():
    model, tokens = language_model(), [3, 22, 0, 7, 7, 11]
    _, state = log_probabilities(model, tokens[:3])
    rest, _ = log_probabilities(model, tokens[3:], state)
    session = stream(model)
    session.set_state([(h[0, 0], c[0, 0]) for h, c in state])
    np.testing.assert_allclose(session.sequence(tokens[3:]), rest, **DENSE)
    session.reset()
    session.sequence(tokens[:3])
    back = [tuple(torch.from_numpy(one).view(1, 1, -1) for one in pair) for pair in session.get_state()]
    np.testing.assert_allclose(log_probabilities(model, tokens[3:], back)[0], rest, **DENSE)


def test_the_session_keeps_the_weights_it_was_made_from():
    model, tokens = language_model().train(), [3, 22, 0]
    session = stream(model)
    assert model.training
    expected, _ = log_probabilities(model, tokens)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    np.testing.assert_allclose(session.sequence(tokens), expected, **DENSE)


def test_other_types_and_inputs():
    lstm = nn.LSTM(5, 9).double()
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    session = stream(lstm, threads=1)
    expected = forward(lstm, x)[0]
    for form in (x, x.detach().numpy(), x.tolist()):
        session.reset()
        np.testing.assert_allclose([session.step(one) for one in form], expected, **DENSE)
        session.reset()
        np.testing.assert_allclose(session.sequence(form), expected, **DENSE)
    assert session.step(x[0]).dtype == np.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_changes_nothing(dtype):
    layer = G2LSTM(3, 4, method="sharpened", tau=0.9)
    expected = stream(layer).step(np.ones(3, np.float32))
    torch.set_default_dtype(dtype)
    try:
        found = stream(layer).step(np.ones(3, np.float32))
    finally:
        torch.set_default_dtype(torch.float32)
    assert np.array_equal(found, expected)


def test_a_frozen_language_model():
    model = language_model()
    expected = stream(model).sequence([1, 2, 3])
    frozen = freeze_(model).eval()
    assert np.array_equal(stream(frozen).sequence([1, 2, 3]), expected)
    features, _, _ = frozen(torch.tensor([[1], [2], [3]]))
    logs = frozen.logits(features).log_softmax(-1)[:, 0].detach().numpy()
    np.testing.assert_allclose(logs, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.LSTM(3, 4, bidirectional=True), "a bidirectional layer can't stream: its second direction begins at"),
        (None, r"stream takes a torch.nn.Module, got NoneType; for a run, use load\(run\).stream\(\)"),
        (
            nn.Linear(3, 4),
            "found no recurrent layer .* inside Linear, so it has no state to keep; call the model itself",
        ),
    ],
    ids=["bidirectional", "none", "no layer"],
)
def test_what_cannot_stream_is_told(model, message):
    with pytest.raises(G2Error, match=message):
        stream(model)


def test_compressed_layers_that_cannot_stream_are_told():
    with pytest.raises(G2Error, match="a bidirectional layer can't stream"):
        stream(compress(nn.LSTM(3, 4, bidirectional=True), "gates=int8"))


def test_language_models_that_cannot_stream_and_wrong_tokens_are_told():
    model = language_model()
    model.layers[1].eval_gate = "hard"
    with pytest.raises(G2Error, match="the layers of this model differ in their hard gates; give all the same"):
        stream(model)
    model.layers[0].eval_gate, model.layers[1].gates = "hard", "ifo"
    assert not can_replace(model)
    with pytest.raises(G2Error, match="the same eval_gate and gates"):
        stream(model)
    session = stream(language_model())
    for token in (-1, 23):
        with pytest.raises(G2Error, match=f"token ids go from 0 to 22, got {token}"):
            session.step(token)
        with pytest.raises(G2Error, match=f"token ids go from 0 to 22, got {token}"):
            session.sequence([1, token])
    for token in (1.5, "a", None):
        with pytest.raises(G2Error, match=f"a token id must be an integer, got {token!r}"):
            session.step(token)
