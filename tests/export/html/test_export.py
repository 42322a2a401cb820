"""The file of a page: one whole file or none, with nothing in it that a token could have written."""

import base64
import json
import shutil
import struct
import zlib
from html.parser import HTMLParser
from importlib.resources import files

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import g2lstm
from g2lstm import G2Error, export_html
from g2lstm.export.html.page import bundle
from g2lstm.recipes.sealed import seal
from g2lstm.runs.directory import RunDirectory
from tests.runs.test_compressed import compressed_run
from tests.runs.toys import language_run, translation_run

NASTY = [
    "</script><script>alert(1)</script>", "<!--", "-->", "]]>", "${script}", "$payload", "\"'`", "\u2028\u2029", "&lt;",
    "</title><img/src=x/onerror=alert(1)>", "\\u003c", "\x00", "\x1b[31m", "\u202e", "<unk>", "\U0001f600",
]  # fmt: skip


ANY = st.characters(exclude_categories=["Cs"])


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the text of each kind."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text, self.inside = [], {}, ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        self.text.setdefault(self.inside, []).append(data)


def unpacked(page):
    """The facts inside a page."""
    packed = Elements(page.read_text()).text["script"][1]
    content = zlib.decompress(base64.b64decode(packed))
    return json.loads(content[4 : 4 + struct.unpack("<I", content[:4])[0]])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return language_run(tmp_path_factory.mktemp("toy"))


def nasty_run(folder):
    """A language model whose words are an attacker's."""
    run = language_run(folder)
    tokenizer = json.loads((run / "tokenizer.json").read_text())
    words = list(tokenizer["model"]["vocab"])
    free = [word for word in words if word.startswith("w")]
    own = dict(zip(free, [word for word in NASTY if word != "<unk>"], strict=False))
    tokenizer["model"]["vocab"] = {own.get(word, word): number for number, word in enumerate(words)}
    (run / "tokenizer.json").write_text(json.dumps(tokenizer))
    return run, list(own.values())


def test_no_token_is_in_the_page(tmp_path):
    run, words = nasty_run(tmp_path)
    made = export_html(run, tmp_path / "page.html", title=NASTY[0], examples=NASTY)
    page = (tmp_path / "page.html").read_text()
    assert made.bytes == len(page.encode())
    elements = Elements(page)
    assert [tag for tag, _ in elements.found].count("script") == 3
    assert not {"img", "iframe", "object"} & {tag for tag, _ in elements.found}
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    assert elements.text["title"] == elements.text["h1"] == [NASTY[0]]
    assert "alert(1)" not in page.replace("&lt;script&gt;alert(1)&lt;/script&gt;", "")
    assert "\u2028" not in page
    facts = unpacked(tmp_path / "page.html")
    assert set(words) < set(facts["tokenizers"][0]["tokens"])
    assert facts["examples"] == NASTY


@settings(max_examples=25)
@given(st.text(ANY, min_size=1), st.lists(st.text(ANY)))
def test_any_title_and_examples(run, tmp_path_factory, title, examples):
    path = tmp_path_factory.mktemp("page") / "page.html"
    export_html(run, path, title=title, examples=examples)
    facts = unpacked(path)
    assert facts["title"] == title
    assert facts["examples"] == examples or not examples
    assert [tag for tag, _ in Elements(path.read_bytes().decode()).found].count("script") == 3


