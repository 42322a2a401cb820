"""`g2lstm compress` as a user meets it, in one process and at toy size."""

import json
import os
import shutil
import signal
import sys

import pytest

from g2lstm.cli.compress import HELP
from g2lstm.cli.main import main
from g2lstm.compression.spec import PRESETS
from g2lstm.runs import compressed
from g2lstm.training.optim import NonMonotoneAveraging
from tests.runs.toys import language_run, translation_run

SPEC = "gates=round:0.2,clip:0.4; cell=int8; embedding=int8"


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    return language_run(tmp_path_factory.mktemp("lm"))


@pytest.fixture(scope="module")
def translation(tmp_path_factory):
    return translation_run(tmp_path_factory.mktemp("mt"))


@pytest.fixture
def run(language, tmp_path):
    return shutil.copytree(language, tmp_path / "run")


@pytest.fixture
def call(monkeypatch, capsys):
    """Runs the command line: exit code, standard output, standard error."""
    monkeypatch.setattr(compressed, "_SECONDS", 0.0)
    monkeypatch.setattr(compressed, "_ROUNDS", 1)

    def called(*arguments):
        monkeypatch.setattr(sys, "argv", ["g2lstm", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return called


def test_a_language_model(call, run):
    code, shown, _ = call("compress", run, SPEC)
    assert code == 0
    out = run.with_name("run+gates-round0.2-clip0.4_cell-int8_embedding-int8")
    report = json.loads((out / "compression.json").read_text())
    assert report["spec"] == SPEC
    assert report["original"] == "run"
    assert list(report["groups"]) == ["gates", "cell", "embedding"]
    for file, key in ((run, "before"), (out, "after")):
        size = (file / "model.safetensors").stat().st_size
        assert report["file"][key] == size
        assert sum(group[key] for group in report["groups"].values()) + report["rest"][key] == size
        assert f"{size:,}" in shown
    assert report["file"]["ratio"] == report["file"]["before"] / report["file"]["after"]
    for words in ("perplexity on test", "steps/s", "streaming, batch 1", "bits per weight", f"g2lstm eval {out}"):
        assert words in shown
    for which, key in ((run, "before"), (out, "after")):
        code, text, _ = call("eval", which, "--split", "test", "--json")
        score = json.loads(text)
        assert code == 0
        assert report["score"][key] == score["perplexity"]
        assert report["score"][f"signature_{key}"] == score["signature"]
        assert (f"compressed:{SPEC}" in score["signature"]) == (which == out)
    assert min(report["speed"]["before"], report["speed"]["after"]) > 0
    code, text, _ = call("generate", out, "--tokens", "3", "--seed", "1")
    assert code == 0
    assert len(text.split()) >= 2


def test_options_reach_the_scores(call, run):
    def report(name, *options):
        code, text, _ = call("compress", run, "gates=int4", "--out", run.with_name(name), "--json", *options)
        assert code == 0
        return json.loads(text)

    plain, valid, cached = report("a"), report("b", "--split", "valid"), report("c", "--cache")
    assert plain["out"] == str(run.with_name("a"))
    assert "split:valid" in valid["score"]["signature_after"]
    assert "cache:20,0.5,0.1" in cached["score"]["signature_after"]
    assert len({one["score"]["after"] for one in (plain, valid, cached)}) == 3
    assert plain["score"]["before"] == json.loads(call("eval", run, "--split", "test", "--json")[1])["perplexity"]


def test_what_was_not_measured_is_not_invented(call, run, translation, tmp_path):
    code, shown, _ = call("compress", run, "cell=int8", "--no-score", "--out", tmp_path / "small")
    assert code == 0
    report = json.loads((tmp_path / "small" / "compression.json").read_text())
    assert report["score"] is None
    assert "perplexity" not in shown
    assert "│ score" not in shown
    out = tmp_path / "smaller"
    code, shown, _ = call("compress", translation, "cell=int8", "--no-score", "--out", out)
    assert code == 0
    report = json.loads((out / "compression.json").read_text())
    assert report["speed"] is None
    assert "sentences/s" not in shown
    assert "│ speed" not in shown


def test_a_translation_model(call, translation, tmp_path):
    out = tmp_path / "small"
    code, shown, _ = call("compress", translation, SPEC, "--out", out)
    assert code == 0
    report = json.loads((out / "compression.json").read_text())
    assert report["score"]["metric"] == "bleu"
    assert report["speed"]["unit"] == "sentences/s"
    assert "BLEU on test" in shown
    assert "greedy, one at a time, first 7 sentences; a short measurement" in shown
    code, text, _ = call("eval", out, "--split", "test", "--json")
    assert report["score"]["after"] == json.loads(text)["bleu"]


def test_a_spec_by_pattern(call, run):
    code, text, _ = call("compress", run, "int8; layers.0: gates=levels:5; embedding: keep", "--no-score", "--json")
    report = json.loads(text)
    assert code == 0
    assert report["spec"] == "int8; layers.0: gates=levels:5; embedding: keep"
    assert report["groups"]["embedding"]["bits_per_weight"] == 32
    code, text, _ = call("eval", report["out"], "--split", "test", "--json")
    assert code == 0
    assert "compressed:int8; layers.0: gates=levels:5; embedding: keep" in json.loads(text)["signature"]


def test_what_loses_much_is_told(call, run):
    code, _, told = call("compress", run, "gates=round:9", "--no-score")
    assert code == 0
    assert "compression changes these matrices a lot: layers.0.weight_ih_l0.i (100%)" in told
    assert "UserWarning" not in told


def test_the_help_teaches_the_grammar_and_lists_the_presets(call):
    code, shown, _ = call("compress", "--help")
    assert code == 0
    assert "round:R,clip:C" in shown
    for name, spec in PRESETS.items():
        assert name in shown
        assert spec in " ".join(HELP.split())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gate=int8", "'gate' is not a group; did you mean gates?"),
        ("gates=int9", "'int9' is not an operation; did you mean"),
        ("gates=svd:0", "svd:K needs an integer above 0, got '0'"),
        ("gates=svd:-3", "svd:K needs an integer above 0, got '-3'"),
        ("gates=svd:11", "can't compress layers.0.weight_ih_l0.i: a matrix of 12 x 10 has ranks 1 to 10"),
        ("gates=clip:0.4", "clip can't stand alone, write round:R,clip:C"),
        ("gates=round:0", "round:R needs a finite number above 0, got '0'"),
        ("gates=round:-0.2", "round:R needs a finite number above 0, got '-0.2'"),
        ("gates=round:nan", "round:R needs a finite number above 0, got 'nan'"),
        ("gates=round:inf", "round:R needs a finite number above 0, got 'inf'"),
        ("softmax=int8", "'softmax=int8' would compress nothing of LanguageModel"),
        ("smal", "there is no compression preset 'smal'; did you mean small?"),
        ("", "the compression spec is empty"),
        ("int8; layer.0: keep", "nothing in LanguageModel has a name like 'layer.0'; did you mean layers.0"),
    ],
)
def test_bad_specs(call, run, spec, message):
    _refused(call, run, message, "compress", run, spec, "--no-score")


