"""Language and translation models in ONNX Runtime against PyTorch, whole and step by step."""

import functools

import numpy as np
import onnx
import pytest
import torch

from g2lstm.compression.model import compress
from g2lstm.export.onnx import export_onnx
from g2lstm.nn.record import evaluating
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.mt.beam import translate
from g2lstm.tasks.mt.model import TranslationModel
from tests.export.sessions import TOLERANCE, open_session, operators, run
from tests.requirements import needs_new_onnx

# By default, the tests of the command and of its files export one model of each task.
pytestmark = [needs_new_onnx, pytest.mark.slow, pytest.mark.filterwarnings("ignore:become float32")]

SPECS = {
    "low rank": "gates=svd:3; embedding=svd:4; softmax=svd:4",
    "low rank in few bits": "gates=svd:3,int8; cell=svd:3,int4; embedding=svd:4,int4; softmax=svd:4,int8",
    "int8": "gates=int8; cell=int8; embedding=int8; softmax=int8",
    "int4": "gates=int4; cell=int4; embedding=int4; softmax=int4",
    "five levels": "gates=round:0.2,clip:0.4; embedding=round:0.1,clip:0.2",
    "fine levels": "gates=round:0.001; embedding=round:0.0001",
}
SHALLOW = {"encoder_layers": 1, "decoder_layers": 1}
EOS = 1


