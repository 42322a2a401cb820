"""LSTM layers by themselves, dense and compressed, in ONNX Runtime against torch."""

import numpy as np
import pytest
import torch
from torch import nn

import g2lstm
from g2lstm.compression.model import compress
from g2lstm.errors import G2Error
from g2lstm.export.onnx import export_onnx
from g2lstm.nn.lstm import GatedLSTM
from tests.export.sessions import TOLERANCE, open_session, operators, run
from tests.nn.layers import SURFACE, Case
from tests.requirements import needs_new_onnx

pytestmark = needs_new_onnx

I, H = 4, 7
slow = pytest.mark.slow  # what differs from faster cases in nothing that one of them does not have
ALL_AT_ONCE = {"num_layers": 2, "bidirectional": True, "batch_first": True, "bias": False}
PLAIN = [
    Case("all_at_once", ALL_AT_ONCE),
    *(
        case if case.name == "projection" else pytest.param(case, marks=slow)
        for case in SURFACE
        if case.states and not case.packed and not case.unbatched
    ),
]
SPECS = {
    "low rank": "gates=svd:3; cell=svd:4",
    "low rank int8": "gates=svd:3,int8",
    "int8": "gates=int8; cell=int8",
    "int4": "gates=int4; cell=int4",
    "five levels": "gates=round:0.1,clip:0.2",
    "mixed": "gates=round:0.1,clip:0.2; cell=svd:2,int4",
}


def small(kind=g2lstm.G2LSTM, **options):
    torch.manual_seed(0)
    layer = kind(I, H, **options).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(2)
    return layer


@pytest.fixture
def agrees(tmp_path):
    """Exports a layer and compares it at sizes that the export's own check does not have."""

    def compare(layer, **options):
        path = tmp_path / "layer.onnx"
        made = export_onnx(layer, path, force=True, **options)
        session, states = open_session(path), layer.num_layers * (2 if layer.bidirectional else 1)
        for steps, batch in ((3, 2), (9, 1), (1, 4)):
            x = torch.randn((batch, steps, I) if layer.batch_first else (steps, batch, I))
            state = {"h": torch.rand(states, batch, layer.proj_size or H) * 2 - 1, "c": torch.randn(states, batch, H)}
            if not isinstance(layer, nn.LSTM | GatedLSTM):
                del state["c"]
            got = run(session, input=x.numpy(), **{name: one.numpy() for name, one in state.items()})
            with g2lstm.nn.record.evaluating(layer), torch.no_grad():
                out, last = layer(x, tuple(state.values()) if len(state) == 2 else state["h"])
            last = last if len(state) == 2 else [last]
            for name, value in {"output": out, **{f"{k}_next": v for k, v in zip(state, last, strict=True)}}.items():
                np.testing.assert_allclose(got[name], value.numpy(), rtol=TOLERANCE, atol=TOLERANCE)
        return made, operators(path)

    return compare


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_dense(agrees, case):
    _, used = agrees(small(**case.layer))
    assert ("LSTM" in used) == ("proj_size" not in case.layer)


@pytest.mark.parametrize(
    ("kind", "options", "operator"),
    [
        pytest.param(nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}, "LSTM", marks=slow),
        (nn.GRU, ALL_AT_ONCE, "GRU"),
        pytest.param(nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True}, "GRU", marks=slow),
        pytest.param(nn.GRU, {"bias": False}, "GRU", marks=slow),
        pytest.param(g2lstm.G2GRU, {"num_layers": 2, "method": "sharpened"}, "GRU", marks=slow),
        (g2lstm.G2GRU, {"bidirectional": True, "method": "binary"}, "Scan"),
    ],
)
def test_other_layers(agrees, kind, options, operator):
    _, used = agrees(small(kind, **options))
    assert operator in used


@pytest.mark.parametrize(
    "options",
    [
        {"method": "sharpened", "gates": "ifo"},
        pytest.param({"method": "sigmoid"}, marks=slow),
        pytest.param({"method": "gumbel", "tau": 0.5, "eval_gate": "tempered"}, marks=slow),
        {"method": "gumbel", "eval_gate": "hard", "gates": "ifo"},
        pytest.param({"method": "binary"}, marks=slow),
        pytest.param({"method": "binary", "eval_gate": "soft"}, marks=slow),
        pytest.param({"method": "sharpened", "eval_gate": "hard"}, marks=slow),
    ],
)
def test_methods_and_gates(agrees, options):
    """The first unit's gates are at 0, where a hard gate is open."""
    layer = small(**options)
    is_hard = layer.eval_gate == "hard"
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter[::H] = 0
    made, used = agrees(layer)
    assert ("GreaterOrEqual" in used) == is_hard
    c = np.ones((1, 2, H), np.float32)
    got = run(open_session(made.files[0]), input=np.ones((3, 2, I), np.float32), h=np.zeros_like(c), c=c)["c_next"]
    np.testing.assert_array_equal(got[:, :, 0], 1 if is_hard else np.full((1, 2), 0.5**3, np.float32))


