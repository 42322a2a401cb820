"""Streams of any causal model: step by step they give what the model's own forward gives for whole sequences."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from g2lstm import G2LSTM, G2Error, compress, stream
from g2lstm.compression import kernel
from g2lstm.compression.causal import ModelSession, PackedLinear
from g2lstm.compression.modules import CompressedLinear
from g2lstm.compression.session import PlainSession, Session
from g2lstm.nn.cells import G2GRUCell, G2LSTMCell
from g2lstm.nn.gru import G2GRU

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
DENSE = {"rtol": 0, "atol": 2e-6}  # float32, in sums of another order
PACKED = {"rtol": 0, "atol": 1e-3}  # vectors of 16 bits


class Detector(nn.Module):
    """Features in, a probability out, as others write them; with a first state of its own and a normalisation."""

    def __init__(self, batch_first=True):
        super().__init__()
        self.norm, self.lstm = nn.LayerNorm(5), nn.LSTM(5, 8, 2, batch_first=batch_first, dropout=0.2)
        self.gru, self.rnn = nn.GRU(8, 7, batch_first=batch_first), nn.RNN(7, 6, batch_first=batch_first)
        self.narrow = nn.LSTM(6, 6, proj_size=4, batch_first=batch_first)
        self.first = nn.Parameter(torch.randn(1, 1, 7))
        self.head = nn.Linear(4, 3)
        self.batch_axis = 0 if batch_first else 1

    def forward(self, x):
        x, (h, _) = self.lstm(self.norm(x))
        x, last = self.gru(x, self.first.expand(1, x.size(self.batch_axis), 7).contiguous())
        x, _ = self.rnn(x)
        return self.head(self.narrow(x)[0]).sigmoid(), h, last


class First(nn.Module):
    """The outputs of a layer without its states."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Tokens(nn.Module):
    """Token ids in, a dict out; cells in a loop, ours."""

    def __init__(self):
        super().__init__()
        self.words, self.one, self.two = nn.Embedding(11, 5), G2LSTMCell(5, 6), G2GRUCell(6, 7, method="sharpened")
        self.head = nn.Linear(7, 11)

    def forward(self, tokens):
        state, h, out = None, torch.zeros(tokens.size(0), 7), []
        for t in range(tokens.size(1)):
            state = self.one(self.words(tokens[:, t]), state)
            h = self.two(state[0], h)
            out.append(self.head(h))
        return {"logits": torch.stack(out, 1), "last": h, "nothing": None}


