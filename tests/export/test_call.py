"""Anyone's model in ONNX Runtime against torch, at other lengths and batches than the example's."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import g2lstm
from g2lstm.errors import G2Error
from tests.export.sessions import TOLERANCE, open_session, operators, run
from tests.requirements import needs_new_onnx

pytestmark = needs_new_onnx

V, E, H = 23, 6, 9


class Tagger(nn.Module):
    """Hides the states of its layer."""

    def __init__(self, kind=nn.LSTM, **options):
        super().__init__()
        self.embedding = nn.Embedding(V, E)
        self.recurrent = kind(E, H, batch_first=True, **options)
        self.norm = nn.LayerNorm(H * (2 if options.get("bidirectional") else 1))
        self.head = nn.Linear(self.norm.normalized_shape[0], V)

    def forward(self, tokens):
        return self.head(self.norm(self.recurrent(self.embedding(tokens))[0]))


class Continued(nn.Module):
    """Takes and returns its states."""

    def __init__(self, kind=nn.GRU):
        super().__init__()
        self.recurrent, self.head = kind(E, H, num_layers=2), nn.Linear(H, 4)

    def forward(self, x, state=None, *, scale):
        out, state = self.recurrent(x, state)
        return {"scores": self.head(out) * scale, "state": state}


class Classifier(nn.Module):
    """Reads sentences of different lengths."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, last = self.layer(packed)
        padded, _ = pad_packed_sequence(out, batch_first=True, padding_value=-2.0, total_length=x.size(1))
        return padded, last


class Two(nn.Module):
    """Reads two sequences of different lengths, and has a parameter with the name of an input."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.GRU(E, H), nn.LSTM(E, H)
        self.x = nn.Parameter(torch.zeros(H))

    def forward(self, x, y):
        return self.second(y)[0] + self.first(x)[1] + self.x


class Stepping(nn.Module):
    """One step of a cell."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x, state):
        return self.cell(x, state)


class Looping(nn.Module):
    """A loop over a cell, whose first state is its own."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        state, outputs = None, []
        for step in x.unbind(1):
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, 1)


def sharp(model):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return model.eval()


def tokens(batch, steps):
    return torch.randint(V, (batch, steps))


def export(model, path, *arguments, **options):
    made = g2lstm.export_onnx(model, path / "model.onnx", *arguments, **options)
    exec(made.example, {})
    return made, open_session(made.files[0]), json.loads(made.files[-1].read_text())


def names(facts, which):
    return [one["name"] for one in facts["graphs"]["model"][which]]


def close(got, expected):
    np.testing.assert_allclose(got, expected.detach().numpy(), rtol=TOLERANCE, atol=TOLERANCE)


slow = pytest.mark.slow  # what differs from a faster case in one thing that another fast case has
KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "G2LSTM": g2lstm.G2LSTM, "G2GRU": g2lstm.G2GRU}


@pytest.mark.parametrize("kind", ["LSTM", *(pytest.param(kind, marks=slow) for kind in ("GRU", "G2LSTM", "G2GRU"))])
def test_hidden_states_become_inputs_and_outputs(kind, tmp_path):
    model = sharp(Tagger(KINDS[kind], num_layers=2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    _, session, facts = export(model, tmp_path, tokens(1, 4))  # a batch of 1, which stays free all the same
    letters = "hc" if "LSTM" in kind else "h"
    assert names(facts, "inputs") == ["tokens", *(f"recurrent.{letter}0" for letter in letters)]
    assert facts["graphs"]["model"]["inputs"][0]["shape"] == ["batch", "time"]
    assert facts["carried"] == {f"recurrent.{letter}n": f"recurrent.{letter}0" for letter in letters}
    assert kind.removeprefix("G2") in operators(tmp_path / "model.onnx")
    x = tokens(3, 11)
    expected, state = model(x), {f"recurrent.{letter}0": np.zeros((2, 3, H), np.float32) for letter in letters}
    for part in (x[:, :4], x[:, 4:5], x[:, 5:]):  # as it streams in
        got = run(session, tokens=part.numpy(), **state)
        close(got["output"], expected[:, : part.size(1)])
        expected = expected[:, part.size(1) :]
        state = {name: got[f"{name[:-1]}n"] for name in state}
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert "forward" not in vars(model.recurrent)


class Returning(Tagger):
    """Takes states, usually none, and returns them; calls its layer in different ways."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, tokens, state=None):
        x = self.embedding(tokens)
        out, state = self.recurrent(input=x, hx=state) if self.how == "named" else self.recurrent(x, state)
        return out, state, out


