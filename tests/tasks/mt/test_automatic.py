"""The settings that are chosen for sentence pairs."""

import importlib.util
import random

import pytest

from g2lstm.errors import G2Error
from g2lstm.tasks.mt.automatic import automatic
from g2lstm.tasks.recipes import load_recipe, parse_recipe


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))


def write(folder, lines, target="The {} houses, it seems.", ending="en"):
    folder.mkdir()
    draw = random.Random(0)
    numbers = [draw.randrange(1000) for _ in range(lines)]
    (folder / "train.de").write_text("".join(f"Die {number} Häuser, so scheint es.\n" for number in numbers))
    (folder / f"train.{ending}").write_text("".join(target.format(number) + "\n" for number in numbers))
    return str(folder)


def test_more_pairs_get_more_of_everything_but_dropout(tmp_path):
    tables = [automatic(write(tmp_path / str(lines), lines))[0] for lines in (200, 60_000)]
    small, large = map(parse_recipe, tables)
    assert small.data.vocabulary < large.data.vocabulary
    assert small.model.hidden < large.model.hidden
    assert small.model.dropout.output > large.model.dropout.output
    assert small.train.minutes < large.train.minutes
    assert small.train.batch_size < large.train.batch_size == 64
    assert small.train.optimizer.name == "adamw"


def test_what_it_saw(tmp_path):
    folder = tmp_path / "pairs"
    write(folder, 200)
    with (folder / "train.de").open("a") as german, (folder / "train.en").open("a") as english:
        german.write("\nDas Haus\n" * 20)
        english.write(f"A house.\n{'a house and ' * 20}\n" * 20)
    tables, look = automatic(str(folder))
    assert not tables["data"]["is_tokenized"]
    assert "evaluate" not in tables
    assert str(look).startswith("216 pairs to train on, plain text, ")
    assert " pairs with an empty side, " in str(look)
    assert look.odd > 10


def test_tokenised_text(tmp_path):
    folder = write(tmp_path / "pairs", 100, "the {} houses , it seems .")
    german = tmp_path / "pairs" / "train.de"
    german.write_text(german.read_text().replace(",", " ,").replace(".", " ."))
    recipe = load_recipe(folder, ["train.minutes=3"])
    assert (recipe.data.is_tokenized, recipe.evaluate.bleu.tokenize, recipe.train.minutes) == (True, "none", 3)
    assert (recipe.data.source, recipe.data.target) == ("de", "en")
    turned = load_recipe(folder, ["data.source=en", "data.target=de"])
    assert (turned.data.source, turned.data.target) == ("en", "de")


@pytest.mark.parametrize(
    ("line", "tokenize", "module"),
    [
        ("这是{}座房子。", "zh", "sacrebleu"), ("これは{}の家です。", "ja-mecab", "MeCab"),
        ("นี่คือบ้าน {} หลัง", "char", "sacrebleu"),
        ("집이 {} 채 있습니다", "ko-mecab", "mecab_ko"), ("{} дома.", "13a", "sacrebleu"),
    ],
)  # fmt: skip
def test_bleu_follows_the_script_of_the_target(tmp_path, line, tokenize, module):
    folder = write(tmp_path / "pairs", 100, line, "xx")
    expected = tokenize if importlib.util.find_spec(module) else "char"
    by_hand = {"task": "mt", "data": {"path": folder, "source": "de", "target": "xx"}}
    for tables in (automatic(folder)[0], by_hand, {**by_hand, "evaluate": {"beam": 2}}):
        recipe = parse_recipe(tables)
        assert recipe.evaluate.bleu.tokenize == expected
        assert recipe.train.best_by == ("chrf" if expected == "char" else "bleu")  # where BLEU can't tell
        assert recipe.data.is_tokenized is False
    chosen = {**by_hand, "train": {"best_by": "loss"}, "evaluate": {"bleu": {"tokenize": "intl"}}}
    recipe = parse_recipe(chosen)
    assert (recipe.evaluate.bleu.tokenize, recipe.train.best_by) == ("intl", "loss")


def test_whether_the_text_is_tokenised_is_found_out(tmp_path):
    folder = tmp_path / "pairs"
    write(folder, 100)
    data = {"path": str(folder), "source": "de", "target": "en"}

    def found(**more):
        recipe = parse_recipe({"task": "mt", "data": {**data, **more}})
        return recipe.data.is_tokenized, recipe.evaluate.bleu.tokenize

    assert found() == (False, "13a")
    assert found(is_tokenized=True) == (True, "none")
    for text in folder.iterdir():
        text.write_text(text.read_text().replace(",", " ,").replace(".", " ."))
    assert found() == (True, "none")
    assert found(is_tokenized=False) == (False, "13a")
    assert found(path=str(tmp_path / "nowhere")) == (False, "13a")
    named = parse_recipe({"task": "mt", "data": {"name": "multi30k-de-en", "source": "de", "target": "en"}})
    assert named.data.is_tokenized
    for wrong in ({"evaluate": 3}, {"evaluate": {"bleu": 3}}, {"train": 3}):
        with pytest.raises(G2Error, match="must be a section"):
            parse_recipe({"task": "mt", "data": data, **wrong})
    for bad in ("\0", "~nobody-of-this-name"):
        with pytest.raises(G2Error, match=r"data\.path"):
            found(path=bad)


def test_folders_without_pairs(tmp_path):
    (tmp_path / "train.de").write_text("ein haus\n" * 50)
    with pytest.raises(G2Error, match="has no pair of texts such as train.de and train.en"):
        automatic(str(tmp_path))
    (tmp_path / "train.en").write_text("\n" * 50)
    with pytest.raises(G2Error, match="train.en contains no text"):
        automatic(str(tmp_path))
    (tmp_path / "train.de").write_text("ein haus\n" * 25 + "\n" * 25)
    (tmp_path / "train.en").write_text("\n" * 25 + "a house\n" * 25)
    with pytest.raises(G2Error, match="have no pair with text on both sides"):
        automatic(str(tmp_path))


def test_dropout_is_for_the_width_that_is_used(tmp_path):
    folder = write(tmp_path / "pairs", 60_000)
    narrow, usual = (load_recipe(folder, each).model for each in (["model.hidden=192"], []))
    assert (narrow.hidden, narrow.embedding) == (192, usual.embedding)
    assert 0.1 < narrow.dropout.output < usual.dropout.output
    assert narrow.dropout.output / usual.dropout.output == pytest.approx(192 / usual.hidden, abs=0.05)
