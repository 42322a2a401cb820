"""The settings that are chosen for a text."""

import random

import pytest

from g2lstm.errors import G2Error
from g2lstm.tasks.lm.automatic import automatic
from g2lstm.tasks.recipes import load_recipe, parse_recipe

WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "ne") for b in ("ra", "sen", "to", "ver")]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))


def plain(lines, mark=","):
    draw = random.Random(0)
    halves = (" ".join(draw.choices(WORDS, k=6)) for _ in range(2 * lines))
    return "".join(f"{half}{mark} {other}.\n" for half, other in zip(halves, halves, strict=True))


def chosen(path, text):
    path.write_text(text, encoding="utf-8")
    return parse_recipe(automatic(str(path)))


def test_a_longer_text_gets_more_of_everything_but_dropout(tmp_path):
    small, large = (chosen(tmp_path / f"{lines}.txt", plain(lines)) for lines in (40, 30_000))
    assert small.data.vocabulary < large.data.vocabulary
    assert small.model.embedding < large.model.embedding
    assert small.model.dropout.output > large.model.dropout.output
    assert small.train.minutes < large.train.minutes
    assert small.train.batch_size < large.train.batch_size == 16
    assert small.data.tokenizer == "bpe"


def test_what_kind_of_text_it_is(tmp_path):
    assert not chosen(tmp_path / "plain.txt", plain(50)).data.is_tokenized
    assert chosen(tmp_path / "tokens.txt", plain(50, " ,").replace(".\n", " .\n")).data.is_tokenized
    signs = "".join(chr(0x4E00 + number) for number in range(1500))
    assert chosen(tmp_path / "chinese.txt", f"{signs}\n" * 20).data.vocabulary >= 3000


def test_a_text_stands_for_its_recipe(tmp_path):
    (tmp_path / "my").write_text(plain(50))
    assert load_recipe(tmp_path / "my", ["train.minutes=3"]).train.minutes == 3
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "train.txt").write_text(plain(50))
    assert load_recipe(folder).data.path == str(folder)
    (tmp_path / "other").write_text('task = "lm"\ndata.name = "embedded"\n')  # a recipe by another name
    assert load_recipe(tmp_path / "other").data.name == "embedded"


def test_dropout_is_for_the_width_that_is_used(tmp_path):
    """Few units on a text that could feed more need less dropout."""
    path = tmp_path / "my.txt"
    path.write_text(plain(3000))
    usual = load_recipe(path).model
    narrow, wide = (load_recipe(path, [f"model.hidden={usual.hidden * by // 4}"]).model for by in (3, 5))
    assert narrow.dropout.output < usual.dropout.output < wide.dropout.output
    assert narrow.weight_dropout < usual.weight_dropout < wide.weight_dropout
    assert load_recipe(path, [f"model.hidden={usual.hidden}"]).model == usual
    told = load_recipe(path, ["model.hidden=64", "model.dropout.output=0.4"]).model
    assert (told.hidden, told.dropout.output) == (64, 0.4)
    with pytest.raises(G2Error, match="model.hidden"):
        load_recipe(path, ["model.hidden=wide"])
