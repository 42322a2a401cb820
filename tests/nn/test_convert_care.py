"""What conversion must not lose or change: hooks, attributes, weights that others use, layers it does not know."""

import pytest
import torch
from torch import nn

from g2lstm import G2LSTM, G2Error, compress, convert_, freeze_, record_gates
from tests.nn.layers import B, H, I, T


def tied(first, second):
    for name, parameter in first.named_parameters():
        setattr(second, name, parameter)
    return nn.ModuleList([first, second]).eval()


def test_hooks_move_along_and_can_be_removed():
    model, seen = nn.Sequential(nn.LSTM(I, H)), []
    model[0].register_forward_hook(lambda *_, **__: seen.append("after"), with_kwargs=True)
    model[0].register_full_backward_hook(lambda *_: seen.append("backward"))
    before = model[0].register_forward_pre_hook(lambda *_: seen.append("before"))
    for change in (convert_, freeze_):
        seen.clear()
        change(model)(torch.randn(T, B, I, requires_grad=True))[0].sum().backward()
        assert seen == ["before", "after", "backward"]
    before.remove()
    seen.clear()
    model(torch.randn(T, B, I))
    assert seen == ["after"]


def test_attributes_move_along_and_layers_with_parts_of_their_own_are_left():
    model = nn.ModuleDict({"plain": nn.LSTM(I, H), "own": nn.LSTM(I, H)})
    model["plain"].purpose = "tagging"
    model["own"].register_buffer("steps", torch.zeros(1))
    with pytest.warns(UserWarning, match="leaves own alone: it holds 'steps'"):
        convert_(model)
    assert model["plain"].purpose == "tagging"
    assert type(model["own"]) is nn.LSTM


def test_parametrised_layers_stay_when_frozen():
    normed = nn.utils.parametrizations.weight_norm(G2LSTM(I, H), "weight_hh_l0")
    model = nn.ModuleDict({"a": G2LSTM(I, H), "b": normed})
    with pytest.warns(UserWarning, match="freeze_ leaves b alone"):
        freeze_(model)
    assert type(model["a"]) is nn.LSTM
    assert model["b"] is normed
    with pytest.raises(G2Error, match="cannot be turned into"):
        normed.to_lstm()


def test_weights_that_others_use_are_not_scaled():
    model = nn.ModuleDict({"lstm": nn.LSTM(I, I), "linear": nn.Linear(I, 4 * I)})
    model["linear"].weight = model["lstm"].weight_ih_l0
    before = model["linear"].weight.detach().clone()
    with pytest.raises(G2Error, match="are also linear's weight"):
        convert_(model, method="sharpened")
    assert torch.equal(model["linear"].weight, before)
    assert type(model["lstm"]) is nn.LSTM
    assert type(convert_(model)["lstm"]) is G2LSTM


def test_tied_layers_of_different_temperatures_cannot_be_frozen():
    layers = tied(G2LSTM(I, I, method="sharpened"), G2LSTM(I, I))
    with pytest.raises(G2Error, match="share their weight_ih_l0 but not their temperature"):
        freeze_(layers)
    assert type(layers[0]) is G2LSTM


def test_tied_layers_without_a_temperature_can_be_frozen_whatever_their_gates():
    layers = tied(G2LSTM(I, I, gates="if"), G2LSTM(I, I, gates="ifo"))
    assert [type(layer) for layer in freeze_(layers)] == [nn.LSTM, nn.LSTM]


def test_a_frozen_layer_has_nothing_of_ours():
    model = nn.ModuleList([G2LSTM(I, H)])
    model[0].purpose = "tagging"
    with record_gates(model):
        freeze_(model)
    assert set(vars(model[0])) - set(vars(nn.LSTM(I, H))) == {"purpose"}


def test_warnings_name_the_line_that_called():
    normed = nn.utils.parametrizations.weight_norm(G2LSTM(I, H), "weight_hh_l0")
    with pytest.warns(UserWarning, match="leaves 0 alone") as told:
        freeze_(nn.ModuleList([normed, G2LSTM(I, H)]))
    assert told[0].filename == __file__
    own = nn.LSTM(I, H)
    own.register_buffer("steps", torch.zeros(1))
    with pytest.warns(UserWarning, match="compress leaves 0 alone") as told:
        compress(nn.ModuleList([own, nn.LSTM(I, H)]), "gates=int8")
    assert told[0].filename == __file__


def test_frozen_shared_weights_are_scaled_once():
    layers = tied(G2LSTM(I, I, method="sharpened"), G2LSTM(I, I, method="sharpened"))
    x = torch.randn(T, B, I)
    expected = layers[1](x)[0]
    freeze_(layers)
    torch.testing.assert_close(layers[1](x)[0], expected)


def test_hard_gates_are_said_to_change_the_output():
    with pytest.warns(UserWarning, match="hard gates change the output"):
        convert_(nn.ModuleList([nn.LSTM(I, H)]), eval_gate="hard")


def test_a_converted_model_keeps_its_options():
    model = convert_(nn.ModuleList([nn.LSTM(I, H)]), noise_rate=0.5)
    with pytest.warns(UserWarning, match="0 alone: it already is a G2LSTM"):
        convert_(model, noise_rate=0.1)
    assert model[0].noise_rate == 0.5
    with pytest.raises(G2Error, match="tau"):
        convert_(model, tau=-3.0)


class Deaf(nn.LSTM):
    def forward(self, x, hx=None):
        return super().forward(x * 0, hx)


def test_only_a_plain_lstm_can_be_converted():
    with pytest.raises(G2Error, match=r"starts from a torch\.nn\.LSTM, got GRU"):
        G2LSTM.from_lstm(nn.GRU(I, H))
    with pytest.raises(G2Error, match="Deaf is a subclass"):
        G2LSTM.from_lstm(Deaf(I, H))


def test_a_subclass_of_ours_converts_to_itself():
    class Mine(G2LSTM):
        pass

    assert type(Mine.from_lstm(nn.LSTM(I, H))) is Mine


def test_layers_that_may_compute_something_else_are_not_recorded():
    model = nn.ModuleDict({"deaf": Deaf(I, H), "plain": nn.LSTM(I, H)})
    with pytest.warns(UserWarning, match="gates of deaf are not recorded"), record_gates(model) as record:
        model["deaf"](torch.randn(T, B, I))
    assert list(record) == ["plain"]
