"""The compiled session of a translation model: the translations and the numbers of the model in torch."""

from copy import deepcopy
from functools import cache, partial

import numpy as np
import pytest
import torch

import g2lstm
from g2lstm.compression import kernel
from g2lstm.errors import G2Error
from g2lstm.nn.kernel import BUILDS
from g2lstm.runtime.plain import PlainTranslation
from g2lstm.runtime.sampling import Utf8
from g2lstm.runtime.session import TranslationSession
from g2lstm.tasks.mt.beam import open_session, session_for, translate
from g2lstm.tasks.mt.model import TranslationModel
from tests.nn.builds import only
from tests.tasks.mt.margins import best_and_margin, rounding

ENDS = {"source_eos": 2, "target_eos": 1}
SOURCES = [
    [int(token) for token in np.random.default_rng(length).integers(3, 50, length)]
    for length in (3, 0, 1, 7, 12, 2, 5, 30, 4, 0, 9, 6, 8, 11, 10, 13, 14, 15, 16, 20)
]
KINDS = {
    "float32": ({}, None),
    "int8": ({"tied": "none"}, "int8"),
    "small": ({"residual": True, "decoder_layers": 3, "encoder_layers": 3}, "small"),
    "low rank": ({"encoder_layers": 1, "decoder_layers": 1}, "gates=svd:8; cell=int4; linear=int4"),
    "few bits": ({"method": "sharpened"}, "gates=levels:5; cell=int3; embedding=int6; linear=int2"),
    "groups": ({"method": "binary", "gates": "ifo"}, "gates=int2,group:32; cell=int3,group:32; embedding=int4"),
}
# Steep and hard gates are left out: they magnify rounding, and a sum that it takes across zero switches a hard gate.
LONG = [("float32", 5, -2.0), ("int8", 6, -2.0)]
LONG += [pytest.param(kind, 6, -2.0, marks=pytest.mark.slow) for kind in ("small", "low rank")]
# Tokens that are bytes of characters, in turn: 0 and 1 are <unk> and <eos>.
PIECES = [b"a", *(bytes([byte]) for byte in "é猫🙂".encode()), "é".encode(), b"\x81a", "猫".encode()[1:]]
SPELLINGS = [b" <unk>", b"\n", *(PIECES[k % len(PIECES)] for k in range(68))]
SEARCHES = (
    {"beam": 1},
    {"beam": 5, "keep_attention": True},
    {"beam": 8, "n_best": 8, "length_penalty": 0.5, "forbidden": (0, 7, 8), "keep_attention": True},
    {"beam": 4, "n_best": 2, "min_length": 6, "max_length": 9},
    {"beam": 2, "max_length": 1, "min_length": 4},
    {"beam": 4, "max_length": 7, "utf8": Utf8(SPELLINGS)},
)

pytestmark = pytest.mark.skipif(not kernel.available(), reason="needs the compiled kernel")


def made(options, spec, seed=5, embedding=40, hidden=36, end=0.5):
    """A model with larger weights than usual, so that words differ in probability and sentences in length.

    With a low bias of the end, its sentences are as long as they may be.
    """
    torch.manual_seed(seed)
    layers = {"encoder_layers": 2, "decoder_layers": 2, **options}
    model = TranslationModel(50, 70, embedding, hidden, **layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)
        model.softmax_bias[1] = end
    model.eval()
    return model if spec is None else g2lstm.compress(model, spec)


def assert_same(found, expected):
    """The same sentences with the same numbers, up to the kernel's rounding."""
    assert [[one.tokens for one in best] for best in found] == [[one.tokens for one in best] for best in expected]
    for best, wanted in zip(found, expected, strict=True):
        for one, other in zip(best, wanted, strict=True):
            off = rounding([one.tokens])
            assert one.log_probability == pytest.approx(other.log_probability, abs=off)
            assert one.score == pytest.approx(other.score, abs=off)
            assert (one.attention is None) == (other.attention is None)
            if one.attention is not None:
                np.testing.assert_allclose(one.attention, other.attention, atol=1e-3)


