"""The page in a real browser: it reads, writes and translates as Python does, and shows the same gates."""

import random

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import g2lstm
from g2lstm.export.html.page import _tokenizer
from g2lstm.runs.directory import RunDirectory
from g2lstm.text.tokenize import train_bpe_tokenizer, train_word_tokenizer
from tests.conftest import PATIENCE
from tests.export.html.test_export import NASTY, nasty_run
from tests.fuzz import SHORT
from tests.runs.test_compressed import compressed_run
from tests.runs.toys import language_run, translation_run

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
expect.set_options(timeout=PATIENCE)

GATES = ("input", "forget", "output")


def bolder(run, spec=None):
    """The run with larger weights, so that words differ in probability; compressed if there is a spec."""
    path = run / "model.safetensors"
    weights = {name: 3 * tensor for name, tensor in load_file(path).items()}
    save_file(weights, path, RunDirectory(run).training_facts())
    return run if spec is None else compressed_run(run, spec)[0]


def type_text(page, text):
    page.locator("#text").fill(text)
    page.keyboard.press("Enter")


def assert_gates(found, reading):
    """Whether the layers of the page are those of a reading."""
    assert [layer["title"] for layer in found] == [layer.title for layer in reading.layers]
    for ours, theirs in zip(found, reading.layers, strict=True):
        assert (ours["name"], ours["direction"], ours["side"]) == (theirs.name, theirs.direction, theirs.side)
        for gate in GATES:
            values = getattr(theirs, gate)
            np.testing.assert_allclose(ours["means"][gate], values.mean(axis=1), atol=2e-5)
            decided = ((values < 0.1) | (values > 0.9)).mean(axis=1)
            np.testing.assert_allclose(ours["decided"][gate], decided, atol=1.5 / values.shape[1])


READ = """async (text) => {
  const { model } = await g2lstm;
  const reading = await model.reading(text, () => {});
  for (const layer of reading.layers) delete layer.gates;
  return reading;
}"""
LOG_PROBABILITIES = """async (tokens) => {
  const { model } = await g2lstm;
  const state = model.start();
  return tokens.map((token) => Array.from(model.logProbabilities(model.read(token, state))));
}"""


@pytest.mark.parametrize(
    ("overrides", "spec"),
    [
        ((), None),
        (("model.tied=false", "model.residual=true", "model.layers=3", "model.embedding=12"), "small"),
        (
            ("model.method=sharpened", "data.tokenizer=bpe", "data.vocabulary=280"),
            "gates=svd:4; cell=int4; embedding=int6",
        ),
        (("data.tokenizer=character",), "small"),
        (("model.method=binary", "model.gates=ifo"), "cell=int8; embedding=svd:3,int8"),
        (("model.eval_gate=tempered",), "gates=round:0.2,clip:0.4; cell=round:0.001; embedding=levels:15"),
    ],
)
def test_a_language_model_computes_as_in_python(open_page, tmp_path, overrides, spec):
    run = bolder(language_run(tmp_path, *overrides), spec)
    page, trained = open_page(run), g2lstm.load(run)
    tokens = [1, 5, 3, 0, 7, 7, 2]
    with torch.no_grad():
        features = trained.model(torch.tensor(tokens).unsqueeze(1)).features[:, 0]
        expected = trained.model.logits(features).log_softmax(-1).numpy()
    np.testing.assert_allclose(page.evaluate(LOG_PROBABILITIES, tokens), expected, atol=1e-4)
    text = "w1 w5 unheard w7\nw3"
    found, reading = page.evaluate(READ, text), trained.read(text)
    assert found["tokens"] == reading.tokens
    assert found["unknown"] == reading.unknown
    assert_gates(found["layers"], reading)
    assert [word for word, _ in found["next_words"]] == [word for word, _ in reading.next_words]
    shares = [share for _, share in found["next_words"]]
    np.testing.assert_allclose(shares, [share for _, share in reading.next_words], atol=1e-5)
    said = page.evaluate(
        """async () => {
          const { model } = await g2lstm;
          const ids = [];
          for await (const id of model.continuation("w1 w2", { temperature: 0 }, () => {})) {
            if (ids.push(id) === 20) break;
          }
          return model.tokenizer.decode([...model.lines("w1 w2").ids.slice(1), ...ids]);
        }"""
    )
    assert said.rstrip("\ufffd") == trained.generate("w1 w2", tokens=20, temperature=0)  # which ends with a character


TRANSLATE = """async ([lines, options]) => {
  const { model } = await g2lstm;
  const found = [];
  for (const line of lines) found.push(await model.translate(line, options));
  return found.map(({ text, tokens, score, attention }) => ({ text, tokens, score, attention }));
}"""
BPE = ("data.tokenizer=bpe", "data.vocabulary=290")


