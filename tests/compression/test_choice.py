"""Whole foreign models: GRUs and cells, specs by pattern, states that a model keeps, and what is refused."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from g2lstm import G2LSTM, G2Error, compress
from g2lstm.compression.encodings import Dense, Grid, Levels
from g2lstm.compression.model import encoded_matrices
from g2lstm.compression.recurrent import CompressedGRU, CompressedGRUCell, CompressedLSTM, CompressedLSTMCell
from g2lstm.compression.targets import find_targets
from g2lstm.nn.cells import G2GRUCell, G2LSTMCell
from g2lstm.nn.gru import G2GRU
from g2lstm.nn.record import evaluating
from tests.compression.twins import twin_of

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
CLOSE = {"rtol": 1e-10, "atol": 1e-12}  # float64, the same numbers: only the order of sums differs


class Speech(nn.Module):
    """A model as others write them: every recurrent layer that torch has, and a convolution."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(5, 6, 1)
        self.encoder = nn.ModuleDict({"gru": nn.GRU(6, 8, 2, bidirectional=True), "lstm": nn.LSTM(16, 8, proj_size=7)})
        self.cells = nn.ModuleList([nn.LSTMCell(7, 6), nn.GRUCell(6, 5, bias=False)])
        self.head = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 3))

    def forward(self, x):
        x = self.conv(x.permute(1, 2, 0)).permute(2, 0, 1)
        x = self.encoder["lstm"](self.encoder["gru"](x)[0])[0]
        state, h, out = None, None, []
        for one in x:
            state = self.cells[0](one, state)
            h = self.cells[1](state[0], h)
            out.append(self.head(h))
        return torch.stack(out)


@pytest.fixture
def speech():
    torch.manual_seed(0)
    return Speech().double().eval()


X = torch.randn(7, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def kinds_of(small):
    return {name: getattr(one, "bits", None) or one.kind for name, one in encoded_matrices(small).items()}


@pytest.mark.parametrize("spec", ["int8", "gates=levels:5; cell=int4", "gates=svd:2; linear=svd:2,int8", "small"])
def test_every_recurrent_layer_and_linear(speech, spec):
    before = copy.deepcopy(speech.state_dict())
    small = compress(speech, spec)
    torch.testing.assert_close(small(X), twin_of(speech, small)(X), **CLOSE)
    assert all(torch.equal(before[name], value) for name, value in speech.state_dict().items())
    assert type(small.conv) is nn.Conv1d
    assert type(small.encoder["lstm"]) is CompressedLSTM
    kinds = [type(one) for one in (small.encoder["gru"], *small.cells)]
    assert kinds == [CompressedGRU, CompressedLSTMCell, CompressedGRUCell]
    other = compress(speech, spec)
    other.load_state_dict(small.state_dict())
    assert torch.equal(copy.deepcopy(other)(X), small(X))
    assert small.float()(X.float()).dtype == torch.float32
    assert (small.encoder["gru"].hidden_size, small.cells[1].input_size) == (8, 6)
    assert "CompressedGRU(\n      6, 8, num_layers=2, method=sigmoid" in repr(small)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d])
def test_convolutions_where_a_pattern_covers_them(kind):
    layer = kind(4, 6, 3, stride=2, padding=1, padding_mode="circular", groups=2, dtype=torch.float64)
    model = nn.ModuleDict({"front": layer, "lstm": nn.LSTM(3, 3, dtype=torch.float64)}).eval()
    assert type(compress(model, "int8")["front"]) is kind
    small, other = (compress(model, {"lstm": "int8", "front": "int4"}) for _ in range(2))
    x = torch.randn(2, 4, *[9] * (2 if kind is nn.Conv2d else 1), dtype=torch.float64)
    torch.testing.assert_close(small["front"](x), twin_of(model, small)["front"](x), **CLOSE)
    assert encoded_matrices(small)["front.weight"].bits == 4
    other.load_state_dict(small.state_dict())
    assert torch.equal(copy.deepcopy(other)["front"](x), small["front"](x))
    assert small["front"].weight.shape == layer.weight.shape
    assert layer.weight.requires_grad
    with pytest.raises(RuntimeError, match="size mismatch for front.weight"):
        model.load_state_dict(small.state_dict(), strict=False)


def test_gates_of_a_gru_are_reset_and_update(speech):
    groups = {name: one.group for name, one in find_targets(speech).matrices.items()}
    assert {groups[f"encoder.gru.weight_hh_l1_reverse.{gate}"] for gate in "rz"} == {"gates"}
    assert groups["encoder.gru.weight_ih_l0.n"] == groups["cells.1.weight_hh.n"] == "cell"
    assert groups["head.2.weight"] == "linear"
    small = compress(speech, "gates=int8")
    values = torch.from_numpy(encoded_matrices(small)["cells.1.weight_ih.z"].decode()).double()
    torch.testing.assert_close(values, speech.cells[1].weight_ih[5:10], rtol=0, atol=0.01)
    assert type(encoded_matrices(small)["cells.1.weight_ih.n"]) is Dense