@pytest.mark.parametrize("how", ["named", pytest.param("in place", marks=slow)])
def test_states_that_are_none_count_as_hidden_even_if_they_are_returned(how, tmp_path):
    model = sharp(Returning(how))
    _, session, facts = export(model, tmp_path, tokens(2, 3))
    assert names(facts, "inputs") == ["tokens", "recurrent.h0", "recurrent.c0"]
    x, state = tokens(3, 5), (torch.randn(1, 3, H), torch.randn(1, 3, H))
    got = run(session, tokens=x.numpy(), **{"recurrent.h0": state[0].numpy(), "recurrent.c0": state[1].numpy()})
    out, (h, c), _ = model(x, state)
    expected = {
        "output_0": out,
        "output_1_0": h,
        "output_1_1": c,
        "output_2": out,
        "recurrent.hn": h,
        "recurrent.cn": c,
    }
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        close(got[name], values)


def test_states_can_stay_hidden(tmp_path):
    model = sharp(Tagger())
    _, session, facts = export(model, tmp_path, tokens(2, 3), states=False)
    assert names(facts, "inputs") == ["tokens"]
    assert facts["carried"] == {}
    for batch, steps in ((1, 1), (5, 8)):
        x = tokens(batch, steps)
        close(run(session, tokens=x.numpy())["output"], model(x))


def test_a_model_that_reads_both_ways_has_no_states_to_continue_from(tmp_path):
    model = sharp(Tagger(bidirectional=True))
    _, session, facts = export(model, tmp_path, (tokens(2, 3),))
    assert names(facts, "inputs") == ["tokens"]
    x = tokens(3, 7)
    close(run(session, tokens=x.numpy())["output"], model(x))
    with pytest.raises(G2Error, match="recurrent reads in both directions, so the model can't be continued"):
        g2lstm.export_onnx(model, tmp_path / "other.onnx", tokens(2, 3), states=True)


@pytest.mark.parametrize("kind", ["LSTM", pytest.param("G2GRU", marks=slow)])
def test_states_of_a_model_that_takes_them(kind, tmp_path):
    model = sharp(Continued(KINDS[kind]))
    state = torch.zeros(2, 1, H)
    example = {"x": torch.randn(2, 1, E), "state": (state, state) if kind == "LSTM" else state, "scale": 0.5}
    _, session, facts = export(model, tmp_path, example)
    given = ["state_0", "state_1"] if kind == "LSTM" else ["state"]
    assert names(facts, "inputs") == ["x", *given]
    assert names(facts, "outputs") == ["scores", *(f"{name}_next" for name in given)]
    assert facts["carried"] == {f"{name}_next": name for name in given}
    x, states = torch.randn(6, 3, E), [torch.randn(2, 3, H) for _ in given]
    got = run(session, x=x.numpy(), **{name: one.numpy() for name, one in zip(given, states, strict=True)})
    expected = model(x, tuple(states) if kind == "LSTM" else states[0], scale=0.5)
    close(got["scores"], expected["scores"])
    for name, last in zip(given, expected["state"] if kind == "LSTM" else [expected["state"]], strict=True):
        close(got[f"{name}_next"], last)


class Joint(nn.Module):
    """Its state is one tensor, of which h and c are slices."""

    def __init__(self):
        super().__init__()
        self.recurrent = g2lstm.G2LSTM(E, H, eval_gate="hard")

    def forward(self, x, state):
        out, last = self.recurrent(x, (state[..., :H], state[..., H:]))
        return {"out": out, "state": torch.cat(last, -1)}


