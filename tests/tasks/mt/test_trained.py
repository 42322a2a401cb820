"""Translation of text: what is said of white space, unknown words, sub-words and limits, and the score of a split."""

import json
import random

import numpy as np
import pytest
import torch
from accelerate import Accelerator

import g2lstm
from g2lstm.errors import G2Error
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.trained import score
from g2lstm.runtime.beam import Hypothesis
from g2lstm.tasks.mt import trained as translation
from g2lstm.tasks.mt.trained import SOURCE_TOKENIZER
from g2lstm.tasks.recipes import parse_recipe
from g2lstm.tasks.trained import Scoring
from g2lstm.text.corpus import PairFiles, read_pairs
from g2lstm.text.lines import PIECE_BYTES
from g2lstm.text.tokenize import train_bpe_tokenizer
from g2lstm.training.start import prepare

GERMAN = ["ein", "haus", "Baum", "mädchen", "und"]
ENGLISH = ["a", "house", "Tree", "girl", "and"]
BPE = ("data.tokenizer=bpe", "data.vocabulary=290")


@pytest.fixture
def made(tmp_path):
    """Makes a run of random weights, with overrides of its recipe, and gives the task of its training too."""
    for split, size in (("train", 40), ("valid", 12), ("test", 6)):
        picks = [random.Random(f"{split}{line}").choices(range(5), k=6) for line in range(size)]
        for ending, words in (("de", GERMAN), ("en", ENGLISH), ("fr", ENGLISH)):
            rare = [f"{ending}{split}{line}" for line in range(size)]  # in no vocabulary of frequent words
            lines = [" ".join([*(words[k] for k in pick), rare[line]]) for line, pick in enumerate(picks)]
            (tmp_path / f"{split}.{ending}").write_text("\n".join(lines) + "\n")

    def make(*overrides):
        tables = {
            "task": "mt",
            "data": {"path": str(tmp_path), "source": "de", "target": "en", "tokenizer": "word"},
            "model": {"embedding": 8, "hidden": 9, "layers": 2},
            "train": {"epochs": 1, "batch_size": 4},
        }
        recipe = parse_recipe(tables, overrides)
        task, tokenizers = prepare(recipe, Accelerator(cpu=True))
        run = RunDirectory.create(tmp_path / "run", recipe, tokenizers)
        with torch.no_grad():
            for parameter in task.model.parameters():
                parameter.mul_(3)  # so that words differ in probability
        run.save_weights(task.model, task.facts)
        return g2lstm.load(run.path), task

    return make


def texts(found):
    return [best[0].text for best in found]


@pytest.mark.parametrize("overrides", [(), BPE], ids=["word", "bpe"])
def test_white_space_changes_nothing(made, overrides):
    model, _ = made(*overrides)
    lines = ["ein mädchen", "ein mädchen ", "\tein  mädchen\r", " ein \t mädchen\r\n", "ein\u00a0mädchen"]
    lines += ["\ufeffein\u3000ma\u0308d\u00adchen\x00", "", " ", "\t \r\x07"]
    found = texts(model.search(lines))
    assert found[0]
    assert found[:6] == [found[0]] * 6
    assert found[6:] == [""] * 3
    assert model.cleaned("  a  b ") == "a b"


def test_tokenizers_that_do_not_clean_read_as_before(made):
    model, _ = made(*BPE, "data.is_tokenized=true")
    lines = ["ein haus", " ein  haus\r", "ein\u00a0haus"]
    old = train_bpe_tokenizer(["ein haus"] * 9, vocabulary=270, prefix_space=True, is_tokenized=True)
    model.tokenizers[SOURCE_TOKENIZER] = old
    plain, spaces, unbroken = texts(model.search(lines))
    assert plain == spaces != unbroken
    assert model.cleaned("\x07 a  b\u00a0c ") == "\x07 a b\u00a0c"


