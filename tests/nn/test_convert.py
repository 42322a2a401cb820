"""Conversion: the same output in evaluation before and after, for one layer and for models never seen before."""

import copy
import warnings

import pytest
import torch
from torch import nn

from g2lstm import G2GRU, G2LSTM, G2Error, G2LSTMCell, convert_, freeze_
from tests.nn.layers import SURFACE, B, H, I, T, assert_same, flat, make_input

OPTIONS = [
    {},
    {"method": "sigmoid"},
    {"method": "sharpened"},
    {"eval_gate": "tempered", "tau": 0.5},
    {"eval_gate": "tempered", "gates": "ifo", "tau": 0.5},
]


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, I)
        self.body = nn.ModuleDict({"encoder": nn.Sequential(nn.LSTM(I, H, 2, bidirectional=True))})
        self.head = nn.Linear(2 * H, 3)

    def forward(self, tokens):
        return self.head(self.body["encoder"](self.embedding(tokens))[0])


class OwnLSTM(nn.LSTM):
    pass


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("case", SURFACE, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_from_lstm_and_to_lstm_keep_the_evaluation_output(case, options):
    lstm = nn.LSTM(I, H, **case.layer, dtype=torch.float64).eval()
    before = copy.deepcopy(lstm.state_dict())
    x, hx, _ = make_input(case)
    layer = G2LSTM.from_lstm(lstm, **options)
    back = layer.to_lstm()
    assert type(back) is nn.LSTM
    assert not layer.training
    assert_same(flat(layer(x, hx)), flat(lstm(x, hx)))
    assert_same(flat(back(x, hx)), flat(lstm(x, hx)))
    assert all(torch.equal(before[name], value) for name, value in lstm.state_dict().items())
    assert not {p.data_ptr() for p in layer.parameters()} & {p.data_ptr() for p in lstm.parameters()}
    assert not {p.data_ptr() for p in layer.parameters()} & {p.data_ptr() for p in back.parameters()}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_whole_models_keep_their_output_and_their_parameters(options):
    model = Tagger().double().eval()
    parameters = dict(model.named_parameters())
    tokens = torch.randint(11, (T, B))
    expected = model(tokens)
    assert convert_(model, **options) is model
    assert type(model.body["encoder"][0]) is G2LSTM
    torch.testing.assert_close(model(tokens), expected, rtol=1e-7, atol=1e-10)
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert freeze_(model) is model
    assert type(model.body["encoder"][0]) is nn.LSTM
    torch.testing.assert_close(model(tokens), expected, rtol=1e-7, atol=1e-10)
    assert all(p is parameters[name] for name, p in model.named_parameters())


def test_an_optimiser_made_before_goes_on_working():
    model = Tagger()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    convert_(model)
    before = model.body["encoder"][0].weight_hh_l1.detach().clone()
    model(torch.randint(11, (T, B))).sum().backward()
    optimiser.step()
    assert not torch.equal(model.body["encoder"][0].weight_hh_l1, before)


def test_shared_modules_stay_shared():
    lstm = nn.LSTM(I, I)
    model = nn.ModuleList([lstm, nn.Sequential(lstm)])
    convert_(model)
    assert type(model[0]) is G2LSTM
    assert model[0] is model[1][0]
    freeze_(model)
    assert model[0] is model[1][0]


def test_shared_weights_are_scaled_once():
    first, second = nn.LSTM(I, I), nn.LSTM(I, I)
    for name, parameter in first.named_parameters():
        setattr(second, name, parameter)
    model = nn.ModuleList([first, second]).eval()
    x = torch.randn(T, B, I)
    expected = second(x)[0]
    convert_(model, method="sharpened")
    torch.testing.assert_close(model[1](x)[0], expected)


@pytest.mark.parametrize(("made", "kind"), [(nn.LSTM, G2LSTM), (nn.GRU, G2GRU), (nn.LSTMCell, G2LSTMCell)])
def test_a_layer_by_itself_is_changed_in_place(made, kind):
    layer = made(I, H).eval()
    calls = []
    handle = layer.register_forward_hook(lambda *_: calls.append(1))
    x = torch.randn(B, I) if made is nn.LSTMCell else torch.randn(T, B, I)
    parameters, expected = list(layer.parameters()), layer(x)[0]
    assert convert_(layer) is layer
    assert type(layer) is kind
    torch.testing.assert_close(layer(x)[0], expected)
    if kind is G2LSTM:
        assert not torch.equal(layer.train()(x)[0], expected)  # noise
    assert freeze_(layer.eval()) is layer
    assert type(layer) is made
    torch.testing.assert_close(layer(x)[0], expected)
    assert all(one is other for one, other in zip(layer.parameters(), parameters, strict=True))
    seen = len(calls)
    handle.remove()
    layer(x)
    assert len(calls) == seen > 2


def test_subclasses_are_reported_and_left_alone():
    model = nn.ModuleDict({"own": OwnLSTM(I, H), "plain": nn.LSTM(I, H)})
    with pytest.warns(UserWarning, match="leaves own alone: OwnLSTM is a subclass"):
        convert_(model)
    assert type(model["own"]) is OwnLSTM
    assert type(model["plain"]) is G2LSTM


def test_parametrised_layers_are_reported_and_left_alone():
    normed = nn.utils.parametrizations.weight_norm(nn.LSTM(I, H), "weight_hh_l0")
    model = nn.ModuleDict({"normed": normed, "plain": nn.LSTM(I, H)})
    with pytest.warns(UserWarning, match="leaves normed alone"):
        convert_(model)
    assert model["normed"] is normed
    hooked = nn.LSTM(I, H)
    weight = hooked.weight_hh_l0
    del hooked._parameters["weight_hh_l0"]
    hooked.weight_hh_l0 = weight.detach()
    with pytest.warns(UserWarning, match="its weight_hh_l0 is not a parameter"):
        convert_(nn.ModuleList([hooked, nn.LSTM(I, H)]))


def test_hooks_move_along():
    model = Tagger()
    seen = []
    model.body["encoder"][0].register_forward_hook(lambda *_: seen.append("called"))
    convert_(model)(torch.randint(11, (T, B)))
    freeze_(model)(torch.randint(11, (T, B)))
    assert seen == ["called", "called"]


def test_training_mode_and_frozen_parameters_are_kept():
    model = nn.ModuleList([nn.LSTM(I, H), nn.LSTM(I, H)])
    model[0].eval()
    model[1].weight_ih_l0.requires_grad_(False)
    convert_(model)
    assert [m.training for m in model] == [False, True]
    assert not model[1].weight_ih_l0.requires_grad
    assert not model[1].to_lstm().weight_ih_l0.requires_grad


def test_no_warning_about_dropout_that_was_said_before():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.ModuleList([nn.LSTM(I, H, dropout=0.5)])
    convert_(model)
    assert model[0].dropout == 0.5


def test_hard_gates_cannot_be_frozen_and_nothing_is_changed():
    model = nn.ModuleDict({"a": G2LSTM(I, H), "b": G2LSTM(I, H, eval_gate="hard")})
    with pytest.raises(G2Error, match=r"b evaluates hard gates.*torch's layers cannot express.*eval_gate='soft'"):
        freeze_(model)
    assert type(model["a"]) is G2LSTM
    with pytest.raises(G2Error, match="this layer evaluates hard gates"):
        model["b"].to_lstm()


def test_bad_options_change_nothing():
    model = Tagger()
    with pytest.raises(G2Error, match="tau"):
        convert_(model, tau=-1.0)
    assert type(model.body["encoder"][0]) is nn.LSTM


def test_a_model_without_lstm_is_a_mistake():
    with pytest.raises(G2Error, match="found no recurrent layer inside Linear"):
        convert_(nn.Linear(2, 2))


def test_converting_twice_is_harmless():
    model = Tagger()
    convert_(model, noise_rate=0.5)
    convert_(model)
    assert model.body["encoder"][0].noise_rate == 0.5


@pytest.mark.parametrize(("gates", "layer", "allowed"), [("ifo", "gru", "'rz'"), ("rz", "lstm", "'if', 'ifo'")])
def test_an_option_that_only_some_layers_have(gates, layer, allowed):
    model = nn.ModuleDict({"lstm": nn.LSTM(2, 3), "gru": nn.GRU(3, 3)})
    message = f"^{layer}: gates must be one of {allowed}, got '{gates}'; overrides= gives some layers other options"
    with pytest.raises(G2Error, match=message):
        convert_(model, gates=gates)
    assert type(model["lstm"]) is nn.LSTM
    convert_(model, overrides={"lstm" if layer == "gru" else "gru": {"gates": gates}})
