import pytest
import torch
from torch import nn

from g2lstm import G2LSTM, G2Error
from g2lstm.nn.record import evaluating, lstms, set_eval_gate


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.rest = G2LSTM(3, 4), nn.ModuleList([nn.Linear(4, 4), G2LSTM(4, 4, eval_gate="hard")])


def test_eval_gate_reaches_all_layers():
    model = Two().eval()
    assert lstms(model) == [model.first, model.rest[1]]
    x, outputs = torch.randn(5, 2, 3), []
    for gate in ("soft", "tempered", "hard"):
        set_eval_gate(model, gate)
        assert {layer.eval_gate for layer in lstms(model)} == {gate}
        outputs.append(model.first(x)[0])
    assert not torch.allclose(outputs[0], outputs[1])
    assert not torch.allclose(outputs[0], outputs[2])
    with pytest.raises(G2Error, match="eval_gate must be one of 'soft', 'tempered', 'hard', got 'medium'"):
        set_eval_gate(model, "medium")


def test_mode_and_gates_are_put_back_after_an_error():
    model = Two()
    model.rest[0].eval()

    def fail():
        with evaluating(model, "tempered"):
            assert not any(module.training for module in model.modules())
            assert {layer.eval_gate for layer in lstms(model)} == {"tempered"}
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert model.training
    assert not model.rest[0].training, "what was in another mode than the whole is so again"
    assert [layer.eval_gate for layer in lstms(model)] == ["soft", "hard"]
