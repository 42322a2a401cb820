"""Which recurrent layers a model has, which of them convert_ takes, and what it says of the others."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import g2lstm
from g2lstm import (
    G2GRU,
    G2LSTM,
    G2Error,
    G2GRUCell,
    G2LSTMCell,
    compress,
    convert_,
    freeze_,
    record_gates,
    set_gates_,
    survey,
)
from tests.nn.layers import B, H, I, T


class Both(nn.Module):
    """A model with one layer of each kind."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleDict({"lstm": nn.LSTM(I, H, 2, dropout=0.1), "gru": nn.GRU(H, H, bidirectional=True)})
        self.decoder = nn.ModuleDict({"lstm": nn.LSTMCell(2 * H, H), "gru": nn.GRUCell(H, H, bias=False)})

    def forward(self, x):
        x, _ = self.encoder["gru"](self.encoder["lstm"](x)[0])
        h, _ = self.decoder["lstm"](x[-1])
        return self.decoder["gru"](h)


class WeightDrop(nn.Module):
    """As in awd-lstm-lm: the layer holds the raw weight, and gets a dropped copy before each call."""

    def __init__(self, module, names=("weight_hh_l0",), dropout=0.4, variational=False):
        super().__init__()
        self.module, self.names, self.dropout, self.variational = module, names, dropout, variational
        for name in names:
            weight = module._parameters.pop(name)
            module.register_parameter(f"{name}_raw", weight)

    def forward(self, *args):
        for name in self.names:
            dropped = functional.dropout(getattr(self.module, f"{name}_raw"), self.dropout, self.training)
            setattr(self.module, name, dropped.clone())
        return self.module(*args)


class WeightDropout(nn.Module):
    """As in fastai: the wrapper holds the raw weight."""

    def __init__(self, module, weight_p):
        super().__init__()
        self.module, self.weight_p = module, weight_p
        weight = module._parameters.pop("weight_hh_l0")
        self.register_parameter("weight_hh_l0_raw", weight)
        module.weight_hh_l0 = weight.clone()

    def forward(self, *args):
        self.module.weight_hh_l0 = functional.dropout(self.weight_hh_l0_raw, self.weight_p, self.training).clone()
        return self.module(*args)


def kinds(model):
    return {row.name: (row.kind, row.status) for row in survey(model)}


def test_every_kind_is_converted_and_frozen_with_the_same_output():
    model, x = Both().eval(), torch.randn(T, B, I)
    expected, parameters = model(x), dict(model.named_parameters())
    assert {status for _, status in kinds(model).values()} == {"convertible"}
    convert_(model, strict=True)
    assert kinds(model) == {
        "encoder.lstm": ("G2LSTM", "converted"),
        "encoder.gru": ("G2GRU", "converted"),
        "decoder.lstm": ("G2LSTMCell", "converted"),
        "decoder.gru": ("G2GRUCell", "converted"),
    }
    torch.testing.assert_close(model(x), expected)
    freeze_(model)
    assert [type(model.get_submodule(row.name)) for row in survey(model)] == [nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell]
    torch.testing.assert_close(model(x), expected)
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())


def test_a_sharpened_model_of_every_kind_keeps_its_output():
    model, x = Both().eval(), torch.randn(T, B, I)
    expected = model(x)
    torch.testing.assert_close(convert_(model, method="sharpened")(x), expected)
    torch.testing.assert_close(freeze_(model)(x), expected)


@pytest.mark.parametrize(
    ("choice", "converted"),
    [
        ({"only": "encoder"}, {"encoder.lstm", "encoder.gru"}),
        ({"only": ["*.lstm"]}, {"encoder.lstm", "decoder.lstm"}),
        ({"skip": "decoder.*"}, {"encoder.lstm", "encoder.gru"}),
        ({"only": "*coder", "skip": ["*.gru"]}, {"encoder.lstm", "decoder.lstm"}),
    ],
)
def test_patterns_choose_layers(choice, converted):
    model = convert_(Both(), **choice)
    assert {row.name for row in survey(model) if row.status == "converted"} == converted


def test_overrides_give_some_layers_other_options():
    model = convert_(Both(), overrides={"encoder.*": {"tau": 0.5}, "encoder.gru": {"noise_rate": 0.1}}, noise_rate=0.3)
    found = [(layer.tau, layer.noise_rate) for layer in (model.encoder["lstm"], model.encoder["gru"])]
    assert found == [(0.5, 0.3), (0.5, 0.1)]
    assert (model.decoder["lstm"].tau, model.decoder["lstm"].noise_rate) == (0.9, 0.3)


