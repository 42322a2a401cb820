"""Whole models compressed: ours and foreign ones, tied and not, and everything that is refused."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import g2lstm
from g2lstm import G2LSTM, G2Error, compress
from g2lstm.compression.encodings import Dense, Grid, Integers, LowRank
from g2lstm.compression.model import encoded_matrices, install_
from g2lstm.compression.modules import CompressedEmbedding, CompressedLinear
from g2lstm.compression.recurrent import CompressedLSTM
from g2lstm.compression.spec import Spec
from g2lstm.compression.targets import find_targets
from g2lstm.nn.record import evaluating
from g2lstm.tasks.lm.evaluate import perplexity
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.mt.beam import translate
from g2lstm.tasks.mt.model import TranslationModel
from tests.compression.twins import twin_of
from tests.tasks.lm.test_generate import generate

SPECS = [
    "gates=round:0.1,clip:0.3; cell=int8; embedding=int8; softmax=int4",
    "gates=svd:2; cell=svd:3,int8; embedding=svd:3,int4; softmax=svd:4",
    "gates=round:0.1",
    "embedding=int4",
]
CLOSE = {"rtol": 1e-10, "atol": 1e-12}  # float64, the same numbers: only the order of sums differs


class Tagger(nn.Module):
    """A model as others write them."""

    def __init__(self, tied=False, outputs=11):
        super().__init__()
        self.embedding = nn.Embedding(11, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 4, 2, bidirectional=True, batch_first=True, dropout=0.1)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, outputs)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens, lengths):
        self.lstm.flatten_parameters()
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(self.middle(out).relu())


def group_of(model):
    return {name: target.group for name, target in find_targets(model).matrices.items()}


def tagger(*args, **options):
    torch.manual_seed(0)
    return Tagger(*args, **options).double().eval()


def language_model(tied):
    torch.manual_seed(0)
    return LanguageModel(23, 6, 9, 2, tied=tied).double()


def translation_model(tied):
    torch.manual_seed(0)
    return TranslationModel(29, 29, 6, 8, tied=tied).double()


TOKENS, LENGTHS = torch.randint(11, (3, 5), generator=torch.Generator().manual_seed(1)), torch.tensor([5, 2, 4])


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("tied", [False, True])
def test_foreign_models(spec, tied):
    model = tagger(tied)
    before = copy.deepcopy(model.state_dict())
    small = compress(model, spec)
    twin = twin_of(model, small)
    torch.testing.assert_close(small(TOKENS, LENGTHS), twin(TOKENS, LENGTHS), **CLOSE)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert type(model.lstm) is nn.LSTM
    ours, theirs = ({p.data_ptr() for p in m.parameters()} for m in (small, model))
    assert not ours & theirs
    assert isinstance(small.lstm, CompressedLSTM) == ("gates" in spec)
    if "embedding" in spec and tied:
        assert small.head.encoded is small.embedding.encoded
    assert type(small.middle) is nn.Linear


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("tied", [False, True])
def test_language_models(spec, tied):
    model = language_model(tied)
    small = compress(model, spec)
    twin = twin_of(model, small)
    tokens = torch.randint(23, (700,))
    features, _, state = small(tokens[:6].view(3, 2))
    expected = twin(tokens[:6].view(3, 2))
    torch.testing.assert_close(features, expected.features, **CLOSE)
    torch.testing.assert_close(state, expected.state, **CLOSE)
    torch.testing.assert_close(small.logits(features), twin.logits(features), **CLOSE)
    torch.testing.assert_close(small.output_weight, twin.output_weight, rtol=0, atol=1e-7)
    ours, theirs = (perplexity(one, tokens, columns=3).log_probabilities for one in (small, twin))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)  # kept in float32
    texts = [generate(one, [1, 2], temperature=0) for one in (small, twin)]
    assert [next(texts[0]) for _ in range(9)] == [next(texts[1]) for _ in range(9)]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("tied", ["none", "output", "all"])
def test_translation_models(spec, tied):
    model = translation_model(tied)
    small = compress(model, spec)
    twin = twin_of(model, small)
    source, inputs = torch.randint(29, (5, 3)), torch.randint(29, (4, 3))
    features = small(source, LENGTHS, inputs)
    torch.testing.assert_close(features, twin(source, LENGTHS, inputs), **CLOSE)
    steps = [one.step(inputs[:1].t(), one.start(one.encode(source, LENGTHS))) for one in (small, twin)]
    torch.testing.assert_close(steps[0].log_probabilities, steps[1].log_probabilities, **CLOSE)
    losses = [one.token_losses(features[0], inputs[0]) for one in (small, twin)]
    torch.testing.assert_close(*losses, **CLOSE)
    torch.testing.assert_close(small.source_weight, twin.source_weight, rtol=0, atol=1e-7)


@pytest.mark.parametrize("spec", SPECS)
def test_scores_do_not_depend_on_columns(spec):
    """Columns are read again one by one, and must agree with what was read side by side but for rounding."""
    small = compress(language_model(True).float(), spec)
    tokens = torch.randint(23, (900,))
    scores = [perplexity(small, tokens, columns=columns) for columns in (1, 4)]
    assert abs(scores[0].nats - scores[1].nats) < 1e-5 * scores[0].nats


def test_translations_do_not_depend_on_batches():
    small = compress(translation_model("none").float(), "gates=round:0.1; cell=int8")
    run = functools.partial(translate, small, source_eos=1, target_eos=1, beam=2, max_length=3)
    sources = [[3, 4, 5], [6]]
    for one, other in zip(run(sources, batch_size=1), run(sources), strict=True):
        assert one[0].tokens == other[0].tokens
        assert one[0].score == pytest.approx(other[0].score, abs=1e-5)


def test_names_groups_and_kinds():
    small = compress(language_model(False), "gates=round:0.1; cell=svd:2; embedding=int8; softmax=int8")
    matrices, groups = encoded_matrices(small), group_of(language_model(False))
    assert matrices.keys() == groups.keys()
    assert not group_of(small)
    kinds = {"gates": Grid, "cell": LowRank, "embedding": Integers, "softmax": Integers}
    for name, matrix in matrices.items():
        assert type(matrix) is kinds[groups[name]]
    assert {name for name, group in groups.items() if group == "gates"} == {
        f"layers.{k}.weight_{part}_l0.{gate}" for k in (0, 1) for part in ("ih", "hh") for gate in "if"
    }
    assert groups["embedding.weight"] == "embedding"
    assert groups["softmax_weight"] == "softmax"
    assert len(groups) == 18
    rest = dict(small.named_parameters())
    assert rest.keys() == {"softmax_bias", *(f"layers.{k}.bias_{part}_l0" for k in (0, 1) for part in ("ih", "hh"))}


def test_each_gate_is_a_matrix_by_itself():
    model = nn.LSTM(5, 6)
    matrices = encoded_matrices(compress(model, "gates=round:0.1,clip:0.2; cell=int8"))
    for part, weight in (("ih", model.weight_ih_l0), ("hh", model.weight_hh_l0)):
        i, f, g, o = weight.detach().split(6)
        for gate, rows in {"i": i, "f": f}.items():
            expected = ((rows / 0.1).round() * 0.1).clamp(-0.2, 0.2)
            torch.testing.assert_close(torch.from_numpy(matrices[f"weight_{part}_l0.{gate}"].decode()), expected)
        for gate, rows in {"g": g, "o": o}.items():
            scales = torch.from_numpy(matrices[f"weight_{part}_l0.{gate}"].scales)
            torch.testing.assert_close(scales, rows.abs().amax(1) / 127)
    kept = encoded_matrices(compress(model, "gates=round:0.1"))["weight_ih_l0.g"]
    assert type(kept) is Dense
    assert torch.equal(torch.from_numpy(kept.values), model.weight_ih_l0[12:18])


def test_groups_of_foreign_models():
    assert group_of(tagger())["head.weight"] == "softmax"
    assert "head.weight" not in group_of(tagger(tied=True))
    assert group_of(tagger(outputs=7))["head.weight"] == "linear"
    assert group_of(tagger())["middle.weight"] == "linear"
    half = compress(tagger(), "embedding=int8")  # the rest can still be found
    assert group_of(half) | {"embedding.weight": "embedding"} == group_of(tagger())
    # As many units as the vocabulary has words do not make a softmax of a layer inside our own models.
    assert set(group_of(TranslationModel(8, 8, 4, 4, tied="output"))) >= {"target_embedding.weight"}
    assert "softmax" not in group_of(TranslationModel(8, 8, 4, 4, tied="output")).values()


class Attentive(nn.Module):
    """A projection and three ways to have attention: one matrix for q, k and v, three, and inside a transformer."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 12, num_layers=2, proj_size=8, batch_first=True)
        self.joint = nn.MultiheadAttention(8, 2, batch_first=True)
        self.apart = nn.MultiheadAttention(8, 2, kdim=6, vdim=7, bias=False, batch_first=True)
        self.top = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        h, _ = self.lstm(x)
        h = h + self.joint(h, h, h)[0]
        return self.top(h + self.apart(h, h[..., :6], h[..., :7])[0])


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("spec", ["int8", "gates=int4; cell=int4", "linear=bits:4", "small"])
def test_projections_and_attention(spec, tmp_path):
    model, x = Attentive().eval(), torch.randn(3, 5, 8)
    small = compress(model, spec)
    encoded = encoded_matrices(small)
    others = {name for name, value in model.named_parameters() if value.dim() == 2 and "lstm" not in name}
    projections = {"lstm.weight_hr_l0", "lstm.weight_hr_l1"}
    if "gates" in spec:
        assert not encoded.keys() & (others | projections)
    else:
        assert encoded.keys() > others | projections
        assert {"joint.in_proj_weight", "joint.out_proj.weight", "apart.k_proj_weight"} < others
    expected = twin_of(model, small)(x)
    torch.testing.assert_close(small(x), expected, rtol=1e-5, atol=1e-6)
    with torch.no_grad():  # torch computes attention in another way if no gradient is wanted
        torch.testing.assert_close(copy.deepcopy(small)(x), expected, rtol=1e-5, atol=1e-6)
    g2lstm.save(small, tmp_path / "small.safetensors")
    torch.testing.assert_close(g2lstm.load_into(Attentive(), tmp_path / "small.safetensors").eval()(x), small(x))
    again = compress(Attentive(), spec)
    again.load_state_dict(small.state_dict())
    assert torch.equal(again(x), small(x))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_files_from_before_projections_were_encoded():
    """Their projections are parameters."""
    model = nn.LSTM(4, 5, proj_size=3)
    encodings = {name: one for name, one in encoded_matrices(compress(model, "int8")).items() if "hr" not in name}
    old = install_(copy.deepcopy(model), encodings).eval()
    assert torch.equal(old.weight_hr_l0, model.weight_hr_l0)
    assert old(torch.randn(2, 1, 4))[0].shape == (2, 1, 3)