@pytest.mark.parametrize(
    ("overrides", "spec"),
    [
        ((), "small"),
        ((*BPE, "data.is_tokenized=false", "data.lowercase=true", "model.tied=none"), "small"),
        ((*BPE, "data.joint=true", "model.tied=all", "model.residual=true", "model.layers=3"), "linear=svd:3,int8"),
        (("model.layers=1", "model.decoder_layers=3", "model.method=binary", "evaluate.length_penalty=0.5"), None),
    ],
)
def test_a_translation_model_translates_as_in_python(open_page, tmp_path, overrides, spec):
    run = translation_run(tmp_path, *overrides)
    weights = load_file(run / "model.safetensors")
    weights["softmax_bias"][1] = -1.5  # <eos>, so that sentences are not too short
    save_file(weights, run / "model.safetensors", RunDirectory(run).training_facts())
    run = bolder(run, spec)
    page, trained = open_page(run), g2lstm.load(run)
    words = ["ein", "haus", "baum", "hund", "und", "Katze"]
    lines = ["  ein\t haus ", "", *(" ".join(random.Random(seed).choices(words, k=seed)) for seed in range(1, 10))]
    for beam in (1, 5):
        found = page.evaluate(TRANSLATE, [lines, {"beam": beam}])
        expected = [best[0] for best in trained.search(lines, beam=beam, with_attention=True)]
        assert [one["text"] for one in found] == [one.text for one in expected]
        assert [one["tokens"] for one in found] == [one.target_ids for one in expected]
        np.testing.assert_allclose([one["score"] for one in found], [one.score for one in expected], atol=1e-4)
        for ours, theirs in zip(found, expected, strict=True):
            if theirs.attention is not None:
                np.testing.assert_allclose(ours["attention"], theirs.attention, atol=1e-4)
    assert len({one["text"] for one in found}) > 3
    line = "ein baum und Katze"
    found, reading = page.evaluate(READ, line), trained.read(line)
    assert found["tokens"] == reading.tokens
    assert found["unknown"] == reading.unknown
    assert (found["translation"], found["produced"]) == (reading.translation, reading.produced)
    assert_gates(found["layers"], reading)


class Kept:
    """A payload that keeps an array as a list."""

    def array(self, values):
        return values.tolist()


TEXT = [
    "The cat's hat, they'll say: don't! 123 456",
    "Ünïcode Straße ΣΑΣ İstanbul",
    "日本語 テキスト",
    "a  b\tc\u00a0d\u3000e",
    "🙂🙃 👩‍👩‍👧",
] * 3
TOKENIZERS = {
    "words": train_word_tokenizer(TEXT),
    "lower case words": train_word_tokenizer(TEXT, lowercase=True),
    "clean words": train_word_tokenizer(TEXT, lowercase=True, is_cleaning=True),
    "clean bytes": train_bpe_tokenizer(TEXT, vocabulary=330, is_cleaning=True, prefix_space=True),
    "bytes": train_bpe_tokenizer(TEXT, vocabulary=330),
    "bytes after a space": train_bpe_tokenizer(TEXT, vocabulary=330, lowercase=True, prefix_space=True),
    "bytes between spaces": train_bpe_tokenizer(TEXT, vocabulary=330, is_tokenized=True, prefix_space=True),
}
TOKENIZE = """async ([described, lines, ids]) => {
  const { model } = await g2lstm;
  const Tokenizer = model.tokenizer.constructor;
  const tokenizer = new Tokenizer(described, (merges) => merges);
  return {
    encoded: lines.map((line) => tokenizer.encode(line)),
    decoded: ids.map((some) => tokenizer.decode(some)),
    readable: ids.map((some) => tokenizer.readable(some)),
  };
}"""
SPACES = " \t\n\r\v\f\x1c\x1f\x85\u00a0\u1680\u2003\u2028\u2029\u202f\u3000\ufeff\u200b"
SPECIAL = f"aAzZ09'’.,!?ßİΣσςǅﬁ日½²Ⅷ🙂\u0301\x00\x7f{SPACES}"
CHARACTERS = st.one_of(st.characters(codec="utf-8"), st.sampled_from(SPECIAL))


