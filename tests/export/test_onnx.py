"""Files of an export: their names, what stands beside them, and what happens when something is wrong."""

import ast
import functools
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import g2lstm
from g2lstm.compression.model import compress
from g2lstm.errors import G2Error
from g2lstm.export import onnx as exporting
from g2lstm.export import trace as tracing
from g2lstm.export.onnx import export_onnx
from g2lstm.runtime.sampling import Utf8
from g2lstm.text.tokenize import Tokenizer
from tests.requirements import needs_new_onnx
from tests.runs.toys import language_run, translation_run

pytestmark = needs_new_onnx


def sharpened(trained):
    """Larger weights, with which words differ in probability."""
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.mul_(3)
    return trained


@pytest.fixture
def language(tmp_path):
    return sharpened(g2lstm.load(language_run(tmp_path / "lm", "model.layers=1", "model.hidden=10")))


@pytest.fixture
def translation(tmp_path):
    return sharpened(g2lstm.load(translation_run(tmp_path / "mt", "model.layers=1")))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Makes a model and its export, once for all tests that look at its files."""

    @functools.cache
    def make(kind):
        torch.manual_seed(3)
        folder = tmp_path_factory.mktemp(kind)
        path = folder / "it's {odd}" / "de.en.onnx"
        if kind == "layer":
            model = g2lstm.G2LSTM(4, 5)
        elif kind == "translation":
            model = sharpened(g2lstm.load(translation_run(folder, "model.layers=1")))
        elif kind == "translation of pieces":
            model = sharpened(g2lstm.load(translation_run(folder, "data.tokenizer=bpe")))
        else:
            model = sharpened(g2lstm.load(language_run(folder)))
            model.model.train()
            return model, export_onnx(model, path, eval_gate="tempered")
        return model, export_onnx(model, path)

    return make


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_language_model_has_its_files(exported):
    language, made = exported("language")
    folder = made.files[0].parent
    assert [file.name for file in made.files] == ["de.en.onnx", "de.en.tokenizer.json", "de.en.json"]
    assert names(folder) == sorted(file.name for file in made.files)
    facts = json.loads(made.files[-1].read_text())
    assert facts["format"] == "g2lstm-onnx"
    graph = facts["graphs"]["model"]
    assert graph["file"] == "de.en.onnx"
    assert graph["operators"] == "onnx"
    assert graph["inputs"][:2] == [
        {"name": "tokens", "type": "int64", "shape": ["time", "batch"]},
        {"name": "h0", "type": "float", "shape": [1, "batch", 12]},
    ]
    assert graph["outputs"][0]["shape"] == ["time", "batch", len(language.tokenizer)]
    assert facts["carried"] == {"h0_next": "h0", "c0_next": "c0", "h1_next": "h1", "c1_next": "c1"}
    text = facts["tokens"]["text"]
    assert (text["begin"], text["end"], text["unknown"]) == (language.tokenizer.eos_id,) * 2 + (0,)
    assert Tokenizer.load(folder / text["tokenizer"]).fingerprint == language.tokenizer.fingerprint
    assert facts["checked"]["difference"] == made.difference <= made.tolerance == facts["checked"]["tolerance"]


def test_a_translation_model_has_its_files(exported):
    translation, made = exported("translation")
    folder = made.files[0].parent
    assert names(folder) == [
        "de.en.decoder.onnx", "de.en.encoder.onnx", "de.en.json", "de.en.tokenizer.source.json",
        "de.en.tokenizer.target.json",
    ]  # fmt: skip
    facts = json.loads(made.files[-1].read_text())
    assert [one["name"] for one in facts["graphs"]["encoder"]["inputs"]] == ["source", "lengths"]
    given = [one["name"] for one in facts["graphs"]["encoder"]["outputs"]]
    assert ["tokens", *given] == [one["name"] for one in facts["graphs"]["decoder"]["inputs"]]
    for side, tokenizer in {"source": translation.source, "target": translation.target}.items():
        assert facts["tokens"][side]["size"] == len(tokenizer)
        assert (folder / facts["tokens"][side]["tokenizer"]).is_file()
    assert "begin" not in facts["tokens"]["source"]
    assert facts["text"] == {"strip": True, "single_spaces": True, "tokenizer_cleans": True}
    search = facts["search"]
    assert (search["beam"], search["length_penalty"], search["forbidden"]) == (5, 1.0, [])
    assert search["length_limit"] == {"tokens_per_source_token": 2, "more": 10}


@pytest.mark.parametrize("kind", ["translation", pytest.param("translation of pieces", marks=pytest.mark.slow)])
def test_the_loop_of_the_docs_translates_as_python_does(kind, exported, monkeypatch):
    monkeypatch.setattr(Utf8, "of", lambda *_: None)  # the loop does not keep pieces of characters together
    trained, made = exported(kind)
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    [block] = [one.split("```")[0] for one in page.split("```python\n")[1:] if "onnxruntime" in one]
    scope: dict[str, Any] = {}
    exec(block, scope)
    translate = scope["Translator"](made.files[-1]).translate
    lines = ["ein haus und ein baum", "  hund \t und   haus ", "", "baum", "ein ein ein hund"]
    for beam in (1, 2, 5):
        wanted = [best.target_ids for [best] in trained.search(lines, beam=beam)]
        assert [translate(line, beam) for line in lines] == wanted
        assert len(set(map(tuple, wanted))) > 2


@pytest.mark.parametrize("kind", ["language", "translation", "layer"])
def test_the_example_runs(kind, exported):
    _, made = exported(kind)
    scope: dict[str, object] = {}
    exec(made.example, scope)
    if kind == "layer":
        assert scope["output"].shape == (1, 1, 5)
    else:
        probabilities = np.exp(scope["log_probabilities"])
        assert probabilities.sum() == pytest.approx(1, abs=1e-5)
        assert len(scope["state"]) == (4 if kind == "language" else 2)


@pytest.mark.slow
def test_what_becomes_float32_is_named(language, tmp_path):
    """The command's tests have a whole matrix."""
    language.model = compress(language.model, "embedding=svd:4,int8")
    with pytest.warns(UserWarning, match="weight.right, .*those of eight bits stay packed, except the right factors"):
        made = export_onnx(language, tmp_path / "words.onnx")
    assert made.expanded == ("embedding.weight.right", "embedding.weight.left")
    with pytest.warns(UserWarning, match="loads the export: embedding.weight.right$"):
        made = export_onnx(language, tmp_path / "words.onnx", force=True, activations="int8")
    language.model = compress(g2lstm.load(language.run.path).model, "gates=round:0.001")
    with pytest.warns(UserWarning, match=r"layers.0.weight_ih_l0.i, .*hh_l0.f") as caught:
        made = export_onnx(language, tmp_path / "words.onnx", force=True, activations="int8")
    assert len(made.expanded) == 4
    assert "int8" not in str(caught[0].message)