def test_a_linear_layer_named_before_the_embedding_it_is_tied_to():
    model = nn.Module()
    model.head, model.embedding, model.lstm = nn.Linear(8, 11), nn.Embedding(11, 8), nn.LSTM(8, 4)
    model.embedding.weight = model.head.weight
    small = compress(model, "embedding=int8")
    assert group_of(model)["head.weight"] == "embedding"
    assert list(encoded_matrices(small)) == ["head.weight"]
    assert isinstance(small.head, CompressedLinear)
    assert isinstance(small.embedding, CompressedEmbedding)


def test_tied_and_shared_lstms_are_stored_once():
    first, second = nn.LSTM(4, 4), nn.LSTM(4, 4)
    for name, parameter in first.named_parameters():
        setattr(second, name, parameter)
    model = nn.ModuleList([first, second, nn.Sequential(first)]).eval()
    small = compress(model, "gates=int8")
    assert list(encoded_matrices(small)) == list(group_of(model))
    assert len(encoded_matrices(small)) == 8
    assert small[0] is small[2][0]
    assert small[1].weight_ih_l0["i"] is small[0].weight_ih_l0["i"]


def test_the_copy_is_in_evaluation_and_keeps_options_hooks_and_types():
    model = nn.Sequential(G2LSTM(3, 4, eval_gate="tempered", tau=0.5, backend="reference")).train()
    seen = []
    model[0].register_forward_hook(lambda *_: seen.append("called"))
    small = compress(model, Spec.parse("gates=int8"))
    assert model.training
    assert not any(module.training for module in small.modules())
    assert (small[0].eval_gate, small[0].tau, small[0].backend) == ("tempered", 0.5, "reference")
    small(torch.randn(2, 2, 3))
    assert seen == ["called"]
    assert isinstance(compress(nn.LSTM(3, 4), "gates=int8"), CompressedLSTM)