class OneStep(nn.Module):
    """A forward that takes one step, and returns the state as well."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(5, 6), nn.Linear(6, 1)

    def forward(self, x, state=None):
        h, c = self.cell(x, state)
        return self.head(h), (h, c)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("spec", [None, "int8", "small"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_model_with_every_layer(batch, batch_first, spec):
    model = Detector(batch_first).eval() if spec is None else compress(Detector(batch_first), spec)
    before, x = copy.deepcopy(model.state_dict()), torch.randn(9, batch, 5)
    with torch.no_grad():
        whole = model(x.transpose(0, 1) if batch_first else x)[0]
    whole = whole.transpose(0, 1) if batch_first else whole
    session = stream(model, batch=batch)
    found = session.sequence(x[:, 0] if batch == 1 else x)
    close = DENSE if spec is None or batch > 1 else PACKED
    np.testing.assert_allclose(found, whole[:, 0] if batch == 1 else whole, **close)
    assert type(found) is np.ndarray
    assert not model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    kept = session.get_state()
    after = session.step(x[0, 0] if batch == 1 else x[0])
    session.reset()
    np.testing.assert_array_equal(session.step(x[0, 0] if batch == 1 else x[0]), found[0])
    session.set_state(kept)
    np.testing.assert_array_equal(session.step(x[0, 0].numpy() if batch == 1 else x[0].tolist()), after)
    leading = (2,) if batch == 1 else (2, 3)
    assert [one.shape for one in kept["lstm"]] == [(*leading, 8)] * 2
    assert [one.shape[-1] for one in kept["narrow"]] == [4, 6]
    assert len(kept["gru"]) == len(kept["rnn"]) == 1


@pytest.mark.parametrize("spec", [None, "int8"])
@pytest.mark.parametrize("batch", [1, 2])
def test_cells_and_token_ids(batch, spec):
    model = Tokens().eval() if spec is None else compress(Tokens(), spec)
    tokens = torch.randint(11, (6, batch))
    session = stream(model, batch=batch, time_axis=1)
    found = session.sequence(tokens[:, 0].tolist() if batch == 1 else tokens)
    with torch.no_grad():
        whole = model(tokens.t())
    logits = whole["logits"].transpose(0, 1)
    np.testing.assert_allclose(found["logits"], logits[:, 0] if batch == 1 else logits, **(PACKED if spec else DENSE))
    np.testing.assert_allclose(found["last"][-1], whole["last"].squeeze(0), **(PACKED if spec else DENSE))
    assert found.keys() == {"logits", "last"}
    assert [one.shape[-1] for one in session.get_state()["one"]] == [6, 6]


def test_a_forward_of_one_step():
    model, x = OneStep().eval(), torch.randn(5, 5)
    session, state = stream(model), None
    for one in x:
        with torch.no_grad():
            wanted, state = model(one[None], state)
        np.testing.assert_allclose(session.step(one), wanted[0], **DENSE)
    np.testing.assert_allclose(session.get_state()["cell"][1], state[1][0], **DENSE)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_read_packed_weights(bias, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(kernel, "available", lambda: False)
    model = nn.Sequential(nn.Linear(6, 9, bias=bias), nn.Tanh(), First(nn.LSTM(9, 8)), nn.Linear(8, 50, bias=bias))
    small, x = compress(model, "int8"), torch.randn(5, 6)
    session = stream(small)
    inner = [one for one in session._model.modules() if type(one) is PackedLinear]
    assert [isinstance(one._session, PlainSession) for one in inner] == [not compiled] * 2
    assert all(isinstance(one, CompressedLinear) for one in inner)
    with torch.no_grad():
        np.testing.assert_allclose(session.sequence(x), small(x[:, None])[:, 0], **PACKED)
        np.testing.assert_array_equal(inner[0](x), small[0](x))  # more than one vector: the layer itself


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, G2LSTM, G2GRU, nn.LSTMCell, nn.GRUCell])
def test_layers_read_packed_weights(kind, compiled, monkeypatch):
    """In the compiled kernel and in NumPy, which are compared with each other in float64 elsewhere."""
    if not compiled:
        monkeypatch.setattr(kernel, "available", lambda: False)
    layer = compress(kind(5, 9), "int8")
    session = stream(nn.ModuleDict({"part": layer})["part"])
    is_layer = not issubclass(kind, nn.RNNCellBase)
    inner = session if is_layer else session._layers[""]._session
    assert isinstance(inner, PlainSession) != compiled
    assert isinstance(session, Session if is_layer else ModelSession)
    x, state, wanted = torch.randn(7, 5), None, []
    with torch.no_grad():
        if is_layer:
            wanted = layer(x)[0]
        else:
            for one in x:
                state = layer(one, state)
                wanted.append(state[0] if isinstance(state, tuple) else state)
            wanted = torch.stack(wanted)
    np.testing.assert_allclose(session.sequence(x), wanted, **PACKED)


@pytest.mark.parametrize("options", [{}, {"method": "sharpened"}, {"eval_gate": "hard"}, {"bias": False}], ids=str)
def test_grus_in_every_reading(options):
    layer, x = G2GRU(6, 21, 2, **options).eval(), torch.randn(12, 6)
    session = stream(layer)
    with torch.no_grad():
        wanted, h = layer(x)
    np.testing.assert_allclose(session.sequence(x), wanted, **DENSE)
    np.testing.assert_allclose([one for (one,) in session.get_state()], h, **DENSE)
    session.set_state([(one,) for one in torch.ones(2, 21)])
    with torch.no_grad():
        np.testing.assert_allclose(session.step(x[0]), layer(x[:1], torch.ones(2, 21))[0][0], **DENSE)
    with pytest.raises(G2Error, match=r"have the shapes \[\(\(21,\),\)"):
        session.set_state([(one, one) for one in torch.ones(2, 21)])


def test_other_types_go_through_the_layer_itself():
    model, x = Detector().double().eval(), torch.randn(4, 5, dtype=torch.float64)
    found = stream(model).sequence(x)
    assert found.dtype == np.float64
    with torch.no_grad():
        np.testing.assert_allclose(found, model(x[None])[0][0], rtol=0, atol=1e-12)


class Stateful(nn.Module):
    """Keeps its own state between calls."""

    def __init__(self):
        super().__init__()
        self.lstm, self.state = nn.LSTM(3, 4), None

    def forward(self, x):
        assert isinstance(self.lstm, nn.LSTM)
        out, self.state = self.lstm(x, self.state)
        self.steps = getattr(self, "steps", 0) + 1
        return out + self.steps


def test_a_model_that_keeps_its_own_state_starts_anew():
    model, x = Stateful(), torch.randn(6, 3)
    session = stream(model)
    first = session.sequence(x)
    session.reset()
    np.testing.assert_array_equal(session.sequence(x), first)
    assert model.state is None
    assert model.training
    model.state = (torch.zeros(1, 20, 4), torch.zeros(1, 20, 4))  # of a batch in training
    with pytest.raises(
        G2Error, match=r"the states of lstm have the shapes \[\(1, 1, 4\), \(1, 1, 4\)\], with the batch"
    ):
        stream(model).step(x[0])


class Buffered(nn.Module):
    """Keeps its state in a buffer, which it overwrites."""

    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(3, 4), nn.Linear(4, 2)
        self.register_buffer("state", torch.randn(1, 1, 4))

    def forward(self, x):
        out, h = self.gru(x, self.state)
        self.state.copy_(h)
        return self.head(out)


@pytest.mark.parametrize("spec", [None, "int8"])
def test_buffers_start_anew(spec):
    model, x = Buffered() if spec is None else compress(Buffered(), spec), torch.randn(6, 3)
    before = model.state.clone()
    session = stream(model)
    first = session.sequence(x)
    session.reset()
    np.testing.assert_array_equal(session.sequence(x), first)
    assert torch.equal(model.state, before)


class Demanding(nn.Module):
    """Asks for states and a number, as many language models do."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4)

    def forward(self, x, states, *, scale):
        out, states = self.lstm(x, states)
        return out * scale, states


