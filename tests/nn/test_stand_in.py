"""Our layers are torch's own to `isinstance`, compile all the same, and are loaded by `torch.load` as it is."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from g2lstm import G2GRU, G2LSTM, G2GRUCell, G2LSTMCell, convert_
from tests.nn.layers import B, H, I, T
from tests.requirements import needs_new_compiler

KINDS = [(G2LSTM, nn.LSTM), (G2GRU, nn.GRU), (G2LSTMCell, nn.LSTMCell), (G2GRUCell, nn.GRUCell)]


@pytest.mark.parametrize(("ours", "theirs"), KINDS)
def test_isinstance(ours, theirs):
    layer = ours(I, H)
    assert type(layer) is ours
    assert layer.__class__.__name__ == ours.__name__
    assert [kind for _, kind in KINDS if isinstance(layer, kind)] == [theirs]
    assert isinstance(layer, ours)
    assert isinstance(layer, nn.RNN | theirs)
    another = layer.__class__(I, H, method="sharpened")
    assert (type(another), another.method) == (ours, "sharpened")
    assert not isinstance(layer, nn.RNN)
    reached = []
    nn.Sequential(layer).apply(lambda module: reached.append(module) if isinstance(module, theirs) else None)
    assert reached == [layer]


class Model(nn.Module):
    """A model that asks what its layer is, as JoeyNMT does."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn, self.head = rnn, nn.Linear(H, 3)

    def forward(self, x):
        out, hidden = self.rnn(x)
        if isinstance(self.rnn, nn.LSTM):
            hidden, _ = hidden
        return self.head(out), hidden


BY_DEFAULT = {("LSTM", True), ("GRU", False)}
COMPILED = [
    pytest.param(kind, training, marks=() if (kind, training) in BY_DEFAULT else pytest.mark.slow)
    for kind in ("LSTM", "GRU")
    for training in (True, False)
]


@pytest.mark.parametrize(("kind", "training"), COMPILED)
@needs_new_compiler
def test_a_model_that_asks_compiles_whole(kind, training):
    model, x = Model({"LSTM": G2LSTM, "GRU": G2GRU}[kind](I, H)).train(training), torch.randn(T, B, I)
    model.rnn.method = "sigmoid"
    torch._dynamo.reset()
    out, hidden = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    if kind == "LSTM" and torch.__version__ >= "2.15":  # whose dynamo looks at the type alone
        hidden, _ = hidden
    torch.testing.assert_close((out, hidden), model(x), rtol=1e-5, atol=1e-6)
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(("kind", "training"), COMPILED)
@needs_new_compiler
def test_cells_compile_whole(kind, training):
    cell = {"LSTM": G2LSTMCell, "GRU": G2GRUCell}[kind](I, H)
    cell.train(training).method = "sigmoid"
    x = torch.randn(B, I)
    torch._dynamo.reset()
    ours = torch.compile(cell, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(ours, cell(x), rtol=1e-5, atol=1e-6)
    (ours if isinstance(ours, torch.Tensor) else ours[0]).sum().backward()
    assert cell.weight_ih.grad is not None


@pytest.mark.parametrize(("ours", "_"), KINDS[:2])
def test_parametrisations_still_work(ours, _):
    layer = nn.utils.parametrizations.weight_norm(ours(I, H), "weight_hh_l0")
    assert layer(torch.randn(T, B, I))[0].shape == (T, B, H)
    assert "ParametrizedG2" in repr(layer)
    twin, x = copy.deepcopy(layer).eval(), torch.randn(T, B, I)
    assert torch.equal(twin(x)[0], layer.eval()(x)[0])


LOAD = """
import sys, torch
from tests.nn.test_stand_in import Model
import g2lstm
g2lstm.G2LSTM, g2lstm.G2GRU, g2lstm.G2LSTMCell
with torch.serialization.safe_globals([Model, torch.nn.Linear, torch.nn.ModuleList]):
    for path in sys.argv[1:]:
        model = torch.load(path, weights_only=True).eval()
        print(type(model.rnn).__name__, float(model(torch.ones(2, 3, 4))[0].detach().double().sum()))
"""


def test_whole_models_are_loaded_without_trust(tmp_path):
    models = [convert_(Model(nn.LSTM(I, H))), Model(G2GRU(I, H))]
    models[0].others = nn.ModuleList([G2LSTMCell(I, H), G2GRUCell(I, H)])
    expected = ""
    for number, model in enumerate(models):
        torch.save(model, tmp_path / str(number))
        total = float(model.eval()(torch.ones(2, 3, 4))[0].detach().double().sum())
        expected += f"{type(model.rnn).__name__} {total}\n"
    command = [sys.executable, "-c", LOAD, *(str(tmp_path / name) for name in "01")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == expected