@pytest.mark.parametrize("choice", [{"only": "encodr"}, {"skip": "encodr"}, {"overrides": {"encodr": {}}}])
def test_a_pattern_that_matches_nothing_is_a_mistake(choice):
    model = Both()
    with pytest.raises(G2Error, match=r"no recurrent layers match 'encodr': there are encoder\.lstm, .*did you mean"):
        convert_(model, **choice)
    assert type(model.encoder["lstm"]) is nn.LSTM


def test_a_wrong_option_changes_nothing():
    model = Both()
    for choice in ({"tau": -1.0}, {"overrides": {"decoder.gru": {"tau": -1.0}}}, {"overrides": {"*": {"colour": 1}}}):
        with pytest.raises(G2Error):
            convert_(model, **choice)
        assert {status for _, status in kinds(model).values()} == {"convertible"}


def test_one_shared_layer_cannot_have_two_options():
    shared = nn.LSTM(I, I)
    model = nn.ModuleDict({"a": shared, "b": shared})
    with pytest.raises(G2Error, match="a and b are one shared layer, but overrides= gives them different options"):
        convert_(model, overrides={"b": {"tau": 0.5}})
    assert type(model["a"]) is nn.LSTM
    assert convert_(model, overrides={"[ab]": {"tau": 0.5}})["a"].tau == 0.5


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (nn.RNN(I, H), "no layer of g2lstm replaces RNN"),
        (nn.RNNCell(I, H), "no layer of g2lstm replaces RNNCell"),
        (nn.utils.parametrizations.weight_norm(nn.GRU(I, H), "weight_hh_l0"), "may compute something else"),
        (torch.jit.script(nn.LSTM(I, H)), "it is scripted"),
        (WeightDrop(nn.LSTM(I, H), variational=True), "drops whole rows"),
        (WeightDrop(nn.LSTM(I, H), ["weight_ih_l0", "weight_hh_l0"]), "differs in weight_ih_l0"),
        (WeightDrop(nn.RNN(I, H)), "no layer of g2lstm replaces RNN"),
    ],
)
def test_nothing_is_skipped_silently(layer, why):
    model = nn.ModuleDict({"odd": layer, "plain": nn.LSTM(I, H)})
    (row,) = [row for row in survey(model) if row.name == "odd"]
    assert row.status == "left alone"
    assert why in row.why
    with pytest.raises(G2Error, match=f"cannot convert odd: .*{why}.*Nothing was changed"):
        convert_(model, strict=True)
    assert type(model["plain"]) is nn.LSTM
    with pytest.warns(UserWarning, match=f"convert_ leaves odd alone: .*{why}"):
        convert_(model)
    assert type(model["plain"]) is G2LSTM
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert_(nn.ModuleDict({"odd": layer, "plain": nn.LSTM(I, H)}), skip="odd", strict=True)


def test_a_scripted_model_is_refused():
    with pytest.raises(G2Error, match="is scripted; call convert_ on the model before"):
        convert_(torch.jit.script(nn.Sequential(nn.LSTM(I, H))))


@pytest.mark.parametrize("wrap", [WeightDrop, WeightDropout])
@pytest.mark.parametrize("called_before", [False, True])
def test_weight_drop_becomes_weight_dropout(wrap, called_before):
    kwargs = {"weight_p": 0.4} if wrap is WeightDropout else {"dropout": 0.4}
    model = nn.ModuleList([wrap(nn.LSTM(I, H), **kwargs), wrap(nn.LSTM(H, H), **kwargs)]).eval()
    x, parameters = torch.randn(T, B, I), set(model.parameters())
    with torch.no_grad():
        expected = model[1](model[0](x)[0])[0]
    if not called_before:
        model = nn.ModuleList([wrap(nn.LSTM(I, H), **kwargs)]).eval()
        parameters = set(model.parameters())
    convert_(model, strict=True)
    assert {type(layer) for layer in model} == {G2LSTM}
    assert {layer.weight_dropout for layer in model} == {0.4}
    assert set(model.parameters()) == parameters
    assert not model[0].training
    if called_before:
        torch.testing.assert_close(model[1](model[0](x)[0])[0], expected)
        model.train()[0](x)[0].sum().backward()
        assert model[0].weight_hh_l0.grad.count_nonzero() > 0


def test_set_gates_changes_all_layers_at_any_moment():
    model = convert_(Both())
    set_gates_(model, method="sharpened")
    assert {layer.tau for layer in (model.encoder["lstm"], model.decoder["gru"])} == {0.2}
    set_gates_(model, method="gumbel", tau=0.7, only="encoder")
    assert (model.encoder["gru"].method, model.encoder["gru"].tau) == ("gumbel", 0.7)
    assert model.decoder["lstm"].method == "sharpened"
    set_gates_(model, noise_rate=0.4)
    assert model.encoder["gru"].tau == 0.7