def test_further_arguments_reach_forward():
    model, x = Demanding().eval(), torch.randn(6, 3)
    session = stream(model)
    got = np.stack([session.step(one, None, scale=2.0) for one in x])
    np.testing.assert_allclose(got, model(x, None, scale=2.0)[0].detach().numpy(), **DENSE)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'states'") as caught:
        session.step(x[0], scale=2.0)
    assert caught.value.__notes__ == [
        "The session called forward with shape (1, 1, 3) and time_axis=0; "
        "stream(model, time_axis=...) changes it, and step(x, ...) hands further arguments on."
    ]


@pytest.mark.parametrize("module", [nn.Conv1d(3, 3, 3, padding=1), nn.MultiheadAttention(3, 1)])
def test_what_may_read_across_time_is_named(module):
    model = nn.ModuleDict({"front": nn.Conv1d(3, 3, 1), "mix": module, "lstm": nn.LSTM(3, 4)})
    with pytest.warns(UserWarning, match="^if mix reads across time, this stream differs from whole sequences"):
        stream(model)
    stream(model, time_axis=None)  # a step is a window of its own


class Twice(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.lstm, self.how = nn.LSTM(3, 3, batch_first=True), how

    def forward(self, x):
        if self.how == "twice":
            return self.lstm(self.lstm(x)[0])[0]
        if self.how == "long":
            return self.lstm(torch.cat([x, x], 1))[0]
        if self.how == "packed":
            return self.lstm(pack_padded_sequence(x, torch.ones(len(x)), batch_first=True))[0]
        return "text"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("twice", "lstm is called more than once in a step, so it has no single state to keep"),
        ("long", r"lstm gets 2 steps at once, input \(1, 2, 3\); streams take one"),
        ("packed", "lstm gets a PackedSequence, which has no single step"),
        ("text", "the model's forward must return tensors, got str"),
    ],
)
def test_what_a_forward_cannot_do(how, message):
    with pytest.raises(G2Error, match=message):
        stream(Twice(how)).step(torch.randn(3))


def test_what_is_refused():
    model = nn.ModuleDict({"encoder": nn.ModuleDict({"both": nn.GRU(3, 4, bidirectional=True)})})
    for one in (model, compress(model, "int8")):
        with pytest.raises(G2Error, match=r"^encoder.both can't stream: its second direction begins at the end"):
            stream(one)
    for batch in (0, 1.5, True):
        with pytest.raises(G2Error, match=f"the number of streams, must be an integer of at least 1, got {batch}"):
            stream(Detector(), batch=batch)
    with pytest.raises(G2Error, match="time_axis must be 'auto', 0, 1 or None, got 2"):
        stream(Detector(), time_axis=2)
    session = stream(Detector(), batch=2)
    with pytest.raises(G2Error, match=r"a step of 2 streams has the shape \(2, ...\), got \(5,\)"):
        session.step(torch.randn(5))
    with pytest.raises(G2Error, match="a step must be an array or a tensor of numbers, got str"):
        session.step("word")
    with pytest.raises(G2Error, match="a sequence needs at least one step"):
        session.sequence([])
    with pytest.raises(G2Error, match="there is no recurrent layer 'lstn'; the layers: 'lstm', 'gru'"):
        session.set_state({"lstn": ()})
    with pytest.raises(G2Error, match=r"the states of gru have the shapes \[\(1, 2, 7\)\], with the batch, got"):
        session.set_state({"gru": (np.zeros((1, 3, 7)),)})


def test_scripted_models_are_refused():
    with pytest.raises(G2Error, match=r"is scripted \(torch.jit\)"):
        stream(torch.jit.script(nn.LSTM(3, 4)))
