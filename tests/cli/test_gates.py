"""`g2lstm gates` and `report`: files, numbers, the mode, and bad input that leaves nothing behind."""

import json

import pytest
import torch

import g2lstm
from g2lstm.look import record_split
from g2lstm.runs.directory import RunDirectory
from tests.cli.command import run as command
from tests.look.toys import language_run, translation_run


def run(*arguments):
    return command("gates", *arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("runs")
        patch.setenv("G2LSTM_CACHE", str(folder / "cache"))
        torch.manual_seed(1)
        language_run(folder, "plain", method="sigmoid")
        language_run(folder, "g2")
        translation_run(folder, "mt", layers=1)
        yield folder


@pytest.fixture(autouse=True)
def _quick_pictures(no_drawing):
    """Their names alone matter here."""


def test_a_language_model(folder, tmp_path):
    code, output, _ = run(folder / "g2", "--text", "the cat Xylophon", "--out", tmp_path / "new" / "folder")
    assert code == 0
    assert "g2: evaluation, soft gates; split valid" in output
    assert "read as <unk>: Xylophon" in output
    assert "likeliest next words" in output
    found = json.loads((tmp_path / "new" / "folder" / "gates.json").read_text())
    recording = record_split(g2lstm.load(folder / "g2"), "valid")
    assert found["layers"] == json.loads(json.dumps(recording.statistics.summary()))
    assert found["mode"] == "evaluation, soft gates"
    assert "chosen on half of the text and measured on the other" in output
    explained = record_split(g2lstm.load(folder / "g2"), "valid", explain=True).explained
    assert found["explained"] == [one.model_dump() for one in explained] != []
    assert f"{explained[0].title}, {explained[0].gate} {explained[0].unit}: " in output
    assert found["training"] is False
    assert found["method"] == "gumbel"
    assert found["data"]["windows"] == recording.data["windows"]
    assert found["text"]["tokens"] == {"text": ["<eos>", "the", "cat", "Xylophon"]}
    assert found["text"]["unknown"] == {"text": [3]}
    names = {path.name for path in (tmp_path / "new" / "folder").iterdir()}
    pictures = ["histograms", "layers", "sigmoid", "words", "timelines", "units-layer-1", "units-layer-2"]
    assert names == {"gates.json", *(f"{name}.{ending}" for name in pictures for ending in ("png", "svg"))}


def test_a_translation_model_in_its_own_folder(folder):
    code, output, _ = run(
        folder / "mt", "--text", "die katze lief .", "--samples", 5, "--hard-score", "--training", "--json"
    )
    assert code == 0
    found = json.loads(output)
    assert found == json.loads((folder / "mt" / "gates" / "gates.json").read_text())
    assert found["mode"].startswith("training, noise in the gates")
    assert found["training"] is True
    assert found["data"]["pairs"] == 5
    assert found["scores"]["metric"] == "bleu"
    assert [layer["title"] for layer in found["layers"]] == ["encoder 1, forward", "encoder 1, backward", "decoder 1"]
    assert len(found["text"]["attention"]) == len(found["text"]["produced"])
    assert (folder / "mt" / "gates" / "words-source.png").is_file()
    assert (folder / "mt" / "gates" / "units-encoder-1-backward.svg").is_file()


def test_runs_are_compared(folder, tmp_path):
    arguments = [folder / "plain", folder / "g2", "--samples", 3, "--seed", 4, "--eval-gate", "hard", "--out", tmp_path]
    code, output, _ = run(*arguments, "--hard-score")
    assert code == 0
    assert output.index("plain: evaluation, hard gates") < output.index("g2: evaluation, hard gates")
    assert output.count("perplexity: ") == 2
    found = json.loads((tmp_path / "gates.json").read_text())
    assert [each["run"] for each in found["runs"]] == ["plain", "g2"]
    assert [each["method"] for each in found["runs"]] == ["sigmoid", "gumbel"]


def test_the_gates_over_training_time(folder, tmp_path):
    path = language_run(folder, "counted")
    facts = {"step": 0, "epoch": 0, "seconds": 0.0, "skipped": 0}
    RunDirectory(path).append_metrics({"kind": "valid", **facts, "tokens": 0, "loss": 1.0})
    code, output, _ = run(path, "--samples", 3, "--out", tmp_path)
    assert code == 0
    assert "the gates of counted were not counted while it was trained" in output
    assert not (tmp_path / "history.png").exists()
    for tokens in (0, 100):
        counts = {f"{gate}/{k}": 1 for gate in ("input", "forget") for k in range(20)}
        RunDirectory(path).append_metrics({"kind": "gates", **facts, "tokens": tokens, **counts})
    code, output, _ = run(path, "--samples", 3, "--out", tmp_path)
    assert code == 0
    assert "not counted" not in output
    assert (tmp_path / "history.png").is_file()
    assert (tmp_path / "history.svg").is_file()


def test_a_text_alone_needs_no_data(folder, tmp_path):
    code, output, _ = run(folder / "g2", "--text", "<b> 猫 \x07", "--split", "none", "--out", tmp_path)
    assert code == 0
    assert "the text, 4 text tokens" in output
    assert "\x07" not in output
    found = json.loads((tmp_path / "gates.json").read_text())
    assert found["text"]["unknown"] == {"text": [1, 2, 3]}
    assert found["layers"][0]["gates"]["forget"]["values"] == 4 * 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["g2", "--text", ""], "the text is empty"),
        (["g2", "--text", " \t "], "the text is empty"),
        (["g2", "--text", "cat " * 10_000], "the text has 10,000 tokens, and at most 1,000"),
        (["mt", "--text", "katze " * 10_000], "tokens, and at most 1,000"),
        (["g2", "--text", "a \udcff"], "not valid Unicode"),
        (["g2", "mt"], "compare runs of the same task"),
        (["g2", "g2"], "is given twice; give it once"),
        (["g2", "again"], "is given twice; give it once"),
        (["nothing"], "is not a run directory: it does not exist"),
        (["cache"], "has no recipe.toml"),
        (["g2", "--split", "dev"], "there is no split 'dev'"),
        (["g2", "--split", "none"], "give --text"),
        (["g2", "--training", "--eval-gate", "hard"], "choose one"),
        (["g2", "--eval-gate", "firm"], "eval_gate must be one of"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(folder, tmp_path, arguments, message):
    named = {name: folder / name for name in ("g2", "mt", "nothing", "cache")} | {"again": folder / "mt" / ".." / "g2"}
    paths = [named.get(argument, argument) for argument in arguments]
    code, output, errors = run(*paths, "--out", tmp_path / "out")
    assert code == 2
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert output == ""
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_model(folder, tmp_path):
    import shutil

    shutil.copytree(folder / "g2", tmp_path / "g2")
    (tmp_path / "g2" / "model.safetensors").unlink()
    code, _, errors = run(tmp_path / "g2")
    assert code == 2
    assert "has no trained model yet" in errors
    assert not (tmp_path / "g2" / "gates").exists()


def test_where_the_comparison_goes(folder, tmp_path):
    code, _, errors = run(folder / "plain", folder / "g2")
    assert code == 2
    assert "choose one with --out" in errors
    (tmp_path / "file").touch()
    code, _, errors = run(folder / "g2", "--out", tmp_path / "file")
    assert code == 2
    assert "is a file; choose a folder" in errors


def test_a_report_of_both_tasks(folder, tmp_path):
    done = command("report", folder / "g2", folder / "mt", "--out", tmp_path / "report.html")
    assert (done.returncode, done.stdout) == (0, f"written: {tmp_path / 'report.html'}\n")
    assert "<h1>g2, mt</h1>" in (tmp_path / "report.html").read_text()