@pytest.mark.parametrize("kind", [G2GRU, G2LSTMCell, G2GRUCell])
@pytest.mark.parametrize("options", [{}, {"method": "sharpened"}, {"eval_gate": "hard"}], ids=str)
def test_our_own_grus_and_cells(kind, options):
    layer, x = kind(5, 6, dtype=torch.float64, **options).eval(), torch.randn(4, 5, dtype=torch.float64)
    small = compress(layer, "gates=int8; cell=levels:5")
    found, wanted = (one(x, return_gates=True) for one in (small, twin_of(layer, small)))
    torch.testing.assert_close(found[:-1], wanted[:-1], **CLOSE)
    torch.testing.assert_close(found[-1].candidate, wanted[-1].candidate, **CLOSE)
    with evaluating(small, "soft"):
        torch.testing.assert_close(small(x), small.to_dense()(x), **CLOSE)
    assert small.eval_gate == options.get("eval_gate", "soft")


def test_compressed_layers_cannot_be_trained(speech):
    small = compress(speech, "int8").train()
    with pytest.raises(G2Error, match=r"a compressed GRU can't be trained: call model.eval\(\)"):
        small.encoder["gru"](X.new_zeros(2, 1, 6))
    with torch.no_grad():
        small(X)


def test_the_most_specific_pattern_wins(speech):
    spec = {
        "encoder": "int6",
        "encoder.lstm": "gates=int4",  # of which the cell is left to the pattern before
        "encoder.gru.weight_hh_*": "keep",
        "*.weight_ih_l1": "int8",
        "*": "linear=int8",
        "head.2": "keep",
    }
    found = kinds_of(compress(speech, spec))
    assert found == kinds_of(compress(speech, "; ".join(f"{pattern}: {one}" for pattern, one in spec.items())))
    assert found["encoder.gru.weight_ih_l0.r"] == 6
    assert found["encoder.gru.weight_ih_l1.n"] == 8
    assert found["encoder.gru.weight_hh_l1.n"] == "dense"
    assert (found["encoder.lstm.weight_ih_l0.i"], found["encoder.lstm.weight_ih_l0.o"]) == (4, 6)
    assert found["head.0.weight"] == 8
    assert "head.2.weight" not in found
    assert not any(name.startswith("cells") for name in found)
    assert kinds_of(compress(speech, {"cells.0": "int8", "cells.?": "int4"}))["cells.0.weight_ih.i"] == 8
    assert kinds_of(compress(speech, {"cell?.0": "int8", "cells.?": "int4"}))["cells.0.weight_ih.i"] == 4
    assert kinds_of(compress(speech, {"head": "int4", "*.0.weight": "int8"}))["head.0.weight"] == 8
    assert kinds_of(compress(speech, {"cells.0.weight_hh.f": "int8"}))["cells.0.weight_hh.f"] == 8


def test_before_all_patterns_stands_what_holds_elsewhere(speech):
    found = kinds_of(compress(speech, "int8; cells: gates=int4; head: keep"))
    assert (found["cells.0.weight_ih.i"], found["cells.0.weight_ih.g"], found["encoder.gru.weight_ih_l0.r"]) == (
        4,
        8,
        8,
    )
    assert "head.0.weight" not in found


def test_a_pattern_that_matches_nothing(speech):
    before = copy.deepcopy(speech.state_dict())
    with pytest.raises(G2Error, match=r"nothing in Speech has a name like 'encoder.lstn'; did you mean encoder.lstm, "):
        compress(speech, {"encoder.gru": "int8", "encoder.lstn": "int8"})
    with pytest.raises(G2Error, match=r"a name like 'zzzzzz'; its modules: conv, encoder, encoder.gru"):
        compress(speech, "zzzzzz: int8")
    with pytest.raises(G2Error, match=r"has a name like 'gates'; for the group, write gates=..."):
        compress(speech, "gates: int8")
    with pytest.raises(G2Error, match=r"nothing that 'head.1' matches has weights that can be compressed; leave this"):
        compress(speech, {"encoder": "int8", "head.1": "int8"})
    compress(speech, {"encoder": "int8", "head.1": "keep"})
    assert type(speech.encoder["gru"]) is nn.GRU
    assert all(torch.equal(before[name], value) for name, value in speech.state_dict().items())


