"""A saved model without torch: any plain chain of layers steps as it does with torch, and others say why not."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import g2lstm
from g2lstm import G2LSTM, G2Error, compress, save, stream
from g2lstm.compression import storage
from g2lstm.compression.spec import Spec
from g2lstm.runtime import load
from g2lstm.tasks.lm.model import LanguageModel
from tests.compression.test_saved import Tagger


class Words(nn.Module):
    """Tokens to probabilities, with a tied head and a state that nobody passes."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(40, 24)
        self.lstm = G2LSTM(24, 24, 2, batch_first=True, method="sharpened")
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(24, 40)
        self.out.weight = self.words.weight

    def forward(self, tokens, state=None):
        x, state = self.lstm(self.words(tokens), state)
        return self.out(self.drop(x)).log_softmax(-1), state


class Sensor(nn.Module):
    """Vectors through several kinds of layers to one of five classes."""

    def __init__(self, hard=False):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 10), nn.ReLU())
        self.gru = nn.GRU(10, 16, bias=False)
        self.lstm = G2LSTM(16, 12, eval_gate="hard" if hard else "soft")
        self.head = nn.Linear(12, 5, bias=False)

    def forward(self, x):
        x, _ = self.gru(self.first(x))
        x, _ = self.lstm(torch.tanh(x))
        return functional.softmax(self.head(x[-1]), dim=-1)


CHAINS = {
    "words": (Words, "small"),
    "sensor": (Sensor, "int8"),
    "hard gates": (lambda: Sensor(hard=True), "gates=keep; cell=keep; linear=int8"),
    "bits": (Sensor, "gates=svd:2,int8; cell=int4; plain=levels:15; linear=int4"),
    "a layer": (lambda: nn.LSTM(6, 9, 2), "int8"),
    "a GRU": (lambda: g2lstm.G2GRU(6, 9), "int4"),
    "a language model": (lambda: LanguageModel(30, 12, 12, 2, residual=True), "small"),
}


def inputs_of(model, steps=7):
    generator = torch.Generator().manual_seed(0)
    is_token = isinstance(model, Words | LanguageModel)
    return torch.randint(30, (steps,), generator=generator) if is_token else torch.randn(steps, 6, generator=generator)


@pytest.mark.parametrize("name", CHAINS)
def test_steps_are_those_of_a_stream(name, tmp_path):
    make, spec = CHAINS[name]
    torch.manual_seed(3)
    model = make()
    small = compress(model, spec)
    save(small, tmp_path / "small.safetensors")
    ours, theirs, x = load(tmp_path / "small.safetensors", threads=1), stream(small, threads=1), inputs_of(model)
    expected = theirs.sequence(x)
    found = ours.sequence(x.numpy())
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert expected.std(axis=0).max() > 1e-3  # the state matters
    state = ours.get_state()
    after = ours.step(x[0].numpy())
    ours.reset()
    assert not np.array_equal(ours.step(x[0].numpy()), after)
    ours.set_state(state)
    assert np.array_equal(ours.step(x[0].numpy()), after)


def test_mistakes_are_told(tmp_path):
    save(compress(Sensor(), "int8"), tmp_path / "sensor")
    sensor = load(tmp_path / "sensor")
    with pytest.raises(G2Error, match=r"a step has the shape \(6,\), got \(5,\)"):
        sensor.step(np.zeros(5))
    with pytest.raises(G2Error, match="there are 2 layers with a state, got 1 states"):
        sensor.set_state(sensor.get_state()[:1])
    with pytest.raises(G2Error, match="eval_gate is for runs"):
        load(tmp_path / "sensor", eval_gate="hard")
    save(compress(Words(), "int8"), tmp_path / "words")
    words = load(tmp_path / "words")
    with pytest.raises(G2Error, match="token ids go from 0 to 39, got 40"):
        words.step(40)
    with pytest.raises(G2Error, match="a token id must be an integer, got 0.5"):
        words.step(0.5)


