"""A translation model without torch: the translations and the numbers that torch gives."""

import random
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch

import g2lstm
from g2lstm import G2Error
from g2lstm.compression import kernel
from g2lstm.runtime import load
from g2lstm.tasks.mt.recipe import MtModel, MtRecipe
from tests.runs.test_compressed import compressed_run
from tests.runs.toys import grow_, replace_weight_, translation_run
from tests.runtime.test_sampling import NO_CHARACTER
from tests.tasks.mt.margins import best_and_margin, rounding

BPE = ("data.tokenizer=bpe", "data.vocabulary=290", "data.is_tokenized=false", "data.lowercase=true")
KINDS = [
    ((), None),
    ((), "small"),
    ((*BPE, "model.tied=none"), "small"),
    ((*BPE, "data.joint=true", "model.tied=all", "model.residual=true", "model.layers=3"), "int8"),
    (("model.layers=1", "model.decoder_layers=3", "model.residual=true"), "gates=svd:3; cell=int4; linear=int4"),
    (("model.method=sharpened", "evaluate.beam=3", "evaluate.length_penalty=0.5"), "gates=round:0.2,clip:0.4"),
    (("model.method=binary", "model.gates=ifo"), "cell=int8; embedding=int4"),
]
LINES = ["  ein haus ", "hund\tund  Baum und hund", "", "ein", "ein ganz anderes haus ." * 3]


@pytest.fixture(
    params=[pytest.param(one, marks=() if k in (0, 3, 5) else pytest.mark.slow) for k, one in enumerate(KINDS)],
    ids=lambda one: f"{' '.join(one[0])} {one[1]}",
)
def run(request, tmp_path):
    """Runs of all kinds."""
    overrides, spec = request.param
    torch.manual_seed(1)
    made = grow_(translation_run(tmp_path, *overrides), 3, 1, -4.0)  # sentences end later
    return made if spec is None else compressed_run(made, spec)[0]


@pytest.fixture
def plain(tmp_path):
    return translation_run(tmp_path)


def test_translations_are_those_of_torch(run):
    """Of torch in float64, unless its search was a tie up to the kernel's rounding; exactly those of its session."""
    model, trained, exact = load(run), g2lstm.load(run), g2lstm.load(run)
    exact.model.double()
    words = ["ein", "haus", "baum", "hund", "und", "Katze"]
    lines = [*LINES, *(" ".join(random.Random(seed).choices(words, k=seed)) for seed in range(1, 12, 2))]
    assert model.search_facts == trained.search_facts
    facts, texts, ties = {"beam": trained.search_facts.beam}, set(), 0
    for options in ({}, {"beam": 1}, {"beam": 6, "n_best": 4, "length_penalty": 2.0}, {"max_length": 3}):
        ours = model.search(lines, with_attention=True, **options)
        for one, other in zip(chain(*ours), chain(*trained.search(lines, **options)), strict=True):
            assert one._replace(attention=None, alignment=None) == other
        for line, found in zip(lines, ours, strict=True):
            search = partial(exact.search, [line], with_attention=True)
            expected, margin = best_and_margin(search, **facts | options)
            texts |= {one.text for one in expected}
            off = rounding([one.target for one in expected])
            if [one.target_ids for one in found] != [one.target_ids for one in expected]:
                assert margin < off
                ties += 1
                continue
            for one, other in zip(found, expected, strict=True):
                parts = {"score": 0, "log_probability": 0, "attention": None}
                assert one._replace(**parts) == other._replace(**parts)
                assert one.log_probability == pytest.approx(other.log_probability, abs=off)
                assert one.score == pytest.approx(other.score, abs=off)
                if one.attention is not None:
                    np.testing.assert_allclose(one.attention, other.attention, atol=1e-4)
    assert len(texts) > 15
    assert ties <= 2
    assert model.translate("ein haus\nhund\n", as_text=True) == trained.translate("ein haus\nhund\n", as_text=True)