def test_states_that_are_slices_of_one(tmp_path):
    model = sharp(Joint())
    _, session, facts = export(model, tmp_path, (torch.randn(2, 3, E), torch.zeros(1, 3, 2 * H)))
    assert facts["carried"] == {"state_next": "state"}
    x, state = torch.randn(5, 2, E), torch.randn(1, 2, 2 * H)
    got, expected = run(session, x=x.numpy(), state=state.numpy()), model(x, state)
    close(got["out"], expected["out"])
    close(got["state_next"], expected["state"])


def test_two_lengths(tmp_path):
    model = sharp(Two())
    _, session, facts = export(model, tmp_path, (torch.randn(2, 3, E), torch.randn(4, 3, E)))
    assert [one["shape"][:2] for one in facts["graphs"]["model"]["inputs"][:2]] == [["time", "batch"], ["y_0", "batch"]]
    x, y, zero = torch.randn(7, 2, E), torch.randn(3, 2, E), np.zeros((1, 2, H), np.float32)
    states = dict.fromkeys(names(facts, "inputs")[2:], zero)
    assert list(states) == ["first.h0", "second.h0", "second.c0"]
    close(run(session, x=x.numpy(), y=y.numpy(), **states)["output"], model(x, y))


@pytest.mark.parametrize(
    "layer",
    [
        nn.LSTM(E, H, 2, bidirectional=True),
        pytest.param(nn.GRU(E, H), marks=slow),
        pytest.param(g2lstm.G2LSTM(E, H, eval_gate="hard"), marks=slow),
        pytest.param(g2lstm.G2LSTM(E, H, bidirectional=True, eval_gate="hard"), marks=slow),
    ],
    ids=str,
)
def test_packed_sequences(layer, tmp_path):
    model = sharp(Classifier(layer))
    _, session, _ = export(model, tmp_path, (torch.randn(3, 5, E), torch.tensor([2, 5, 4])), states=False)
    x, lengths = torch.randn(4, 9, E), torch.tensor([1, 9, 3, 3])
    padded, last = model(x, lengths)
    got = list(run(session, x=x.numpy(), lengths=lengths.numpy()).values())
    for ours, theirs in zip((padded, *(last if isinstance(last, tuple) else [last])), got, strict=True):
        close(theirs, ours)


OTHER_CELLS = (nn.GRUCell, g2lstm.G2LSTMCell, g2lstm.G2GRUCell)


@pytest.mark.parametrize("cell", [nn.LSTMCell, *(pytest.param(cell, marks=slow) for cell in OTHER_CELLS)])
def test_cells(cell, tmp_path):
    """A loop over a cell has the example's length, as torch unrolls it; one step of it has none."""
    is_lstm, model = "LSTM" in cell.__name__, sharp(Looping(cell(E, H)))
    _, session, facts = export(model, tmp_path, torch.randn(1, 3, E))
    assert facts["graphs"]["model"]["inputs"][0]["shape"][1:] == [3, E]
    x = torch.randn(5, 3, E)
    close(run(session, x=x.numpy())["output"], model(x))
    state = torch.zeros(1, H)
    step = Stepping(model.cell)
    _, session, facts = export(step, tmp_path, (x[:1, 0], (state, state) if is_lstm else state), force=True)
    state = torch.randn(5, H)
    inputs = dict(zip(names(facts, "inputs"), [x[:, 0], state, state][: 3 if is_lstm else 2], strict=True))
    got = run(session, **{name: one.numpy() for name, one in inputs.items()})
    last = step(x[:, 0], (state, state) if is_lstm else state)
    for theirs, ours in zip(got.values(), last if is_lstm else [last], strict=True):
        close(theirs, ours)


@slow
def test_other_types_and_compiled_models(tmp_path):
    model = sharp(Stepping(nn.GRUCell(E, H))).double().train()
    model.kept = model.cell.weight_hh.sum()  # which deepcopy refuses
    x, state = torch.randn(3, E).double(), torch.randn(3, H).double()
    _, session, _ = export(torch.compile(model), tmp_path, (x[:2], state[:2]))
    assert model.training
    close(run(session, x=x.float().numpy(), state=state.float().numpy())["output"], model(x, state))


