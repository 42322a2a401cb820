"""Exports in C: what they compute is what the session computes."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import g2lstm
from g2lstm.compression.causal import ModelSession
from tests.export.c.build import SANITIZED, STRICT, Stream, compiler, run_self_test
from tests.export.c.models import Cells, Detector, mixed


def close(found, wanted, tolerance):
    return np.abs(found - wanted) <= tolerance * (1 + np.abs(wanted))


def test_every_encoding_in_one_model(tmp_path):
    model = mixed()
    made = g2lstm.export_c(model, tmp_path / "mixed.c")
    x = torch.randn(200, 7).numpy()
    wanted = ModelSession(model, threads=1).sequence(x)
    assert close(Stream(made.files[1], 5).sequence(x), wanted, made.tolerance).all()
    assert made.tolerance < 2e-3


def test_the_self_test_is_strict_and_can_fail(tmp_path):
    model = g2lstm.compress(nn.LSTM(5, 6).eval(), "int8")
    made = g2lstm.export_c(model, tmp_path / "one.c")
    said = run_self_test(made.files[1], [*STRICT, *SANITIZED])
    assert re.fullmatch(r"one: 16 steps, largest difference \S+, \S+ allowed: passed\n", said)
    source = made.files[1].read_text()
    broken = source.replace("open_gates(a + BAND, hard >= 1);", "open_gates(a + BAND, 1);")
    assert broken != source
    made.files[1].write_text(broken)
    with pytest.raises(AssertionError, match="FAILED"):
        run_self_test(made.files[1], ["-O1"])


def test_a_model_as_others_write_it(tmp_path):
    """Normalisation, activations, a state that starts at a learnt value, the states of a layer, a softmax."""
    model = Detector().eval()
    made = g2lstm.export_c(model, tmp_path / "detector.c")
    x = torch.randn(50, 13).numpy()
    session, stream = ModelSession(model, threads=1), Stream(made.files[1], 4)
    wanted = session.sequence(x)
    assert close(stream.sequence(x), wanted, made.tolerance).all()
    stream.reset()
    assert close(stream.sequence(x[:3]), wanted[:3], made.tolerance).all()
    header = made.files[0].read_text()
    assert "#define DETECTOR_INPUTS 13\n#define DETECTOR_OUTPUTS 4\n" in header
    assert f"weights      {made.sizes.weights:>12,} bytes" in header


def test_cells_whose_states_the_model_takes_and_returns(tmp_path):
    model, states = Cells().eval(), (torch.zeros(1, 16), torch.zeros(1, 16), torch.zeros(1, 16))
    made = g2lstm.export_c(model, tmp_path / "tags.c", example=(0, states), compiler=compiler())
    assert made.checked is not None
    assert made.checked.startswith("tags: 16 steps, largest difference 0.0e+00")
    assert "int tags_step(tags_state *state, int32_t token, int32_t *out);" in made.files[0].read_text()
    assert made.sizes.state == 3 * 16 * 4


def test_a_token_outside_the_vocabulary_changes_nothing(tmp_path):
    model = nn.Sequential(nn.Embedding(12, 8), nn.LSTM(8, 8))
    model[1].register_forward_hook(lambda module, inputs, output: output[0])
    made = g2lstm.export_c(model.eval(), tmp_path / "tokens.c")
    stream = Stream(made.files[1], 8)
    first = stream.sequence([3, 11])
    stream.reset()
    assert (stream.step(3) == first[0]).all()
    for token in (-1, 12, 2**31 - 1):
        with pytest.raises(AssertionError):
            stream.step(token)
    assert (stream.step(11) == first[1]).all()


@pytest.mark.parametrize("gate", ["hard", pytest.param("tempered", marks=pytest.mark.slow)])
def test_gates(tmp_path, gate):
    model = g2lstm.G2LSTM(6, 16, 2, gates="ifo").eval()
    made = g2lstm.export_c(model, tmp_path / "gates.c", eval_gate=gate, compiler=compiler())
    assert made.checked is not None
    assert model.eval_gate == "soft"
    assert ("s->c1, s->work, 2, free)" in made.files[1].read_text()) == (gate == "hard")


class Broken(nn.Module):
    """A model with something in front of its LSTM."""

    def __init__(self, front):
        super().__init__()
        self.front, self.lstm = front, nn.LSTM(4, 4)

    def forward(self, x):
        return self.lstm(self.front(x))[0]


class Named(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


NOT_IN_C = {
    "cumsum": (lambda x: x.cumsum(-1), "front can't become C: cumsum is not among the operations that can"),
    "flip": (lambda x: x.flip(-1), "front can't become C: flip is not among"),
    "alpha": (lambda x: torch.add(x, x, alpha=2), "front can't become C: it multiplies by alpha (add)"),
    "outer": (lambda x: (x.unsqueeze(-1) * x.unsqueeze(-2)).sum(-1), "it combines vectors of different lengths (mul)"),
    "part": (lambda x: x.view(1, 1, 2, 2).softmax(-1).flatten(2), "it works on a part of the vector (softmax)"),
    "order": (lambda x: x.view(1, 1, 2, 2).transpose(2, 3).flatten(2), "it changes the order of elements (transpose)"),
    "every second": (lambda x: torch.cat([x[..., ::2], x[..., ::2]], -1), "that are not neighbours (slice)"),
    "weights": (lambda x: x @ x.transpose(1, 2) * x, "only a vector times a constant matrix is possible (matmul)"),
    "length": (lambda x: x.repeat(1, 1, 1).expand(1, 1, 4), "repeat is not among"),
}


@pytest.mark.parametrize(("function", "message"), NOT_IN_C.values(), ids=NOT_IN_C)
def test_operations_that_are_not_in_c(tmp_path, function, message):
    with pytest.raises(g2lstm.G2Error) as error:
        g2lstm.export_c(Broken(Named(function)), tmp_path / "no.c")
    assert message in str(error.value)
    assert not list(tmp_path.iterdir())


def test_models_that_are_not_in_c(tmp_path):
    def refused(model, message, **options):
        with pytest.raises(g2lstm.G2Error, match=re.escape(message)):
            g2lstm.export_c(model, tmp_path / "no.c", **options)
        assert not list(tmp_path.iterdir())

    refused(nn.LSTM(3, 4, bidirectional=True), "this layer can't stream: its second direction begins at the end")
    two_ways = nn.Sequential(nn.Linear(3, 3), nn.GRU(3, 4, bidirectional=True))
    refused(two_ways, "1 can't stream: its second direction begins at the end")
    refused(nn.Sequential(nn.Linear(3, 3)), "found no recurrent layer")
    refused("model", "only a torch.nn.Module or a trained model can be exported, got str")
    refused(nn.LSTM(3, 4), "torch's own layers have soft gates, not 'hard' ones", eval_gate="hard")
    refused(g2lstm.G2LSTM(3, 4), "eval_gate must be one of", eval_gate="open")
    refused(Broken(nn.Linear(7, 4)), "can't be traced with an input of shape (1, 1, 9)", example=torch.zeros(9))
    broken = nn.LSTM(3, 4)
    with torch.no_grad():
        broken.weight_hh_l0[0, 0] = torch.nan
    refused(broken, "layer holds numbers that are not finite")
    refused(nn.LSTM(3, 4), "the model reads 3 numbers per step, but the example has 7", example=torch.zeros(7))
    large = nn.GRU(3, 4)
    with torch.no_grad():
        large.weight_hh_l0 *= 1e30
    with np.errstate(over="ignore"):
        refused(g2lstm.compress(large, "int8"), "the weights are too large for float32")
    refused(nn.LSTM(3, 4), "the compiler '/bin/no-such' can't be run: No such file", compiler="/bin/no-such")
    refused(nn.LSTM(3, 4), "false can't compile the export, and says: nothing", compiler="false")


class After(nn.Module):
    """Tokens in; something that happens to the outputs of all steps."""

    def __init__(self, function):
        super().__init__()
        self.words, self.lstm, self.function = nn.Embedding(9, 4), nn.LSTM(4, 5), function

    def forward(self, tokens):
        return self.function(self.lstm(self.words(tokens))[0])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda y: y - y[:1], "the model mixes steps: outputs of a sequence and of its steps one by one differ by"),
        (lambda y: torch.cat([y[1:], y[:1]]), "the model mixes steps"),
        (lambda y: y + torch.rand(5), "gives different outputs each time; export one that draws no random numbers"),
    ],
)
def test_what_steps_cannot_show_is_refused(tmp_path, function, message):
    with pytest.raises(g2lstm.G2Error, match=message):
        g2lstm.export_c(After(function), tmp_path / "no.c")
    assert not list(tmp_path.iterdir())


def test_low_rank_where_an_embedding_is_not(tmp_path):
    """No function is left without a use, which would be an error with -Wall -Werror."""
    made = g2lstm.export_c(g2lstm.compress(After(torch.tanh), "gates=svd:2"), tmp_path / "low.c")
    assert "passed" in run_self_test(made.files[1], STRICT)


def test_names_of_headers_are_refused(tmp_path):
    with pytest.raises(g2lstm.G2Error, match=r"math.h is a header of C itself; choose another name than math.c"):
        g2lstm.export_c(nn.LSTM(3, 4), tmp_path / "math.c")


@pytest.mark.parametrize(
    "name", ["1st.c", "a-b.c", "model.h", "model", "_a.c", ".c", "ü.c", "a b.c", "a;b.c", "a\nb.c"]
)
def test_names_that_are_no_identifiers(tmp_path, name):
    with pytest.raises(g2lstm.G2Error, match="must be a C identifier that ends in .c, got"):
        g2lstm.export_c(nn.LSTM(3, 4), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_existing_files_stay_unless_forced(tmp_path):
    (tmp_path / "model_test.c").write_text("mine")
    with pytest.raises(g2lstm.G2Error, match=r"model_test.c exists already; choose another name"):
        g2lstm.export_c(nn.LSTM(3, 4), tmp_path / "model.c")
    assert [one.name for one in tmp_path.iterdir()] == ["model_test.c"]
    assert (tmp_path / "model_test.c").read_text() == "mine"
    g2lstm.export_c(nn.LSTM(3, 4), tmp_path / "model.c", force=True)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["model.c", "model.h", "model_test.c"]


def test_the_same_model_gives_the_same_files(tmp_path):
    model = g2lstm.compress(nn.GRU(5, 6).eval(), "int8")
    first, second = (g2lstm.export_c(model, tmp_path / one / "model.c").files for one in "ab")
    assert [one.read_bytes() for one in first] == [one.read_bytes() for one in second]