def sharp(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model.eval()


def language_model(spec=None, **options):
    torch.manual_seed(0)
    model = sharp(LanguageModel(23, **({"embedding": 6, "hidden": 9, "layers": 2} | options)))
    return model if spec is None else compress(model, SPECS[spec])


def translation_model(spec=None, **options):
    torch.manual_seed(0)
    sizes = {"embedding": 6, "hidden": 8, "encoder_layers": 2, "decoder_layers": 2}
    model = sharp(TranslationModel(17, 17, **(sizes | options)))
    return model if spec is None else compress(model, SPECS[spec])


def assert_language_model_agrees(model, path):
    made = export_onnx(model, path)
    session = open_session(made.files[0])
    tokens = torch.randint(23, (9, 4))
    state = {
        f"{letter}{n}": t.numpy()
        for n, s in enumerate(model.initial_state(4))
        for letter, t in zip("hc", s, strict=True)
    }
    with evaluating(model), torch.no_grad():
        features, _, ends = model(tokens)
        expected = model.logits(features).log_softmax(-1)
    whole = run(session, tokens=tokens.numpy(), **state)
    np.testing.assert_allclose(whole["log_probabilities"], expected, rtol=TOLERANCE, atol=TOLERANCE)
    for t, row in enumerate(tokens):  # one step at a time, each from the state that the last one gave
        step = run(session, tokens=row.unsqueeze(0).numpy(), **state)
        np.testing.assert_allclose(step["log_probabilities"][0], expected[t], rtol=TOLERANCE, atol=TOLERANCE)
        state = {name: step[f"{name}_next"] for name in state}
    for n, (h, c) in enumerate(ends):
        np.testing.assert_allclose(state[f"h{n}"], h, rtol=TOLERANCE, atol=TOLERANCE)
        np.testing.assert_allclose(state[f"c{n}"], c, rtol=TOLERANCE, atol=TOLERANCE)
    return made


def greedy(encoder, decoder, sources, limit=12):
    """Greedy translations by ONNX Runtime alone, of a padded batch."""
    lengths = np.array([len(source) + 1 for source in sources])
    padded = np.full((lengths.max(), len(sources)), 5)
    for b, source in enumerate(sources):
        padded[: lengths[b], b] = [*source, EOS]
    state = run(encoder, source=padded, lengths=lengths)
    memory = {name: state.pop(name) for name in ("memory", "keys", "is_padding")}
    tokens, rows = np.full(len(sources), EOS), []
    for _ in range(limit):
        out = run(decoder, tokens=tokens, **memory, **state)
        np.testing.assert_allclose(out["attention"].sum(1), 1, rtol=1e-5)
        assert not out["attention"][memory["is_padding"]].any()
        tokens = out["log_probabilities"].argmax(1)
        rows.append(tokens)
        state = {name: out[f"{name}_next"] for name in state}
    columns = [column.tolist() for column in np.stack(rows, axis=1)]
    return [column[: column.index(EOS)] if EOS in column else column for column in columns]


SOURCES = [[3, 4, 5, 6, 7], [2], [7, 8, 9], [10, 11, 12, 13, 14, 15, 3]]


def assert_translation_model_agrees(model, made):
    encoder, decoder = (open_session(file) for file in made.files[:2])
    expected = translate(model, SOURCES, source_eos=EOS, target_eos=EOS, beam=1, max_length=12)
    assert greedy(encoder, decoder, SOURCES) == [best[0].tokens for best in expected]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Makes a translation model and its export, once for all tests that ask for them."""

    @functools.cache
    def make(spec, **options):
        model = translation_model(spec, **options)
        return model, export_onnx(model, tmp_path_factory.mktemp("export") / "model.onnx")

    return make


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tied": False, "embedding": 37, "hidden": 33, "method": "sharpened"},
        {"layers": 1, "embedding": 1, "hidden": 1, "method": "sigmoid"},
        {"layers": 3, "residual": True, "eval_gate": "tempered", "tau": 0.4, "gates": "ifo"},
        {"eval_gate": "hard"},
    ],
)
def test_language_model(tmp_path, options):
    made = assert_language_model_agrees(language_model(**options), tmp_path / "model.onnx")
    assert ("LSTM" in operators(made.files[0])) == (options.get("eval_gate") != "hard")
    model = onnx.load(made.files[0])
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} == {""}
    assert model.producer_name == "g2lstm"


@pytest.mark.parametrize(("spec", "tied"), list(zip(SPECS, [True, False] * 3, strict=True)))
def test_compressed_language_model(tmp_path, spec, tied):
    depth = {"int8": {"layers": 3, "residual": True}, "five levels": {"layers": 2}}.get(spec, {"layers": 1})
    made = assert_language_model_agrees(language_model(spec, tied=tied, **depth), tmp_path / "model.onnx")
    used = operators(made.files[0])
    assert ("MatMulNBits" in used) == (spec in ("int4", "five levels", "low rank in few bits"))
    assert bool(made.expanded) == ("fine" in spec or "bits" in spec or spec == "int8")


@pytest.mark.parametrize(("spec", "bytes_a_weight"), [(None, 4.0), ("int8", 1.0), ("int4", 0.625)])
def test_a_tied_matrix_takes_its_place_once(tmp_path, spec, bytes_a_weight):
    model = LanguageModel(3000, embedding=64, hidden=8, layers=1).eval()
    size = export_onnx(compress(model, SPECS[spec]) if spec else model, tmp_path / "model.onnx").files[0].stat().st_size
    scales_and_bias, layer = 2 * 4 * 3000, 4 * 64 * (64 + 64 + 2) * 4
    assert size < bytes_a_weight * 3000 * 64 + scales_and_bias + layer + 10_000


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tied": "none", "hidden": 33, "embedding": 35, "method": "sharpened", **SHALLOW},
        {"tied": "all", "residual": True, "encoder_layers": 3},
        {"eval_gate": "hard", **SHALLOW},
    ],
)
def test_translation_model(exported, options):
    model, made = exported(None, **options)
    assert_translation_model_agrees(model, made)
    assert [file.name for file in made.files] == ["model.encoder.onnx", "model.decoder.onnx", "model.json"]
    for file in made.files[:2]:
        onnx.checker.check_model(onnx.load(file), full_check=True)


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("low rank", {"tied": "none", **SHALLOW}),
        ("int4", {"tied": "output", **SHALLOW}),
        ("int8", {"tied": "all", "residual": True}),
        # In the default suite, a language model has the encodings that follow.
        pytest.param("low rank in few bits", {"tied": "output"}, marks=pytest.mark.slow),
        pytest.param("five levels", {"tied": "none"}, marks=pytest.mark.slow),
        pytest.param("fine levels", {"tied": "all", "residual": True}, marks=pytest.mark.slow),
    ],
)
def test_compressed_translation_model(exported, spec, options):
    assert_translation_model_agrees(*exported(spec, **options))


@pytest.mark.parametrize(
    ("spec", "options"),
    [(None, {}), ("low rank", {"tied": "none", **SHALLOW}), ("int4", {"tied": "output", **SHALLOW})],
)
def test_padding_never_changes_a_sentence(exported, spec, options):
    encoder = open_session(exported(spec, **options)[1].files[0])
    source, lengths = torch.randint(17, (7, 4)).numpy(), np.array([7, 3, 5, 1])
    together = run(encoder, source=source, lengths=lengths)
    for b, length in enumerate(lengths):
        alone = run(encoder, source=source[:length, b : b + 1], lengths=lengths[b : b + 1])
        np.testing.assert_allclose(together["memory"][b, :length], alone["memory"][0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(together["h0"][:, b], alone["h0"][:, 0], rtol=1e-5, atol=1e-6)
        assert together["is_padding"][b].tolist() == [t >= length for t in range(7)]


def test_many_hypotheses_of_a_sentence(exported):
    """K rows of each sentence look at one memory, as in beam search."""
    encoder, decoder = (open_session(file) for file in exported(None)[1].files[:2])
    state = run(encoder, source=torch.randint(17, (5, 2)).numpy(), lengths=np.array([5, 4]))
    memory = {name: state.pop(name) for name in ("memory", "keys", "is_padding")}
    tokens = np.array([2, 3, 4, 5, 6, 7])
    many = {name: value.repeat(3, axis=1) for name, value in state.items()}
    together = run(decoder, tokens=tokens, **memory, **many)["log_probabilities"]
    repeated = {name: value.repeat(3, axis=0) for name, value in memory.items()}
    np.testing.assert_allclose(
        together, run(decoder, tokens=tokens, **repeated, **many)["log_probabilities"], rtol=1e-5
    )