SPEC = "gates=int4; cell=int4; embedding=int4; softmax=int4"


@pytest.mark.filterwarnings("ignore:.*lose")
@pytest.mark.parametrize(
    ("kind", "activations"),
    [("LSTM", "float32"), pytest.param("LSTM", "int8", marks=slow), pytest.param("G2GRU", "float32", marks=slow)],
    ids=str,
)
def test_compressed(kind, activations, tmp_path):
    model = g2lstm.compress(sharp(Tagger(KINDS[kind])), SPEC)
    made, session, facts = export(model, tmp_path, tokens(2, 3), activations=activations)
    assert "MatMulNBits" in operators(made.files[0])
    assert not made.expanded
    assert facts["graphs"]["model"]["activations"] == activations
    assert facts["graphs"]["model"]["operators"].endswith("(ONNX Runtime)")
    if activations == "float32":
        x, zero = tokens(4, 6), np.zeros((1, 4, H), np.float32)
        state = dict.fromkeys(names(facts, "inputs")[1:], zero)
        assert state
        close(run(session, tokens=x.numpy(), **state)["output"], model(x))


@pytest.mark.filterwarnings("ignore:.*lose")
def test_compressed_cell(tmp_path):
    model = g2lstm.compress(sharp(Stepping(g2lstm.G2GRUCell(E, H))), SPEC)
    made, session, _ = export(model, tmp_path, (torch.randn(1, E), torch.zeros(1, H)))
    assert "MatMulNBits" in operators(made.files[0])
    x, state = torch.randn(3, E), torch.randn(3, H)
    close(run(session, x=x.numpy(), state=state.numpy())["output"], model(x, state))


class Own(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.layer, self.inner = nn.Linear(E, 2), nn.ModuleDict({"odd": _Odd(forward)})

    def forward(self, x):
        return self.inner["odd"](self.layer(x))


class _Odd(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def forward(self, x):
        return self.compute(x)


class Keeping(nn.Module):
    """Keeps its state between calls."""

    def __init__(self):
        super().__init__()
        self.layer, self.state = nn.GRU(E, H), None

    def forward(self, x):
        out, self.state = self.layer(x, self.state)
        return out


@pytest.mark.parametrize(
    ("model", "example", "message"),
    [
        (
            Keeping(),
            torch.randn(3, 2, E),
            "Keeping returns a different output when it reads the example again",
        ),
        (
            Tagger(),
            None,
            r"to export Tagger, pass an example of what it is called with: export_onnx\(model, path, exam",
        ),
        (Tagger(), (tokens(1, 2), 3), "the example does not fit Tagger.forward: too many positional arguments"),
        (Tagger(), "text", "the example holds no tensor"),
        (Tagger(), torch.randn(2, 3), "Tagger can't read the example: .*indices"),
        (
            Own(lambda x: x if x.sum() > 0 else -x),
            torch.randn(2, E),
            r"torch can't export inner.odd \(_Odd\): Could not",
        ),
        (Own(torch.linalg.eigvals), torch.randn(2, E), "torch can't export .*linalg_eig"),
        (Own(lambda x: torch.special.bessel_j0(x)), torch.randn(2, E), "torch can't export the model: .*bessel_j0"),
    ],
)
def test_what_cannot_be_exported(model, example, message, tmp_path):
    with pytest.raises(G2Error, match=message) as caught:
        g2lstm.export_onnx(model, tmp_path / "new" / "model.onnx", example)
    assert len(str(caught.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_scripted_module(tmp_path):
    scripted = torch.jit.script(nn.Linear(2, 3))
    with pytest.raises(G2Error, match="a scripted module hides its layers; export the model that it was made from"):
        g2lstm.export_onnx(scripted, tmp_path / "model.onnx", torch.zeros(2, 2))


def test_an_existing_file(tmp_path):
    (tmp_path / "model.onnx").write_text("mine")
    with pytest.raises(G2Error, match="model.onnx exists already"):
        g2lstm.export_onnx(Tagger(), tmp_path / "model.onnx", tokens(2, 3))
    assert (tmp_path / "model.onnx").read_text() == "mine"
