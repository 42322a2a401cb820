"""Gates that change over the course of training."""

import pytest
import torch

import g2lstm
from g2lstm import G2Error, GateSchedule


def model_of(**options):
    return torch.nn.Sequential(g2lstm.G2LSTM(3, 4, **options), g2lstm.G2GRU(4, 5, **options))


def test_layers_are_plain_until_the_start_and_have_the_method_from_then_on():
    schedule = GateSchedule("binary", start=0.5, noise_rate=(0.4, 0.0), tau=(1.0, 0.5))
    model = model_of(method="gumbel", tau=0.7, weight_dropout=0.25)
    for share in (0.0, 0.25, 0.5):
        assert schedule.apply_(model, share) is False
        assert {(layer.method, layer.eval_gate, layer.tau) for layer in model} == {("sigmoid", "soft", 1.0)}
    for share, rate, tau in ((0.5 + 1e-12, 0.4, 1.0), (0.75, 0.2, 0.75), (1.0, 0.0, 0.5)):
        assert schedule.apply_(model, share) is True
        assert {(layer.method, layer.eval_gate) for layer in model} == {("binary", "hard")}
        assert [layer.noise_rate for layer in model] == pytest.approx([rate, rate])
        assert [layer.tau for layer in model] == pytest.approx([tau, tau])
    assert {layer.weight_dropout for layer in model} == {0.25}  # nothing else changes


def test_plain_layers_compute_what_torch_computes():
    layer = g2lstm.G2LSTM(3, 4, method="binary")
    x = torch.randn(5, 2, 3)
    GateSchedule(start=0.5).apply_(layer, 0.0)
    torch.testing.assert_close(layer(x)[0], layer.to_lstm()(x)[0])
    GateSchedule(start=0.5, soft_rate=0.0).apply_(layer, 0.6)
    gates = layer(x, return_gates=True)[2]
    assert set(gates.input[0].unique().tolist()) <= {0.0, 1.0}


def test_binary_gates_harden_one_by_one():
    model = model_of()
    for share, rate in ((0.0, 1.0), (0.25, 0.75), (1.0, 0.0)):
        assert GateSchedule().apply_(model, share) is True
        assert [(layer.method, layer.soft_rate) for layer in model] == [("binary", rate)] * 2
    GateSchedule(start=0.5, soft_rate=(0.8, 0.4)).apply_(model, 0.75)
    assert [layer.soft_rate for layer in model] == pytest.approx([0.6, 0.6])
    with pytest.raises(G2Error, match=r"soft_rate is a probability and must lie in \[0, 1\], got 1.5"):
        GateSchedule(soft_rate=1.5)


def test_options_that_are_given_win_over_those_of_the_method():
    layer = g2lstm.G2LSTM(3, 4)
    GateSchedule("binary", start=0.0, eval_gate="soft").apply_(layer, 0.0)
    assert (layer.method, layer.eval_gate, layer.tau, layer.noise_rate) == ("binary", "soft", 0.5, 0.0)
    GateSchedule("gumbel").apply_(layer, 0.0)
    assert (layer.method, layer.eval_gate, layer.tau, layer.noise_rate) == ("gumbel", "soft", 0.9, 0.2)
    GateSchedule("sharpened", start=0.0).apply_(layer, 0.3)
    assert (layer.method, layer.eval_gate, layer.tau) == ("sharpened", "soft", 0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "sigmoid"}, "a schedule with the method 'sigmoid' changes nothing; choose 'binary' or 'gumbel'"),
        ({"method": "hard"}, "method must be one of 'gumbel', 'binary'"),
        ({"start": 1.0}, "the start of a schedule is a share of the training, at least 0 and below 1, got 1.0"),
        ({"start": float("nan")}, "at least 0 and below 1, got nan"),
        ({"noise_rate": (0.2, 1.5)}, r"noise_rate is a probability and must lie in \[0, 1\], got 1.5"),
        ({"tau": 0.0}, "tau, the temperature, must be a finite number of at least 1e-06"),
        ({"eval_gate": "binary"}, "eval_gate must be one of 'soft', 'tempered', 'hard'"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(options, message):
    with pytest.raises(G2Error, match=message):
        GateSchedule(**options)


def test_wrong_models_and_shares_are_refused():
    with pytest.raises(G2Error, match=r"found no layer of g2lstm inside Linear; call g2lstm.convert_ first"):
        GateSchedule().apply_(torch.nn.Linear(2, 2), 0.0)
    with pytest.raises(G2Error, match=r"lies between 0 and 1, got 1.5"):
        GateSchedule().apply_(model_of(), 1.5)
    with pytest.raises(G2Error, match=r"torch's own layers have no binary gates.*pass freeze=False"):
        GateSchedule("binary").check_frozen(True)
    GateSchedule("binary").check_frozen(False)
    GateSchedule("binary", eval_gate="soft").check_frozen(True)
