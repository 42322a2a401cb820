"""`g2lstm export` as a user meets it, in process."""

import json
import shutil
from functools import partial

import pytest
import torch

from g2lstm.compression.model import compress
from g2lstm.runs.trained import load
from tests.cli.command import run as command
from tests.requirements import needs_new_onnx
from tests.runs.toys import language_run, translation_run

pytestmark = pytest.mark.usefixtures("one_registry")
onnx_mistake = partial(pytest.param, marks=needs_new_onnx)


@needs_new_onnx
def test_a_language_model(tmp_path):
    run = language_run(tmp_path / "lm", "model.layers=1", "model.hidden=10")
    code, out, err = command("export", run, "--format", "onnx")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    files = ["model.onnx", "model.tokenizer.json", "model.json"]
    assert [line.split()[0] for line in lines[:3]] == [str(run / "export" / name) for name in files]
    assert lines[0].endswith(" MB")
    assert lines[3].startswith("agrees with PyTorch: largest difference ")
    scope: dict[str, object] = {}
    exec("\n".join(lines[lines.index("") :]), scope)
    assert scope["log_probabilities"].shape[:2] == (1, 1)
    code, _, err = command("export", run)
    assert code == 2
    assert "exists already" in err
    assert "--force" in err
    code, out, _ = command("export", run, "--force", "--json", "--eval-gate", "tempered")
    assert code == 0
    facts = json.loads(out)
    assert list(facts["files"]) == [str(run / "export" / name) for name in files]
    assert all(size > 0 for size in facts["files"].values())
    assert facts["difference"] <= facts["tolerance"]


@pytest.mark.slow  # the tests of the files export one
def test_a_translation_model_as_json(tmp_path):
    run = translation_run(tmp_path / "mt", "model.layers=1")
    code, out, _ = command(
        "export", run, "--out", tmp_path / "device" / "de-en.onnx", "--json", "--eval-gate", "tempered"
    )
    assert code == 0
    facts = json.loads(out)
    assert len(facts["files"]) == 5
    assert all(size > 0 for size in facts["files"].values())
    assert facts["difference"] <= facts["tolerance"]


def test_with_an_old_torch(tmp_path, monkeypatch):
    monkeypatch.delattr(torch.onnx, "ops", raising=False)
    code, out, err = command("export", language_run(tmp_path / "lm"))
    assert (code, out) == (2, "")
    assert f"an export needs a newer torch than {torch.__version__}; it is tested with torch 2.13" in err


@needs_new_onnx
def test_what_becomes_float32_is_told_on_standard_error(tmp_path, monkeypatch):
    run = language_run(tmp_path / "lm", "model.layers=1", "model.hidden=10")
    trained = load(run)
    trained.model = compress(trained.model, "embedding=int8")
    monkeypatch.setattr("g2lstm.runs.trained.load", lambda path: trained)
    code, out, err = command("export", run, "--json")
    assert code == 0
    assert json.loads(out)["expanded"] == ["embedding.weight"]
    assert err.startswith("g2lstm: become float32 when a runtime loads the export: embedding.weight; with int8")
    assert len(err.splitlines()) == 1


def test_a_language_model_in_c(tmp_path, monkeypatch):
    run = language_run(tmp_path / "lm", "model.layers=1", "model.hidden=10")
    monkeypatch.setattr("shutil.which", lambda name: None)
    code, out, err = command("export", run, "--format", "c")
    assert (code, err) == (0, "")
    files = ["model.h", "model.c", "model_test.c", "model_tokens.c"]
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == [str(run / "export" / name) for name in files]
    assert [line.split()[0] for line in lines[4:]] == ["flash", "RAM", "scratch", "work", "not"]
    assert lines[-1] == "not run: there is no C compiler, cc, to compile model_test.c with"
    monkeypatch.undo()
    code, out, _ = command("export", run, "--format", "c", "--force", "--json")
    facts = json.loads(out)
    assert (code, len(facts["files"]), facts["macs"]) == (0, 4, 2 * 4 * 10 * 10 + 32 * 10)
    assert shutil.which("cc") is None or facts["checked"].endswith("allowed: passed")


def test_a_page(tmp_path):
    run = language_run(tmp_path / "lm")
    code, out, err = command("export", run, "--format", "html", "--title", "A <b>", "--example", "w1 w2")
    page = run / "export" / "model.html"
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split()[0] == str(page)
    assert out.splitlines()[1] == "open it in a browser; it needs no server and no network"
    assert "<title>A &lt;b&gt;</title>" in page.read_text()
    code, out, err = command("export", run, "--format", "html")
    assert (code, out) == (2, "")
    assert (
        err == f"g2lstm: {page} exists already; choose another name, or replace it: --force, or force=True in Python\n"
    )
    code, out, _ = command("export", run, "--format", "html", "--force", "--json")
    weights = 32 * 10 + 4 * 12 * (10 + 12) + 4 * 10 * (12 + 10)  # embedding and two layers
    assert json.loads(out) == {"files": {str(page): page.stat().st_size}, "weights": weights}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "tflite"], "models are exported as onnx, c or html, got --format 'tflite'"),
        onnx_mistake(["--out", "somewhere"], "must end in .onnx, got 'somewhere'"),
        onnx_mistake(["--activations", "int2"], "activations must be one of 'float32', 'int8', got 'int2'"),
        onnx_mistake(["--eval-gate", "open"], "eval_gate must be one of"),
        (["--format", "c", "--activations", "int8"], "--activations is for ONNX"),
        (["--format", "html", "--activations", "int8"], "--activations is for ONNX; a page computes in floats"),
        (["--format", "html", "--out", "page.htm"], "the name of a page must end in .html, got 'page.htm'"),
        (["--title", "words"], "--title and --example are for --format html, got --format onnx"),
        (["--format", "c", "--out", "two words.c"], "must be a C identifier that ends in .c, got 'two words.c'"),
    ],
)
def test_mistakes(tmp_path, arguments, message):
    run = language_run(tmp_path / "lm")
    code, out, err = command("export", run, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (run / "export").exists()


def test_mistakes_in_the_run(tmp_path):
    code, _, err = command("export", tmp_path / "nowhere")
    assert code == 2
    assert "is not a run directory" in err
    run = language_run(tmp_path / "lm", "model.layers=1", "model.hidden=10")
    (run / "model.safetensors").unlink()
    code, _, err = command("export", run)
    assert code == 2
    assert "has no trained model" in err