@pytest.mark.parametrize(
    ("spec", "layer"),
    [
        pytest.param("low rank", {"method": "sharpened"}, marks=slow),
        pytest.param("low rank int8", {"bias": False, "batch_first": True}, marks=slow),
        ("int8", {"method": "sharpened", "bidirectional": True, "num_layers": 2}),
        pytest.param("int4", {"bidirectional": True}, marks=slow),
        pytest.param("five levels", {"method": "sharpened", "bias": False, "batch_first": True}, marks=slow),
        pytest.param("mixed", {"num_layers": 2}, marks=slow),
        ("mixed", {"bias": False, "batch_first": True, "tau": 0.4, "eval_gate": "tempered", "gates": "ifo"}),
        pytest.param("mixed", {"tau": 0.4, "eval_gate": "hard", "gates": "ifo"}, marks=slow),
    ],
)
@pytest.mark.filterwarnings("ignore:become float32")
def test_compressed(agrees, spec, layer):
    made, used = agrees(compress(small(**layer), SPECS[spec]))
    assert ("MatMulNBits" in used) == (spec in ("int4", "five levels", "mixed"))
    assert bool(made.expanded) == ("int8" in spec)
    assert ("LSTM" in used) == (spec == "int8")
    assert "DequantizeLinear" not in used  # ONNX Runtime would make int8 activations of it


def test_gates_can_be_chosen(agrees, tmp_path):
    layer = small(tau=0.3)
    made = export_onnx(layer, tmp_path / "layer.onnx", eval_gate="tempered")
    assert layer.eval_gate == "soft"
    layer.eval_gate = "tempered"
    x, zero = torch.randn(5, 2, I), torch.zeros(1, 2, H)
    got = run(open_session(made.files[0]), input=x.numpy(), h=zero.numpy(), c=zero.numpy())
    np.testing.assert_allclose(got["output"], layer(x)[0].detach(), rtol=TOLERANCE, atol=TOLERANCE)


def test_training_mode_and_other_types_do_not_matter(tmp_path):
    layer = small(dropout=0.5, num_layers=2).double().train()
    path = export_onnx(layer, tmp_path / "layer.onnx").files[0]
    assert layer.training
    assert layer.weight_ih_l0.dtype == torch.float64
    x, zero = torch.randn(5, 2, I).double(), torch.zeros(2, 2, H)
    got = run(open_session(path), input=x.float().numpy(), h=zero.numpy(), c=zero.numpy())
    np.testing.assert_allclose(got["output"], layer.eval()(x)[0].detach(), rtol=TOLERANCE, atol=TOLERANCE)


def test_int8_activations(tmp_path):
    layer = compress(small(), "gates=int8; cell=int8")
    made = export_onnx(layer, tmp_path / "layer.onnx", activations="int8")
    assert "MatMulNBits" in operators(made.files[0])
    assert not made.expanded
    assert 1e-5 < made.difference < made.tolerance < 0.5


def test_int8_activations_with_hard_gates(tmp_path):
    layer = compress(small(eval_gate="hard"), "gates=int8; cell=int8")
    with pytest.raises(G2Error, match="int8 activations would flip hard gates"):
        export_onnx(layer, tmp_path / "layer.onnx", activations="int8")
    assert not list(tmp_path.iterdir())


class Own(nn.LSTM):
    """May compute anything."""


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Own(2, 3), "can't export this layer: Own is a subclass of LSTM"),
        (nn.Sequential(nn.LSTM(2, 3)), "to export Sequential, pass an example of what it is called with"),
        ("model", "only a torch.nn.Module or a trained model can be exported, got str"),
        (torch.nn.utils.parametrizations.weight_norm(nn.LSTM(2, 3), "weight_hh_l0"), "can't export this layer"),
    ],
)
def test_what_cannot_be_exported(tmp_path, model, message):
    with pytest.raises(G2Error, match=message):
        export_onnx(model, tmp_path / "layer.onnx")
    assert not list(tmp_path.iterdir())