def test_copies_of_compressed_models():
    model = tagger(True)
    small = compress(model, SPECS[0])
    other = copy.deepcopy(small)
    assert torch.equal(small(TOKENS, LENGTHS), other(TOKENS, LENGTHS))
    assert other.head.encoded is other.embedding.encoded
    assert other.head.encoded is not small.head.encoded


@pytest.mark.parametrize(
    "build", [lambda: tagger(True), lambda: language_model(False), lambda: translation_model("all")]
)
def test_matrices_are_installed_in_a_skeleton(build):
    small = compress(build(), SPECS[0])
    with torch.device("meta"):
        skeleton = build()
    assert install_(skeleton, encoded_matrices(small)) is skeleton
    skeleton.load_state_dict(small.state_dict(), assign=True)
    assert encoded_matrices(skeleton).keys() == encoded_matrices(small).keys()
    assert not any(p.is_meta for p in [*skeleton.parameters(), *skeleton.buffers()])
    if isinstance(small, Tagger):
        assert torch.equal(skeleton.eval()(TOKENS, LENGTHS), small(TOKENS, LENGTHS))
    if isinstance(small, LanguageModel):
        tokens = torch.randint(23, (3, 2))
        assert torch.equal(skeleton.eval()(tokens).features, small(tokens).features)