def test_tokens_of_sub_words_are_shown_for_people(made):
    model, _ = made(*BPE)
    found = model.search(["mädchen ein mädchenhaus"], with_attention=True)[0][0]
    assert found.source[:2] == ["mädchen", "ein"]
    assert found.source[-1] == "<eos>"
    assert any(token.startswith("##") for token in found.source)
    assert not any("Ġ" in token or "Ã" in token for token in [*found.source, *found.target])
    assert len(found.target) == len(found.target_ids) + 1 == len(found.attention)


def test_sub_words_never_say_unknown(made):
    model, _ = made(*BPE)
    with torch.no_grad():
        model.model.softmax_bias[model.target.unk_id] = 100.0
    for best in model.search(["ein haus", "baum"], n_best=3):
        assert all(model.target.unk_id not in one.target_ids for one in best)


def test_an_unknown_word_is_copied_as_the_tokenizer_cut_it(made, monkeypatch):
    model, _ = made("data.lowercase=true")
    attention = np.eye(3)[1:]  # looks at the second source word, then at the end
    found = [[Hypothesis([model.target.unk_id], 0.0, 0.0, attention)]]
    monkeypatch.setattr(translation, "translate", lambda *args, **options: found)
    assert texts(model.search(["zwei\x1fdrei Vier"])) == ["Vier"]


def test_limits_and_penalty_reach_the_search(made):
    model, _ = made()
    with torch.no_grad():
        model.model.softmax_bias[model.target.eos_id] = -100.0  # it never ends by itself
    assert [len(best[0].target_ids) for best in model.search(["ein haus"], max_length=3)] == [3]
    assert [len(best[0].target_ids) for best in model.search(["ein haus"])] == [14]
    for penalty in (0, 0.5, 2):
        found = model.search(["ein haus"], max_length=3, length_penalty=penalty)[0][0]
        assert found.score == pytest.approx(found.log_probability / 4**penalty)
    long = "ein " * 1001
    with pytest.raises(G2Error, match="line 2 has 1001 tokens, .* split it into sentences, or raise --max-source"):
        model.search(["ein", long], max_length=1)
    assert len(model.search(["ein", long], max_length=1, max_source=None)) == 2
    with pytest.raises(G2Error, match="line 1 has 2 tokens"):
        model.search(["ein haus"], max_source=1)


def test_bad_arguments(made, monkeypatch):
    model, _ = made("data.target=fr")
    monkeypatch.setattr(translation, "translate", None)  # all is refused before
    with pytest.raises(G2Error, match="lines must be a list of sentences, got one string"):
        model.search("ein haus")
    with pytest.raises(G2Error, match=r"got 'fr'; leave out --detokenize \(as_text in Python\)"):
        model.translate("ein haus", as_text=True)


@pytest.mark.parametrize("lowercase", ["true", "false"])
@pytest.mark.parametrize("overrides", [(), BPE], ids=["word", "bpe"])
def test_validation_has_the_score_of_greedy_evaluation(made, monkeypatch, overrides, lowercase):
    """With a model that says what it learnt to say, but for the last two words of each line."""
    model, task = made(*overrides, f"data.lowercase={lowercase}")
    _, references = model.split("valid")
    asked = []

    def nearly_right(_, sources, **options):
        others = ("eval_gate", "progress", "utf8")
        asked.append({name: value for name, value in options.items() if name not in others})
        said = [[*model.target.encode(" ".join(line.split()[:-2])), model.target.unk_id] for line in references]
        looks = [torch.eye(len(ids) + 1, len(source) + 1) for ids, source in zip(said, sources, strict=True)]
        return [[Hypothesis(ids, 0.0, 0.0, look)] for ids, look in zip(said, looks, strict=True)]

    monkeypatch.setattr(translation, "translate", nearly_right)
    result = score(model, Scoring("valid", beam=1))
    task.next_batch()  # before the first, weights are random and nothing is translated
    found = task.validate()
    assert found.scores["bleu"] == result["bleu"]
    assert 20 < result["bleu"] < 99
    assert found.criterion == -result["bleu"]
    assert asked[0] == asked[1]
    assert f"case:{'lc' if lowercase == 'true' else 'mixed'}" in result["bleu_signature"]