@pytest.mark.parametrize(("kind", "seed", "end"), [*((kind, 5, 0.5) for kind in KINDS), *LONG])
def test_translations_are_those_of_torch(kind, seed, end):
    """Of torch in float64, unless its search was a tie up to the kernel's rounding."""
    model = made(*KINDS[kind], seed=seed, end=end)
    session, exact = g2lstm.stream(model), deepcopy(model).double()
    assert isinstance(session, TranslationSession)
    texts, ties, count = set(), 0, 0
    for number, options in enumerate(SEARCHES):  # each with one half of the sentences, then the other
        found = session.translate(SOURCES, **ENDS, **options)
        for source, best in list(zip(SOURCES, found, strict=True))[number % 2 :: 2]:
            expected, margin = best_and_margin(partial(translate, exact, [source], **ENDS, packed=False), **options)
            tokens, wanted = ([one.tokens for one in each] for each in (best, expected))
            texts |= set(map(tuple, wanted))
            count += 1
            if tokens != wanted:
                assert margin < rounding(wanted), (options, source, margin)
                ties += 1
            else:
                assert_same([best], [expected])
        assert_same(translate(model, SOURCES, **ENDS, **options, batch_size=3), found)
        assert_same([session.translate([one], **ENDS, **options)[0] for one in SOURCES[:6]], found[:6])
    assert len(texts) > 15
    assert ties <= count // 20


@cache
def translated(kind):
    """A model, and its translations by each search with the build that this processor prefers."""
    model = made(*KINDS[kind])
    session = g2lstm.stream(model)
    return model, [session.translate(SOURCES, **ENDS, **options) for options in SEARCHES]


@pytest.mark.parametrize("build", BUILDS)
def test_builds_agree(build):
    for kind in KINDS:
        model, expected = translated(kind)
        with only(build):
            session = g2lstm.stream(model)
            for options, found in zip(SEARCHES, expected, strict=True):
                assert_same(session.translate(SOURCES, **ENDS, **options), found)


def test_threads_change_nothing():
    model = made({}, None, embedding=256, hidden=256)
    with g2lstm.nn.record.evaluating(model):
        sessions = [open_session(model, threads) for threads in (1, 2, 3)]
    assert [one._compiled.threads for one in sessions] == [1, 2, 3]
    found = [one.translate(SOURCES, **ENDS, n_best=5, keep_attention=True) for one in sessions]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("gate", ["soft", "tempered", "hard"])
def test_gates_are_those_of_the_evaluation(gate):
    model = made({}, None)
    options = {**ENDS, "n_best": 3, "eval_gate": gate}
    assert_same(translate(model, SOURCES, **options), translate(model, SOURCES, **options, packed=False))


def test_without_a_kernel_numpy_translates(monkeypatch):
    model = made({}, "int8")
    expected = translate(model, SOURCES[:5], **ENDS, n_best=3)
    monkeypatch.setattr(kernel, "available", lambda: False)
    session = g2lstm.stream(model)
    assert session._compiled is None
    assert_same(session.translate(SOURCES[:5], **ENDS, n_best=3), expected)
    assert isinstance(session._plain, PlainTranslation)
    assert session_for(model) is None


def test_a_session_follows_the_weights_of_its_model():
    model = made({}, None)
    first = session_for(model)
    assert session_for(model) is first
    with torch.no_grad():
        model.softmax_bias[9] += 20.0
    second = session_for(model)
    assert second is not first
    model.softmax_bias.data[9] += 1.0  # which counts up no version
    assert session_for(model) is not second
    assert 9 in translate(model, [[3, 4]], **ENDS)[0][0].tokens


def test_torch_computes_what_a_session_can_not():
    assert session_for(made({}, None).double()) is None
    model = made({}, None)
    hook = model.attention.register_forward_hook(lambda *_: None)
    assert session_for(model) is None
    hook.remove()
    assert session_for(model) is not None
    assert session_for(torch.nn.Linear(2, 2)) is None


def test_mistakes_are_refused():
    session = g2lstm.stream(made({}, None))
    with pytest.raises(G2Error, match="token ids go from 0 to 49, got 50"):
        session.translate([[3, 50]], **ENDS)
    for end in (-1, 70):
        with pytest.raises(G2Error, match=f"target_eos must be a token id from 0 to 69, got {end}"):
            session.translate([[3]], source_eos=2, target_eos=end)
    with pytest.raises(G2Error, match="beam must be a whole number from 1 to 1000, got 0"):
        session.translate([[3]], **ENDS, beam=0)
    with pytest.raises(G2Error, match="line 2 has 3 tokens, more than max_source, which is 2"):
        session.translate([[3], [3, 3, 3]], **ENDS, max_source=2)
    model = made({}, None)
    with torch.no_grad():
        model.output.weight[0, 0] = torch.nan
    with pytest.raises(G2Error, match="are not numbers"):
        g2lstm.stream(model).translate([[3, 4]], **ENDS)