def test_set_gates_changes_nothing_by_mistake():
    model = convert_(Both())
    with pytest.raises(G2Error, match="noise_rate"):
        set_gates_(model, tau=0.5, noise_rate=3.0)
    with pytest.raises(G2Error, match="set_gates_ has no option 'gates'; it takes method, tau"):
        set_gates_(model, gates="ifo")
    with pytest.raises(G2Error, match="no layers of g2lstm match 'x'"):
        set_gates_(model, only="x", tau=0.5)
    with pytest.raises(G2Error, match="found no layer of g2lstm inside Linear; call"):
        set_gates_(nn.Linear(2, 2), tau=0.5)
    assert model.encoder["lstm"].tau == 0.9


def test_a_survey_prints_as_a_table():
    model = nn.ModuleDict({"a": nn.LSTM(I, H), "b": nn.RNN(I, H), "c": G2GRUCell(I, H)})
    assert str(survey(model)).splitlines() == [
        "layer  kind       status       why",
        "a      LSTM       convertible",
        "b      RNN        left alone   no layer of g2lstm replaces RNN",
        "c      G2GRUCell  converted",
    ]
    assert str(survey(nn.Linear(1, 1))) == "no recurrent layers"
    assert [row.kind for row in survey(compress(nn.ModuleDict({"l": nn.LSTM(I, H)}), "gates=int8"))] == [
        "CompressedLSTM"
    ]


def test_a_record_shows_its_gates(capsys):
    model = nn.ModuleDict({"lstm": nn.LSTM(I, H, 2), "cell": G2LSTMCell(I, H), "gru": G2GRU(I, H)}).eval()
    with record_gates(model) as record:
        record.show()
        assert capsys.readouterr().out == "no gates recorded yet\n"
        model["lstm"](torch.randn(T, B, I))
        model["gru"](torch.randn(T, B, I))
        for _ in range(3):
            model["cell"](torch.randn(B, I))
    record.show()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["layer", "gate", "mean", "below", "0.1", "above", "0.9", "0", "…", "1"]
    assert [line.split()[:2] for line in lines[1:]] == [
        *(["lstm[0]", gate] for gate in ("input",)), ["lstm[1]", "input"], ["lstm[0]", "forget"], ["lstm[1]", "forget"],
        ["lstm[0]", "output"], ["lstm[1]", "output"], ["cell", "input"], ["cell", "forget"], ["cell", "output"],
        ["gru", "reset"], ["gru", "update"],
    ]  # fmt: skip
    html = record._repr_html_()
    assert html.count("<svg") == len(lines) - 1
    assert "&lt;b&gt;" in record_of("<b>")._repr_html_()


def test_a_record_shows_binary_gates_as_open_or_closed():
    model = G2LSTM(I, H, method="binary").eval()
    with record_gates(model) as record:
        model(torch.randn(T, B, I))
    _, first, _, output = str(record).splitlines()
    share = record[""][0].input[0].mean().item()
    bar = first.split("closed ")[1].removesuffix(" open")
    assert bar == "░" * (20 - round(20 * share)) + "█" * round(20 * share)
    assert "closed" not in output  # the output gate is soft
    assert record._repr_html_().count('opacity="0.2"') == 2


def record_of(name):
    model = nn.Module()
    model.add_module(name, nn.LSTM(I, H))
    with record_gates(model) as record:
        model.get_submodule(name)(torch.randn(T, B, I))
    return record


def test_saturation_is_the_share_of_sampled_gates_near_0_or_1():
    layer = G2LSTM(I, H, eval_gate="hard").eval()
    with record_gates(layer) as record:
        assert str(record.saturation) == "nan"
        layer(torch.randn(T, B, I))
    assert record.saturation == 1.0
    layer.eval_gate = "soft"
    nn.init.zeros_(layer.weight_hh_l0)
    with record_gates(layer) as record:
        layer(torch.zeros(T, B, I))
    assert record.saturation == 0.0


@pytest.mark.parametrize("name", ["survey", "convert_", "freeze_", "set_gates_", "load_into", "save", "search"])
def test_what_is_no_module_is_refused(name, tmp_path):
    more = {"load_into": [tmp_path], "save": [tmp_path], "search": [[torch.zeros(1)]]}.get(name, [])
    with pytest.raises(G2Error, match=f"{name} takes a torch.nn.Module, got int; for a run, pass load"):
        getattr(g2lstm, name)(5, *more)
    with pytest.raises(G2Error, match="record_gates takes a torch.nn.Module"), g2lstm.record_gates("x"):
        pass