def test_shared_weights_need_one_spec():
    model = nn.ModuleDict({"words": nn.Embedding(9, 4), "lstm": nn.LSTM(4, 4), "head": nn.Linear(4, 9)})
    model["head"].weight = model["words"].weight
    with pytest.raises(
        G2Error, match=r"words.weight and head.weight are the same weights, but the spec has int8 for one"
    ):
        compress(model, {"words": "int8", "head": "int4"})
    with pytest.raises(G2Error, match="has keep for one and int4 for the other"):
        compress(model, {"words": "keep", "head": "int4"})
    with pytest.raises(G2Error, match="and nothing for the other; give both the same"):
        compress(model, {"words": "int8"})
    assert kinds_of(compress(model, {"words": "int8", "head": "int8"})) == {"words.weight": 8}
    model["again"] = model["lstm"]
    with pytest.raises(G2Error, match=r"lstm.weight_ih_l0 and again.weight_ih_l0 are the same weights"):
        compress(model, {"lstm": "int8", "again": "int4"})
    assert type(model["lstm"]) is nn.LSTM


def test_small_keeps_torchs_own_layers_finer_than_ours():
    model = nn.ModuleDict({"ours": G2LSTM(8, 8), "theirs": nn.LSTM(8, 8), "head": nn.Linear(8, 8)})
    found = encoded_matrices(compress(model, "small"))
    assert type(found["ours.weight_hh_l0.f"]) is Levels
    assert found["ours.weight_hh_l0.g"].bits == 4
    assert all(found[f"theirs.weight_{part}_l0.{gate}"].bits == 8 for part in ("ih", "hh") for gate in "ifgo")
    assert found["head.weight"].bits == 8
    assert type(encoded_matrices(compress(model, "gates=round:0.1"))["theirs.weight_hh_l0.f"]) is Grid


def test_small_follows_the_scale_of_each_row():
    """The paper's absolute steps lose weights far beyond 0.4, or far below 0.1; levels for each row do not."""
    layer, x = G2LSTM(24, 24).eval(), torch.randn(6, 1, 24)
    small = compress(layer, "small")
    with torch.no_grad():
        for weight in (layer.weight_ih_l0, layer.weight_hh_l0):
            weight.mul_(2.0 ** (torch.arange(96) % 7 - 3).unsqueeze(1))
    scaled = compress(layer, "small")
    for name, matrix in encoded_matrices(scaled).items():
        assert np.array_equal(matrix.codes, encoded_matrices(small)[name].codes)
    with pytest.warns(UserWarning, match=r"matrices a lot: weight_ih_l0.i \(\d+%\), .*such as int8") as warned:
        compress(layer, "paper-lm-clip")
    assert len(warned) == 1
    with pytest.warns(UserWarning, match=r"a lot: part.weight_ih_l0.r \(\d+%\), part.weight_ih_l0.z"):
        compress(nn.ModuleDict({"part": nn.GRU(24, 24)}), "gates=levels:3")
    assert scaled(x)[0].isfinite().all()


@pytest.mark.parametrize("spec", ["int4", "small"])
def test_no_warning_where_little_is_lost(spec, recwarn):
    compress(G2LSTM(32, 32), spec)
    compress(nn.GRU(32, 32), spec)
    assert not recwarn.list


class Stateful(nn.Module):
    """Keeps its state between batches, with its history, as many training scripts do."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
        self.state, self.seen = None, {"losses": [], "nested": (nn.Parameter(torch.zeros(2)),)}

    def forward(self, x):
        out, self.state = self.lstm(x, self.state)
        loss = self.head(out).square().mean()
        self.seen["losses"].append(loss)
        return loss


def test_states_with_a_history_do_not_hinder():
    model = Stateful()
    model(torch.randn(5, 2, 3)).backward()
    state = model.state
    small = compress(model, "int8; head: keep")
    assert model.state is state
    assert state[0].grad_fn is not None
    assert torch.equal(small.state[0], state[0])
    assert small.state[0].grad_fn is None
    assert small.seen["losses"][0] is not model.seen["losses"][0]
    model.state = None
    small.state = None
    assert small(torch.randn(5, 2, 3)).isfinite()


def test_a_model_that_cannot_be_copied():
    model = Stateful()
    model.stream = (number for number in range(3))
    with pytest.raises(
        G2Error, match="Stateful can't be copied: .*generator.*; delete the attribute that is in the way"
    ):
        compress(model, "gates=int8")


def test_scripted_models_are_refused():
    lstm = torch.jit.script(nn.LSTM(3, 4))
    with pytest.raises(G2Error, match=r"^the model itself is scripted \(torch.jit\), so none of its layers can be"):
        compress(lstm, "int8")
    with pytest.raises(G2Error, match=r"^part is scripted"):
        compress(nn.ModuleDict({"part": lstm, "lstm": nn.LSTM(3, 4)}), "int8")