@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_tokenizers_are_those_of_python(open_page, tmp_path, count):
    page = open_page(language_run(tmp_path))
    lines = drawn(st.text(CHARACTERS, max_size=40), count)
    lines += ["", " ", "  two", "it's they'll I'D", "a" * 300, *TEXT, *NASTY]
    for name, tokenizer in TOKENIZERS.items():
        ids = drawn(st.lists(st.integers(0, len(tokenizer) - 1), max_size=12), count // 3)
        found = page.evaluate(TOKENIZE, [_tokenizer(tokenizer, Kept()), lines, ids])
        assert found["encoded"] == [tokenizer.encode(line) for line in lines], name
        assert found["decoded"] == [tokenizer.decode(some) for some in ids], name
        assert found["readable"] == [tokenizer.readable(some) for some in ids], name


def drawn(strategy, count):
    """Examples of a strategy, always the same."""
    from hypothesis import given, settings

    found = []

    @settings(SHORT, max_examples=count)
    @given(strategy)
    def collect(example):
        found.append(example)

    collect()
    return found


def test_a_visitor_writes(open_page, tmp_path):
    page = open_page(bolder(language_run(tmp_path), "small"), examples=["w1 w2 w3"])
    assert page.locator("#text").input_value() == "w1 w2 w3"
    words = page.locator("#layers .words").first.locator(".word")
    expect(words).to_have_count(4)
    type_text(page, "w1 nobody")
    expect(words).to_have_count(3)
    expect(page.locator("#note")).to_have_text("One word is unknown to the model (dotted); it reads <unk> instead.")
    choice = page.locator(".next button").first.inner_text()
    assert choice != "<eos>"
    page.locator(".next button").first.click()
    expect(words).to_have_count(4)
    assert page.locator("#text").input_value() == f"w1 <unk> {choice}"
    page.evaluate("Math.random = () => 0.5")  # or the new words could all be ends of lines
    page.get_by_role("button", name="Continue").click()
    expect(words).not_to_have_count(4)
    words.nth(1).click()
    expect(page.locator(".units")).to_contain_text("Units of “w1” in layer 1")
    assert "12 units: mean" in page.locator(".units").inner_text()
    page.locator(".units input[value=forget]").check(force=True)
    page.get_by_role("button", name="Close").click()
    expect(page.locator(".units")).to_have_count(0)
    page.get_by_label("stretch colours").check()
    page.get_by_label("Pick a sentence").select_option(index=1)
    assert page.locator("#text").input_value() == "w1 w2 w3"
    type_text(page, "")
    expect(page.locator("#note")).to_have_text("Type some words, or pick a sentence.")
    expect(page.locator("#gates")).to_be_hidden()
    type_text(page, "w1 " * 201)
    expect(page.locator("#note")).to_have_text("The text has 201 words. Shorten it to at most 200.")


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_a_visitor_translates(open_page, tmp_path, width, scheme):
    run = bolder(translation_run(tmp_path, "model.layers=1"), "small")
    page = open_page(run, width, scheme)
    expect(page.locator("#note")).to_have_text("Type a sentence, or pick one.")
    type_text(page, "Ein haus und Katze")
    expect(page.locator(".translation")).to_have_text(g2lstm.load(run).translate("ein haus und katze"))
    expect(page.locator("#note")).to_contain_text("Read as “ein haus und katze”. One word is unknown")
    assert page.locator(".attention thead th").all_inner_texts() == ["ein", "haus", "und", "katze", "<eos>"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate("document.querySelector('.translation').id = 'old'")
    page.get_by_label("Search").select_option("greedy")
    expect(page.locator("#old")).to_have_count(0)  # all is drawn anew
    expect(page.locator(".translation")).to_have_text(g2lstm.load(run).translate("ein haus und katze", beam=1))
    page.locator(".word").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.position") == "1"
    page.get_by_role("button", name="Theme: auto").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_typed_text_becomes_like_the_training_text(open_page, tmp_path):
    page, lines = open_page(language_run(tmp_path)), ["the cat , he said .", "a dog ."] * 3
    lower, capitals = train_word_tokenizer(lines), train_word_tokenizer([line.title() for line in lines])
    marks = train_word_tokenizer(["the cat, he said."])
    sub_words = train_bpe_tokenizer(lines, vocabulary=270, is_tokenized=True)
    adapt = """async ([described, text, isTokenized]) => {
      const { model, adapted } = await g2lstm;
      return adapted(text, new model.tokenizer.constructor(described, (merges) => merges), isTokenized);
    }"""
    for tokenizer, text, is_tokenized, expected in [
        (lower, "The cat, he said.", True, "the cat , he said ."),
        (lower, "the cat , he said .", True, "the cat , he said ."),
        (lower, "Nobody?", True, "nobody?"),  # it has never seen a question
        (lower, "One.\nTwo.", True, "one .\ntwo ."),
        (capitals, "The Cat.", True, "The Cat ."),
        (marks, "The cat, he said.", True, "the cat, he said."),
        (sub_words, '"The cat," he said.', True, '" the cat , " he said .'),
        (sub_words, "The cat, he said.", False, "the cat, he said."),
    ]:
        assert page.evaluate(adapt, [_tokenizer(tokenizer, Kept()), text, is_tokenized]) == expected


def test_nasty_words_are_only_text(open_page, tmp_path):
    run, _ = nasty_run(tmp_path)
    page = open_page(run, title=NASTY[0], examples=NASTY)
    type_text(page, NASTY[0])
    expect(page.locator(".words").first.locator(".token").nth(1)).to_have_text(NASTY[0])
    assert page.locator(".word.unknown").count() == 0
    assert page.title() == NASTY[0]
    assert page.evaluate("document.scripts.length") == 2  # the payload is gone
    assert page.locator("img, iframe").count() == 0