def test_what_cannot_be_installed():
    model = tagger()
    matrices = encoded_matrices(compress(model, "gates=int8; embedding=int8"))
    wrong = {"lstm.weight_ih_l7.i": matrices["lstm.weight_ih_l0.i"]}
    with pytest.raises(G2Error, match="Tagger has no matrix 'lstm.weight_ih_l7.i' to compress"):
        install_(model, wrong)
    with pytest.raises(G2Error, match=r"'embedding.weight' must have the shape \(11, 8\), got \(4, 8\)"):
        install_(model, matrices | {"embedding.weight": matrices["lstm.weight_ih_l0.i"]})
    del matrices["lstm.weight_hh_l1.o"]
    with pytest.raises(G2Error, match="'lstm.weight_hh_l1.o' is missing; a layer needs all of its"):
        install_(model, matrices)
    assert type(model.embedding) is nn.Embedding
    assert type(model.lstm) is nn.LSTM


def test_what_cannot_be_compressed():
    with pytest.raises(G2Error, match=r"found no recurrent layer \(LSTM, GRU or a cell of them\) inside Linear"):
        compress(nn.Linear(2, 3), "gates=int8")
    for spec in ("gates=int8", "embedding=int8"):
        small = compress(tagger(), spec)
        with pytest.raises(G2Error, match=r"(lstm|embedding) is compressed already; compress the model that it was"):
            compress(small, "gates=int4")
        with pytest.raises(G2Error, match="compressed already"):
            install_(small, {})
    with pytest.raises(G2Error, match=r"^can't compress lstm.weight_ih_l0.i: .* 4 x 8 has ranks 1 to 4, got svd:5"):
        compress(tagger(), "gates=svd:5")
    model = tagger()
    model.lstm.weight_hh_l1_reverse.data[9, 2] = torch.nan  # a row of g
    with pytest.raises(G2Error, match=r"^can't compress lstm.weight_hh_l1_reverse.g: .*NaN"):
        compress(model, "gates=int8")
    compress(model, "embedding=int8")
    for wrong in (None, 3, b"gates=int8"):
        with pytest.raises(G2Error, match=f"a compression spec is text such as .*, got {wrong!r}"):
            compress(model, wrong)
    with pytest.raises(G2Error, match=r"compress takes a torch.nn.Module, got str; for a run, pass load\(run\).model"):
        compress("run", "gates=int8")
    with pytest.raises(G2Error, match="'speed' is not a group"):
        compress(model, "speed=int8")
    with pytest.raises(G2Error, match=r"'softmax=int8' would compress nothing of LSTM; .* has: gates, cell"):
        compress(nn.LSTM(2, 3), "softmax=int8")