def test_nothing_is_replaced_unless_by_force(language, tmp_path):
    (tmp_path / "words.json").write_text("mine")
    with pytest.raises(
        G2Error, match="words.json exists already; choose another name, or replace it: --force, or force=True in Python"
    ):
        export_onnx(language, tmp_path / "words.onnx")
    assert not (tmp_path / "words.onnx").exists()
    export_onnx(language, tmp_path / "words.onnx", force=True)
    assert (tmp_path / "words.json").read_text() != "mine"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("words", {}, "must end in .onnx, got '.*words'; use a name such as model.onnx"),
        (".onnx", {}, "must end in .onnx"),
        ("words.onnx", {"activations": "int4"}, "activations must be one of 'float32', 'int8', got 'int4'"),
        ("words.onnx", {"eval_gate": "open"}, "eval_gate must be one of"),
        ("file/words.onnx", {}, "can't write .*file/words.onnx: (File exists|Not a directory)"),
    ],
)
def test_bad_arguments(language, tmp_path, name, options, message):
    (tmp_path / "file").touch()
    before = names(tmp_path)
    with pytest.raises(G2Error, match=message):
        export_onnx(language, tmp_path / name, **options)
    assert names(tmp_path) == before


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_without_the_extra(language, tmp_path, monkeypatch, missing):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    with pytest.raises(G2Error, match=rf"an export needs {missing}; install .*: pip install 'g2lstm\[export\]'"):
        export_onnx(language, tmp_path / "words.onnx")


def test_a_full_disk_leaves_nothing(language, tmp_path, monkeypatch):
    calls = []

    def fsync(number):
        calls.append(number)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    before = names(tmp_path)
    with pytest.raises(G2Error, match="can't write .*model.onnx: No space left on device; choose another place"):
        export_onnx(language, tmp_path / "out" / "model.onnx")
    assert names(tmp_path) == before


def test_an_interruption_leaves_nothing(language, tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(json, "dumps", interrupt)
    before = names(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        export_onnx(language, tmp_path / "out" / "model.onnx")
    assert names(tmp_path) == before


def test_more_than_a_file_can_hold(language, tmp_path, monkeypatch):
    monkeypatch.setattr(tracing, "MOST_BYTES", 1000)
    with pytest.raises(G2Error, match="an ONNX file can hold 2.1 GB; compress the model first"):
        export_onnx(language, tmp_path / "out" / "model.onnx")
    assert "out" not in names(tmp_path)


def test_a_plain_lstm_has_no_other_gates(tmp_path):
    lstm = torch.nn.LSTM(3, 4)
    with pytest.raises(G2Error, match="a torch.nn.LSTM has soft gates, not 'hard' ones"):
        export_onnx(lstm, tmp_path / "a.onnx", eval_gate="hard")
    with pytest.raises(G2Error, match="eval_gate must be one of 'soft', 'tempered', 'hard', got 'hrad'"):
        export_onnx(lstm, tmp_path / "a.onnx", eval_gate="hrad")
    assert names(tmp_path) == []
    assert export_onnx(lstm, tmp_path / "a.onnx", eval_gate="soft").files


@pytest.mark.parametrize("kind", ["language", pytest.param("translation", marks=pytest.mark.slow)])
def test_a_frozen_model_of_ours_is_exported(kind, request, tmp_path):
    trained = request.getfixturevalue(kind)
    g2lstm.freeze_(trained.model)
    made = export_onnx(trained, tmp_path / "out" / "frozen.onnx")
    assert made.difference <= made.tolerance


def test_the_model_is_as_before(exported):
    language, _ = exported("language")
    before = sharpened(g2lstm.load(language.run.path)).model.state_dict()
    assert len(language.model.lstms) == 2
    assert language.model.training
    assert {layer.eval_gate for layer in language.model.lstms} == {"soft"}
    assert all(torch.equal(tensor, before[name]) for name, tensor in language.model.state_dict().items())


def test_nothing_heavy_is_imported_before_it_is_known_to_be_there():
    tree = ast.parse(Path(exporting.__file__).read_text())
    modules = [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    heavy = [module for module in modules if module and module.startswith(("onnx", "g2lstm.export"))]
    assert heavy == []