class Sum(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.lstm = nn.LSTM(4, 4, **options)
        self.hidden = None

    def forward(self, x):
        y, self.hidden = self.lstm(x)
        return x + y


class Looping(Sum):
    def forward(self, x):
        for step in x:
            self.lstm(step)
        return x


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 4)

    def forward(self, x, state=None):
        return self.cell(x, state)


class Both(Sum):
    def __init__(self):
        super().__init__(bidirectional=True)

    def forward(self, x):
        return self.lstm(x)[0]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Sum, "its forward is more than a chain of layers: it computes add"),
        (Looping, "its forward is more than a chain of layers"),
        (Cells, "cell: a cell is a loop's"),
        (Both, "lstm: its second direction begins at the end"),
        (Tagger, "norm, BatchNorm1d, is not a layer of a plain chain"),
    ],
)
def test_other_models_say_why_they_need_torch(make, reason, tmp_path):
    small = compress(make(), "int8")
    save(small, tmp_path / "small")
    with pytest.raises(G2Error, match=f"can't be stepped without torch: .*{reason}.*; put it into its model with"):
        load(tmp_path / "small")
    assert getattr(small, "hidden", None) is None  # finding out has left nothing in the model
    assert g2lstm.load_into(make(), tmp_path / "small") is not None


def test_files_without_a_structure(tmp_path):
    content = storage.save({}, {"bias": torch.zeros(2)}, Spec(), {})
    (tmp_path / "old").write_bytes(content)
    with pytest.raises(G2Error, match="can't be stepped without torch: 'it was saved by an older g2lstm'"):
        load(tmp_path / "old")


LSTM = {"kind": "lstm", "name": "", "layers": 1, "bias": True, "gates": "if", "tau": 1.0, "hard": False}


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        ("{", "its structure is not JSON"),
        ("3", "its structure is not one that g2lstm writes"),
        (json.dumps([3]), "its structure is not one that g2lstm writes"),
        (json.dumps([{"kind": ["lstm"]}]), "its structure is not one that g2lstm writes"),
        (json.dumps([{"kind": "exec"}]), "its structure is not one that g2lstm writes"),
        (json.dumps([{"kind": "linear", "weight": 3}]), "its structure is not one that g2lstm writes"),
        (json.dumps([{"kind": "linear", "weight": "a", "bias": None}]), "a must be float32 with 2 dimensions, got not"),
        (json.dumps([{"kind": "linear", "weight": "a"}]), "its structure is not one that g2lstm writes"),
        (json.dumps([{k: v for k, v in LSTM.items() if k != "bias"}]), "its structure is not one that g2lstm writes"),
        (json.dumps([LSTM | {"residual": True}]), "a layer of its structure adds its 3 inputs to 4 outputs"),
        (json.dumps([LSTM | {"layers": 10**9}]), "its structure is not one that g2lstm writes"),
        (json.dumps([LSTM | {"tau": 0.0}]), "its structure is not one that g2lstm writes"),
        (json.dumps([LSTM | {"gates": "rz"}]), "its structure is not one that g2lstm writes"),
        (json.dumps([LSTM | {"layers": 2}]), "weight_ih_l1.i must be float32 with 2 dimensions, got nothing"),
        (json.dumps([LSTM | {"bias": False}]), "it holds 'bias_hh_l0', which this model has no place for; save the"),
        (json.dumps([LSTM, LSTM]), "a layer of its structure reads 3 numbers, and the one before gives 4"),
    ],
)
def test_structures_that_are_wrong(structure, message, tmp_path):
    small, path = compress(nn.LSTM(3, 4), "int8"), tmp_path / "small"
    save(small, path)
    stored = storage.load(path)
    path.write_bytes(storage.save(stored.matrices, stored.others, stored.spec, {"structure": structure}))
    with pytest.raises(G2Error, match=message):
        load(path)