def test_a_group_that_the_model_lacks_is_passed_over():
    small = compress(language_model(True), "gates=int8; softmax=int4")
    assert set(group_of(small).values()) == {"embedding"}
    assert small.softmax_weight is None
    assert type(small.embedding) is nn.Embedding


class Own(nn.LSTM):
    pass


class Scaled(nn.Embedding):
    def forward(self, tokens):
        return super().forward(tokens) * 2


@pytest.mark.parametrize(
    ("part", "spec", "message"),
    [
        (Own(8, 8), "gates=int8", "leaves part alone: Own is a subclass of LSTM"),
        (nn.utils.parametrizations.weight_norm(nn.LSTM(8, 8), "weight_hh_l0"), "cell=int8", "leaves part alone: Param"),
        (Scaled(11, 8), "embedding=int8", "leaves part.weight alone: Scaled is a subclass of Embedding"),
        (nn.Embedding(11, 8, max_norm=1.0), "embedding=int8", "leaves part.weight alone: max_norm changes"),
        (nn.utils.parametrizations.weight_norm(nn.Embedding(11, 8)), "embedding=int8", "alone: its weight is not a"),
    ],
)
def test_what_may_compute_something_else_is_left_alone_and_named(part, spec, message):
    model = nn.ModuleDict({"plain": nn.LSTM(8, 8), "words": nn.Embedding(5, 8), "part": part}).eval()
    with pytest.warns(UserWarning, match=message):
        small = compress(model, spec)
    assert type(small["part"]) is type(model["part"])
    assert isinstance(small["plain"], CompressedLSTM) == ("embedding" not in spec)
    compress(model, "embedding=int8" if "embedding" not in spec else "gates=int8")  # says nothing of other groups


def test_weights_that_others_use_are_left_alone():
    model = nn.ModuleDict({"lstm": nn.LSTM(8, 8), "words": nn.Embedding(32, 8), "other": nn.Bilinear(8, 8, 1)})
    model["other"].extra = model["words"].weight
    model["other"].more = model["lstm"].weight_ih_l0
    with (
        pytest.warns(UserWarning, match="compress leaves") as warned,
        pytest.raises(G2Error, match="would compress nothing of ModuleDict"),
    ):
        compress(model, "gates=int8; embedding=int8")
    messages = [str(one.message) for one in warned]
    assert any("leaves words.weight alone: its weights are also 'extra' of other" in one for one in messages)
    assert any("leaves lstm alone: its weights are also 'more' of other" in one for one in messages)


def test_the_package_is_called_like_its_function():
    assert g2lstm.compression.encodings.Dense is Dense
    assert isinstance(g2lstm.compress(nn.LSTM(2, 3), "gates=int8"), CompressedLSTM)
    assert isinstance(g2lstm.compress(nn.LSTM(2, 3), "small"), CompressedLSTM)


def test_evaluation_helpers_work_in_training_mode():
    small = compress(language_model(True), "gates=int8").train()
    tokens = torch.randint(23, (4, 2))
    with pytest.raises(G2Error, match="can't be trained"):
        small(tokens)
    with evaluating(small, "hard"):
        features = small(tokens).features
    assert features.isfinite().all()
    assert small.training
    assert encoded_matrices(small)["layers.0.weight_ih_l0.i"].shape == (9, 6)
