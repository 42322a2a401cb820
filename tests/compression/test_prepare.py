"""Training through the compression: forward calls see weights as they will be stored, optimisers see them in full."""

import copy
import pickle
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

import g2lstm
from g2lstm import G2GRU, G2LSTM, G2Error, compress, prepare_, unprepare_
from g2lstm.compression import straight_through
from g2lstm.compression.encodings import Entry
from g2lstm.compression.model import encoded_matrices
from g2lstm.compression.spec import Spec, encode
from g2lstm.nn.cells import G2GRUCell, G2LSTMCell
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.mt.model import TranslationModel
from tests.compression.twins import twin_of

SPEC = "gates=levels:3; cell=int4; plain=levels:5; embedding=int4; linear=int8"
TOKENS = torch.randint(13, (7, 3), generator=torch.Generator().manual_seed(1))


class Tagger(nn.Module):
    """A model as others write them, with a tied softmax."""

    def __init__(self, kind=nn.LSTM, **options):
        super().__init__()
        self.embedding = nn.Embedding(13, 8)
        self.layer = kind(8, 8, **options)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 13)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        if isinstance(self.layer, nn.RNNBase):
            x = self.layer(x)[0]
        else:
            state, steps = None, []
            for step in x:
                state = self.layer(step, state)
                steps.append(state[0] if isinstance(state, tuple) else state)
            x = torch.stack(steps)
        return self.head(self.middle(x))


KINDS = [nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell, G2LSTM, G2GRU, G2LSTMCell, G2GRUCell]