def test_sentences_beside_the_model(run, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    (copied / "examples.txt").write_text("w1 w2\n\n  w3 w4  \n")
    export_html(copied, tmp_path / "page.html")
    assert unpacked(tmp_path / "page.html")["examples"] == ["w1 w2", "w3 w4"]
    export_html(copied, tmp_path / "page.html", examples=["w5"], force=True)
    assert unpacked(tmp_path / "page.html")["examples"] == ["w5"]


def test_pages_fetch_nothing_and_run_nothing_else(run, tmp_path):
    export_html(run, tmp_path / "page.html")
    elements = Elements((tmp_path / "page.html").read_text())
    (policy,) = [a["content"] for _, a in elements.found if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    addresses = [value for _, a in elements.found for name, value in a.items() if name in ("src", "href")]
    assert all(address.startswith("data:") for address in addresses)


def test_the_script_has_no_modules_left():
    script = bundle("demo.js")
    assert not [line for line in script.splitlines() if line.startswith(("import ", "export "))]
    assert "</script" not in script
    assert "</style" not in "".join(one.read_text() for one in (files("g2lstm.page") / "static").iterdir())
    names = ["dom.js", "heat.js", "matrix.js", "lstm.js", "tokenizer.js", "language.js", "more.js", "payload.js"]
    assert [script.count(f'modules["{name}"] = ') for name in names] == [1] * len(names)


def test_a_compressed_run_makes_a_small_page(tmp_path):
    run = language_run(tmp_path, "model.embedding=64", "model.hidden=64")
    small, _ = compressed_run(run, "small")
    plain, packed = (export_html(one, tmp_path / f"{k}.html") for k, one in enumerate((run, g2lstm.load(small))))
    empty = len(bundle("demo.js")) + 20_000
    assert packed.bytes - empty < 0.3 * (plain.bytes - empty)
    assert packed.weights == plain.weights == 32 * 64 + 2 * 4 * 64 * 128


def test_facts_about_searching(tmp_path):
    run = translation_run(tmp_path, "data.tokenizer=bpe", "data.vocabulary=280", "evaluate.beam=3")
    export_html(run, tmp_path / "page.html")
    facts = unpacked(tmp_path / "page.html")
    assert facts["title"] == "German to English"
    assert facts["search"] == {
        "beam": 3, "length_penalty": 1.0, "is_tokenized": True, "forbidden": [0], "limit": [2, 10]
    }  # fmt: skip
    assert facts["examples"] == []


def test_mistakes_write_nothing(run, tmp_path):
    path = tmp_path / "page.html"
    for name in ("page.htm", ".html"):
        with pytest.raises(G2Error, match="the name of a page must end in .html, got"):
            export_html(run, tmp_path / name)
    with pytest.raises(G2Error, match="examples must be a list of sentences, got one string"):
        export_html(run, path, examples="w1")
    with pytest.raises(G2Error, match="must be valid Unicode, got half of a surrogate pair"):
        export_html(run, path, title="\ud800")
    with pytest.raises(G2Error, match="must be valid Unicode, got half of a surrogate pair"):
        export_html(run, path, examples=["\ud800"])
    with pytest.raises(G2Error, match="is not a run directory"):
        export_html(tmp_path / "nothing", path)
    with pytest.raises(G2Error, match="eval_gate must be one of"):
        export_html(run, path, eval_gate="open")
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "recipe.toml").write_text(seal('task = "speech"\n'))
    with pytest.raises(G2Error, match="is a run of task 'speech', and the runtime knows lm, mt"):
        export_html(strange, path)
    assert [one.name for one in tmp_path.iterdir()] == ["strange"]
    path.write_text("mine")
    with pytest.raises(
        G2Error, match="page.html exists already; choose another name, or replace it: --force, or force=True in Python"
    ):
        export_html(run, path)
    assert path.read_text() == "mine"
    export_html(run, path, force=True)
    assert path.read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_the_page_of_a_model_as_large_as_multi30ks_has_at_most_6_mb(tmp_path):
    """The recipe `multi30k-small`, with random weights, which take no less room than trained ones."""
    run = translation_run(tmp_path, "model.embedding=256", "model.hidden=256")
    for side in ("source", "target"):
        tokenizer = json.loads((run / f"tokenizer.{side}.json").read_text())
        words = [*tokenizer["model"]["vocab"], *(f"{side}{number}" for number in range(6000))][:6000]
        tokenizer["model"]["vocab"] = {word: number for number, word in enumerate(words)}
        (run / f"tokenizer.{side}.json").write_text(json.dumps(tokenizer))
    weights = load_file(run / "model.safetensors")
    tables = {f"{side}_embedding.weight": torch.randn(6000, 256) for side in ("source", "target")}
    weights |= tables | {"softmax_bias": torch.randn(6000)}
    save_file(weights, run / "model.safetensors", RunDirectory(run).training_facts())
    small, _ = compressed_run(run, "small")
    made = export_html(small, tmp_path / "page.html")
    assert made.weights == 6_545_408
    assert made.bytes <= 6_000_000