@pytest.mark.parametrize("how", ["session", "torch", "numpy"])
def test_translations_are_whole_characters(tmp_path, monkeypatch, how):
    """Untrained models of bytes, which would write halves of characters in most lines."""
    torch.manual_seed(1)
    path = grow_(translation_run(tmp_path, *BPE), 4, 1, 0.0)
    if how == "numpy":
        monkeypatch.setattr(kernel, "available", lambda: False)
    model = g2lstm.load(path) if how == "torch" else load(path)
    if how == "torch":
        monkeypatch.setattr("g2lstm.tasks.mt.beam.session_for", lambda model: None)
    lines = ["ein haus", "hund", "baum und hund"]
    each = ({"n_best": 5}, {"max_length": 3}, {"beam": 1, "min_length": 40}, {"sample": True, "n_best": 9, "seed": 2})
    found = [one.target_ids for options in each for one in chain(*model.search(lines, **options))]
    written = [b"".join(map(model.target.bytes_of, ids)) for ids in found]
    texts = [some.decode() for some in written if not NO_CHARACTER.search(some)]
    assert len(texts) > len(written) - 9
    assert max(map(ord, "".join(texts))) > 0x7FF  # characters of three bytes


def test_other_gates_can_be_chosen(plain):
    grow_(plain, 3, 1, -4.0)
    trained = g2lstm.load(plain)
    for gate in ("soft", "tempered", "hard"):
        found = load(plain, eval_gate=gate).search(["ein haus und hund"], n_best=5)[0]
        expected = trained.search(["ein haus und hund"], n_best=5, eval_gate=gate)[0]
        assert [one.target_ids for one in found] == [one.target_ids for one in expected]
        assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-4)


def test_progress_and_limits(plain):
    model, seen = load(plain), []
    model.search(["ein", "", "haus"], progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (3, 3)
    with pytest.raises(G2Error, match="line 2 has 3 tokens, more than max_source, which is 2"):
        model.search(["ein", "ein ein ein"], max_source=2)
    with pytest.raises(G2Error, match="max_length must be a whole number from 1 to 2147483647, got 0"):
        model.search(["ein"], max_length=0)
    with pytest.raises(G2Error, match="beam must be a whole number from 1 to 1000, got 0"):
        model.search(["ein"], beam=0)
    with pytest.raises(G2Error, match="lines must be a list of sentences, got one string"):
        model.search("ein")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": "5"}, "beam must be a whole number from 1 to 1000, got '5'"),
        ({"length_penalty": "1"}, "length_penalty must be from 0 to 10, got '1'"),
        ({"n_best": 1.5}, "n_best must be from 1 to the beam of 5, got 1.5"),
        ({"max_length": "9"}, "max_length must be a whole number from 1 to 2147483647, got '9'"),
        ({"max_source": "9"}, "max_source must be a whole number of at least 0, got '9'"),
        ({"min_length": "1"}, "min_length must be 0 to 1000, got '1'"),
        ({"min_length": 5, "max_length": 4}, "min_length is 5, more than max_length, which is 4"),
        ({"sample": True, "temperature": "x"}, "temperature must be a finite number of at least 0, got 'x'"),
        ({"sample": True, "seed": "y"}, "seed must be a whole number of at least 0, got 'y'"),
        ({"sample": True, "n_best": "2"}, "n_best must be a whole number of at least 1, got '2'"),
    ],
)
def test_arguments_of_the_wrong_kind(plain, options, message):
    for model in (load(plain), g2lstm.load(plain)):
        with pytest.raises(G2Error, match=message):
            model.search(["ein haus"], **options)


def test_an_old_recipe_has_todays_defaults(plain):
    path = plain / "recipe.toml"
    keys = ("beam", "length_penalty", "is_tokenized", "residual")
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith(keys)))
    facts, how = load(plain).search_facts, MtRecipe.model_fields["evaluate"].get_default(call_default_factory=True)
    assert facts[:3] == (how.beam, how.length_penalty, True)
    assert not MtModel().residual


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("bridge.weight", None, "bridge.weight must be float32 with 2 dimensions, got nothing"),
        ("bridge.weight", torch.zeros(18, 8), r"the size of bridge is \(18, 8\), expected \(18, 9\)"),
        ("attention.key.weight", torch.zeros(9, 8), r"the size of attention.key is \(9, 8\), expected \(9, 9\)"),
        ("output.weight", torch.zeros(8, 9), r"the size of output is \(8, 9\), expected \(8, 18\)"),
        ("source_embedding.weight", torch.zeros(7, 9), "the size of the source embedding is"),
        ("encoder.1.weight_ih_l0", torch.zeros(36, 17), "the size of the inputs of the layers is"),
        ("encoder.0.weight_hh_l0_reverse", torch.zeros(36, 8), "numbers, expected"),
        ("more", torch.zeros(2), "it holds 'more', which this model has no place for"),
    ],
)
def test_weights_that_do_not_fit(plain, name, change, message):
    replace_weight_(plain, name, change)
    with pytest.raises(G2Error, match=message):
        load(plain)