def train(model, updates=3, optimizer=None, lr=0.02):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr, fused=True)
    model.train()
    for _ in range(updates):
        optimizer.zero_grad()
        cross_entropy(model(TOKENS[:-1]).flatten(0, 1), TOKENS[1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return model.eval()


def outputs(model):
    with torch.no_grad():
        return model.eval()(TOKENS)


@pytest.mark.parametrize("kind", KINDS)
def test_compressed_and_prepared_models_agree_to_the_bit(kind):
    model = Tagger(kind)
    optimizer = torch.optim.AdamW(model.parameters(), 0.02, fused=True)  # made before, and its updates leave no trace
    assert prepare_(model, SPEC) is model
    before = outputs(model)
    train(model, optimizer=optimizer)
    small = compress(model, SPEC)
    rounding = {"rtol": 0, "atol": 1e-6 if kind is nn.LSTMCell else 0}  # torch has a function of its own for that cell
    torch.testing.assert_close(outputs(model), outputs(small), **rounding)
    assert not torch.equal(outputs(model), before)
    assert not straight_through.preparations(small)
    assert not any(name in vars(module) for module in small.modules() for name in ("weight", "weight_hh"))
    assert small.embedding.encoded is small.head.encoded
    assert torch.equal(outputs(compress(model)), outputs(small))
    unprepared = unprepare_(copy.deepcopy(model))
    plain = Tagger(kind)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(outputs(unprepared), outputs(plain))
    assert not torch.equal(outputs(unprepared), outputs(model))


@pytest.mark.parametrize("spec", ["gates=round:0.1,clip:0.3", "svd:3", "svd:2,int8; embedding=int6", "small"])
def test_any_spec(spec):
    model = train(prepare_(Tagger(G2LSTM, num_layers=2, bidirectional=False), spec))
    assert torch.equal(outputs(model), outputs(compress(model)))


@pytest.mark.parametrize(
    "make", [lambda: LanguageModel(13, 6, 9, 2, tied=False), lambda: TranslationModel(13, 13, 6, 8)]
)
def test_our_own_models(make):
    model = make()
    prepare_(model, "levels:3")
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    model.eval()
    arguments = (TOKENS,) if isinstance(model, LanguageModel) else (TOKENS, torch.tensor([7, 7, 7]), TOKENS)
    with torch.no_grad():
        small = compress(model)
        ours, theirs = (one.logits(one(*arguments)[0]) for one in (model, small))
    assert torch.equal(ours, theirs)
    assert {one.kind for one in encoded_matrices(small).values()} == {"levels"}


def test_gradients_go_straight_through():
    torch.manual_seed(0)
    model = Tagger(G2LSTM, noise_rate=0.0, weight_dropout=0.5)
    prepare_(model, SPEC)
    twin = twin_of(unprepare_(copy.deepcopy(model)), compress(model)).train()

    def gradients(one):
        torch.manual_seed(3)
        cross_entropy(one(TOKENS[:-1]).flatten(0, 1), TOKENS[1:].flatten()).backward()
        return {name: parameter.grad for name, parameter in one.named_parameters()}

    ours, theirs = gradients(model.train()), gradients(twin)
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        assert torch.equal(gradient, theirs[name]), name


def test_encodes_once_per_update(monkeypatch):
    calls = []
    encode = straight_through.encode
    monkeypatch.setattr(straight_through, "encode", lambda *a, **k: calls.append(1) or encode(*a, **k))
    model = prepare_(Tagger(nn.LSTMCell), "int8")
    matrices = len(encoded_matrices(compress(model)))
    assert len(calls) == matrices
    model(TOKENS), model(TOKENS), outputs(model), model.layer(torch.zeros(2, 8))
    assert len(calls) == matrices
    train(model, 2)
    assert len(calls) == 2 * matrices  # the second update has not been seen yet
    outputs(model), compress(model)
    assert len(calls) == 3 * matrices


def test_updates_that_torch_does_not_count():
    model, other = (prepare_(Tagger(), SPEC) for _ in range(2))
    other.load_state_dict(model.state_dict())
    cross_entropy(model(TOKENS[:-1]).flatten(0, 1), TOKENS[1:].flatten()).backward()
    for parameter, same in zip(model.parameters(), other.parameters(), strict=True):
        parameter.data.add_(parameter.grad, alpha=-0.5)
        with torch.no_grad():
            same.copy_(parameter)
    assert torch.equal(outputs(model), outputs(other))
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.5
    assert not torch.equal(outputs(model), outputs(other))
    assert torch.equal(outputs(model), outputs(compress(model)))


def test_state_dict_round_trips():
    model = train(prepare_(Tagger(), SPEC))
    state = model.state_dict()
    assert state.keys() == Tagger().state_dict().keys()
    for how in ({}, {"assign": True}):
        other = prepare_(Tagger(), SPEC)
        other.load_state_dict(copy.deepcopy(state), **how)
        other.head._parameters["weight"] = other.embedding._parameters["weight"]  # torch unties what it assigns
        assert torch.equal(outputs(other), outputs(model))
        assert torch.equal(outputs(train(other)), outputs(compress(other)))


def test_copies_are_independent():
    model = train(prepare_(Tagger(), SPEC))
    twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    before = outputs(model)
    for twin in twins:
        assert torch.equal(outputs(twin), before)
        train(twin)
        assert torch.equal(outputs(model), before)
        assert not torch.equal(outputs(twin), before)
        assert torch.equal(outputs(twin), outputs(compress(twin)))


def test_parts_called_alone_and_weights_read_directly():
    model = train(prepare_(Tagger(), SPEC))
    x = torch.randn(4, 2, 8)
    small = compress(model)
    with torch.no_grad():
        assert torch.equal(model.layer(x)[0], small.layer(x)[0])  # nothing has called the model since the last update
    model(TOKENS)
    torch.testing.assert_close(linear(x, model.middle.weight), linear(x, small.middle.weight), rtol=0, atol=0)
    assert model.middle.weight.requires_grad
    handle = model.middle.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # after which the model is no longer inside a call
        model(TOKENS)
    handle.remove()
    train(model)
    with torch.no_grad():
        assert torch.equal(compress(model).layer(x)[0], model.layer(x)[0])


def test_first_use_under_inference_mode_and_frozen_parameters():
    model = Tagger()
    model.embedding.weight.requires_grad_(False)
    prepare_(model, SPEC)
    with torch.inference_mode():
        for parameter in model.parameters():
            parameter.data.mul_(1.5)
        model(TOKENS)
    train(model)
    assert model.embedding.weight.grad is None
    model._parameters, table = model._parameters, model.embedding._parameters["weight"]
    table.requires_grad_(True)
    model(TOKENS).sum().backward()
    assert table.grad is not None


def test_other_types_and_tied_layers():
    model = prepare_(Tagger(), SPEC).double()
    assert outputs(model).dtype == torch.float64
    assert torch.equal(outputs(model), outputs(compress(model)))
    layer = nn.LSTM(8, 8)
    shared = nn.Sequential(layer, nn.Identity())
    shared[1] = layer
    prepare_(shared, "int4")
    assert len(straight_through.preparations(shared)) == 1
    assert not torch.equal(layer.weight_ih_l0, layer._parameters["weight_ih_l0"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler looks at it
def test_compiled_models():
    model = prepare_(Tagger(G2LSTM, method="sigmoid"), SPEC)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    before = outputs(compiled)
    train(compiled)
    assert not torch.equal(outputs(compiled), before)
    torch.testing.assert_close(outputs(compiled), outputs(compress(model)), rtol=1e-5, atol=1e-6)


def test_layers_of_a_prepared_model_keep_their_kind():
    model = prepare_(Tagger(G2LSTM), SPEC)
    for change in (g2lstm.freeze_, lambda one: one.layer.to_lstm()):
        with pytest.raises(G2Error, match="the G2LSTM is prepared for compression, .* call g2lstm.unprepare_"):
            change(model)
    with pytest.raises(G2Error, match="the LSTM is prepared for compression"):
        g2lstm.convert_(prepare_(Tagger(), SPEC))
    assert type(g2lstm.freeze_(unprepare_(model)).layer) is nn.LSTM


def test_mistakes():
    model = Tagger()
    with pytest.raises(G2Error, match=r"prepare_ takes a torch.nn.Module, got str"):
        prepare_("runs/ptb", "small")
    with pytest.raises(G2Error, match="would compress nothing of Tagger; the groups that it has: gates"):
        prepare_(model, "softmax=int8")
    with pytest.raises(G2Error, match="a compression spec is text such as .*, got None"):
        compress(model)
    assert not straight_through.preparations(model)
    prepare_(model, "small")
    for spec in ("small", "int8"):
        with pytest.raises(G2Error, match=r"already prepared for 'gates=levels:5; .* call g2lstm.unprepare_\(model\)"):
            prepare_(model, spec)
    with pytest.raises(G2Error, match=r"prepared for 'gates=levels:5; .*, got 'int8'; compress it as it was prepared"):
        compress(model, "int8")
    with pytest.raises(G2Error, match="only a part of this model, '0'; compress that part"):
        compress(nn.Sequential(model, nn.LSTM(3, 3)), "small")
    model.layer._parameters["weight_ih_l0"].data[0, 0] = float("nan")
    with pytest.raises(G2Error, match=r"can't compress layer.weight_ih_l0.i: .* holds NaN"):
        model(TOKENS)


def test_what_a_spec_asks_for_in_vain_is_named():
    class Own(nn.Linear):
        pass

    model = nn.ModuleDict({"lstm": nn.LSTM(3, 3), "own": Own(3, 3)})
    with pytest.warns(UserWarning, match="compress leaves own.weight alone: Own is a subclass of Linear"):
        prepare_(model, "int8")


@pytest.mark.parametrize("operations", ["levels:2", "levels:3", "levels:9", "int2,group:32", "int3", "int4", "int6"])
def test_quick_encoding_is_nearly_as_close(operations):
    wanted = Spec.parse(operations).gates
    for weights in (torch.randn(20, 96), torch.rand(20, 45) - 0.5, torch.randn(3, 1) * 1e-3, torch.randn(7, 33) * 1e4):
        errors = []
        for quickly in (False, True):
            encoding = encode(weights, wanted, quickly=quickly)
            restored = Entry("w", encoding.describe()).unpack(encoding.packed)
            assert (restored.decode() == encoding.decode()).all()
            errors.append(float((weights - torch.from_numpy(encoding.decode())).norm() / weights.norm()))
        assert errors[1] <= 1.1 * errors[0] + 0.02
    assert not encode(torch.zeros(3, 5), wanted, quickly=True).decode().any()
    assert encode(torch.randn(1, 1), wanted, quickly=True).shape == (1, 1)
    with pytest.raises(G2Error, match="use int8") if operations != "int6" else nullcontext():
        encode(torch.full((2, 40), 1e6), wanted, quickly=True)