def _refused(call, run, message, *arguments):
    before = sorted(run.parent.rglob("*"))
    code, shown, errors = call(*arguments)
    assert code == 2
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert shown == ""
    assert sorted(run.parent.rglob("*")) == before


def test_finetune_stop_and_continue(call, run):
    again = ["compress", run, "int2", "--finetune", "2", "--set", "train.optimizer.lr=0.05", "--set", "train.seed=3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NonMonotoneAveraging, "after_update", lambda self: os.kill(os.getpid(), signal.SIGINT))
        code, shown, told = call(*again)
    assert (code, shown) == (130, "")
    assert "run+int2 --set train.optimizer.lr=0.05 --set train.seed=3 --resume" in told
    out = run.with_name("run+int2")
    assert not (out / "compression.json").exists()
    code, _, told = call(*again)
    assert code == 2
    assert "already holds a run; continue it with --resume" in told
    code, shown, told = call(*again, "--resume")
    assert code == 0
    assert "continuing from step 1" in told
    assert f"next: g2lstm eval {out}" in shown
    report = json.loads((out / "compression.json").read_text())
    finetune = report["finetune"]
    assert (report["spec"], finetune["epochs"], finetune["optimizer"]["lr"]) == ("int2", 2.0, 0.05)
    assert finetune["updates"] > 2
    assert report["seconds"] > 0
    score = json.loads(call("eval", out, "--split", "test", "--json")[1])
    assert score["perplexity"] == report["score"]["after"] != report["score"]["before"]
    assert "compressed:int2" in score["signature"]
    code, text, _ = call(*again, "--resume", "--json", "--no-score")  # it is finished, and only reports again
    assert code == 0
    assert json.loads(text)["finetune"] == finetune


def test_a_search(call, run, translation, request):
    code, shown, told = call("compress", run, "--max-loss", "1%")
    assert code == 0, told
    out = run.with_name("run+max-loss-1pct")
    report = json.loads((out / "compression.json").read_text())
    assert report["spec"] in shown.replace("\n", " ")
    curve = report["search"]["curve"]
    [chosen] = [point for point in curve if point["spec"] == report["spec"]]
    assert chosen["measured"] <= report["search"]["max_loss"] == 0.01
    assert chosen["size"] == (out / "model.safetensors").stat().st_size == report["file"]["after"]
    assert "chosen" in shown
    assert (out / "curve.png").stat().st_size > 1000
    request.getfixturevalue("no_drawing")
    code, text, _ = call("compress", run, report["spec"], "--out", run.with_name("again"), "--json")
    again = json.loads(text)
    assert again["file"] == report["file"]
    assert again["score"]["after"] == report["score"]["after"]  # the printed spec makes the same model
    known = (run / "search.json").read_bytes()
    code, text, _ = call("compress", run, "--max-loss", "0.01", "--json", "--no-score", "--out", run.with_name("b"))
    assert (code, json.loads(text)["spec"]) == (0, report["spec"])
    assert (run / "search.json").read_bytes() == known  # nothing was measured again
    budget = f"{report['file']['after'] / 1000}kB"
    code, text, told = call("compress", translation, "--max-loss", "9%", "--no-score", "--json")
    assert code == 0, told
    assert min(point["measured"] or 1 for point in json.loads(text)["search"]["curve"]) <= 0.09
    code, text, told = call("compress", run, "--budget", budget, "--finetune", "1", "--json", "--no-score")
    assert code == 0, told
    report = json.loads(text)
    assert report["finetune"]["epochs"] == 1
    assert report["search"]["budget"] == float(budget[:-2]) * 1000


def test_bad_calls(call, run, translation, tmp_path):
    def refused(message, *arguments):
        _refused(call, run, message, "compress", *arguments)

    refused("--no-score and --cache contradict each other", run, "small", "--no-score", "--cache")
    refused("--cache can't be used here", translation, "small", "--cache", "--out", tmp_path / "new")
    refused("is not a run directory: it does not exist", tmp_path / "nothing", "small")
    refused("there is no split 'text'", run, "small", "--split", "text")
    refused("already exists; delete it", run, "small", "--out", run)
    refused("give one of SPEC, --max-loss SHARE and --budget BYTES, not several", run, "small", "--max-loss", "1%")
    refused("give one of SPEC, --max-loss SHARE and --budget BYTES, not", run, "--budget", "2MB", "--max-loss", "1%")
    refused("give one of SPEC, --max-loss SHARE and --budget BYTES", run)
    for share in ("1%%", "0", "0%", "-1%", "nan", ""):
        refused(f"--max-loss must be a share above 0 such as 0.5% or 0.005, got {share!r}", run, f"--max-loss={share}")
    refused("--max-loss 0.5 would allow a loss of 50%; write 0.5% or 50%", run, "--max-loss", "0.5")
    for size in ("2TB", "0", "-5", "many", "2iB"):
        refused(
            f"--budget must be a number of bytes such as 2MB, 500kB, 1.5MiB or 2000000, got {size!r}",
            run,
            f"--budget={size}",
        )
    refused(
        "no choice fits into 1,536 bytes: the least that these encodings reach is",
        run,
        "--budget",
        "1.5KiB".replace("K", "k"),
    )
    refused("bytes already fit into 2,000,000,000; lower the budget", run, "--budget", "2GB")
    refused("already exists; delete it", run, "--max-loss", "1%", "--out", run)
    refused("--resume needs --finetune EPOCHS", run, "small", "--resume")
    refused("--set needs --finetune EPOCHS", run, "small", "--set", "train.seed=3")
    refused("there is no split 'text'", run, "small", "--split", "text", "--finetune", "1")
    refused("train.sed is not a key", run, "small", "--finetune", "1", "--set", "train.sed=3")
    refused("would compress nothing of LanguageModel", run, "softmax=int8", "--finetune", "1")
    refused("already holds a run", run, "small", "--out", run, "--finetune", "1")


def test_a_run_without_weights(call, run):
    (run / "model.safetensors").unlink()
    _refused(call, run, "has no trained model yet", "compress", run, "small")


def test_a_compressed_run_is_not_compressed_again(call, run):
    assert call("compress", run, "cell=int8", "--no-score")[0] == 0
    small = run.with_name("run+cell-int8")
    _refused(call, run, "is already compressed (cell=int8); compress the run", "compress", small, "small")


@pytest.mark.parametrize("where", [40, -40])
def test_a_damaged_file(call, run, where):
    assert call("compress", run, "cell=int8", "--no-score")[0] == 0
    model = run.with_name("run+cell-int8") / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[where] ^= 1
    model.write_bytes(content)
    _refused(call, run, "model.safetensors", "eval", model.parent)


def test_termination_leaves_nothing_half_written(call, run, monkeypatch):
    def terminate(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(compressed, "write_run", terminate)
    before, handler = sorted(run.parent.rglob("*")), signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        code, _, _ = call("compress", run, "cell=int8")
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert code == 130
    assert sorted(run.parent.rglob("*")) == before