def test_a_very_long_line_is_validated_and_scored(made, tmp_path):
    model, task = made("evaluate.beam=1")
    with torch.no_grad():
        for each in (model.model, task.model):
            each.softmax_bias[task.tokenizers[1].eos_id] = 100.0  # nothing is said, so that it takes no time
    (tmp_path / "valid.de").write_text("ein " * 1200 + "\n")
    (tmp_path / "valid.en").write_text("a house and a tree\n")
    assert score(model, Scoring("valid"))["sentences"] == 1
    assert prepare(model.recipe, Accelerator(cpu=True))[0].validate().scores["bleu"] == 0


def test_case_matters_unless_the_recipe_says_otherwise(made, monkeypatch):
    model, _ = made()
    _, references = model.split("test")
    said = [[translation.Translation(line.upper(), 0.0, 0.0, [], [], None, [])] for line in references]
    monkeypatch.setattr(type(model), "search", lambda *args, **options: said)
    assert score(model, Scoring("test"))["bleu"] < 10
    how = model.recipe.evaluate
    how = how.model_copy(update={"bleu": how.bleu.model_copy(update={"lowercase": True})})
    model.recipe = model.recipe.model_copy(update={"evaluate": how})
    assert score(model, Scoring("test"))["bleu"] > 99


def test_what_bleu_compares_follows_the_data():
    data, train = {"path": ".", "source": "de", "target": "en"}, {"epochs": 1, "batch_size": 4}
    tables = {"task": "mt", "data": data, "train": train}
    for overrides, tokenize, lowercase in (
        ([], "13a", False),
        (["data.is_tokenized=true"], "none", False),
        (["data.is_tokenized=true", "data.lowercase=true"], "none", True),
        (["data.is_tokenized=false", "evaluate.bleu.tokenize=intl", "data.lowercase=true"], "intl", True),
        (["data.lowercase=true", "evaluate.bleu.lowercase=false", "evaluate.beam=2"], "13a", False),
    ):
        bleu = parse_recipe(tables, overrides).evaluate.bleu
        assert (bleu.tokenize, bleu.lowercase) == (tokenize, lowercase)
    for wrong in ("evaluate.length_penalty=11", "evaluate.beam=1001", "evaluate.beam=0"):
        with pytest.raises(G2Error, match=wrong.split("=")[0]):
            parse_recipe(tables, [wrong])


def test_settings_of_the_tokenizers_reach_them(made):
    _, apart = made(*BPE)
    assert apart.tokenizers[0].fingerprint != apart.tokenizers[1].fingerprint


def test_one_tokenizer_for_both_sides(made):
    _, joint = made(*BPE, "data.joint=true", "model.tied=all")
    assert joint.tokenizers[0].fingerprint == joint.tokenizers[1].fingerprint


@pytest.mark.parametrize("is_tokenized", [True, False])
def test_punctuation_of_tokenised_text_stays_in_its_word(made, is_tokenized):
    _, task = made(*BPE, f"data.is_tokenized={str(is_tokenized).lower()}")
    settings = json.dumps(json.loads(task.tokenizers[0].to_json())["pre_tokenizer"])
    assert ("Split" in settings) == is_tokenized, settings


def test_a_line_beyond_what_is_read_at_once_is_one_line(tmp_path):
    long = "ein " * (PIECE_BYTES // 4 + 5)
    files = PairFiles(tmp_path / "a.de", tmp_path / "a.en")
    files.source.write_text(f"{long}\nkurz\n")
    files.target.write_text("a\nshort\n")
    sources, targets = read_pairs(files)
    assert sources == [long, "kurz"]
    assert targets == ["a", "short"]
    files.target.write_text("a\n")
    with pytest.raises(G2Error, match=r"a.de has 2 lines, but .*a.en has 1; they must have the same number"):
        read_pairs(files)
