"""Translation through the command line, end to end, and its errors."""

import io
import itertools
import json
import os
import random
import shutil
import signal
import sys

import pytest

from g2lstm.cli.main import main
from g2lstm.cli.progress import TrainingBar
from tests.cli.command import run

NOUNS = {"die frau": "the woman", "der mann": "the man", "das kind": "the child", "der hund": "the dog"}
VERBS = {"schläft": "sleeps", "liest": "reads", "singt": "sings", "lacht": "laughs"}
TOY = [
    "data.name=", "model.embedding=32", "model.hidden=32", "model.layers=1", "train.minutes=", "train.epochs=30",
    "train.batch_size=16", "train.optimizer.lr=1e-2",
]  # fmt: skip


def write_pairs(folder):
    """Every sentence of a tiny grammar, in random order: 200 to train on, 20 to validate with, 52 to test with."""
    pairs = [(f"{noun} {verb} .", f"{NOUNS[noun]} {VERBS[verb]} .") for noun in NOUNS for verb in VERBS]
    for one, reads, sleeps, other in itertools.product(NOUNS, VERBS, VERBS, NOUNS):
        english = f"because {NOUNS[one]} {VERBS[reads]} , {NOUNS[other]} {VERBS[sleeps]} ."
        pairs.append((f"weil {one} {reads} , {sleeps} {other} .", english))
    random.Random(0).shuffle(pairs)
    folder.mkdir()
    for split, part in (("train", pairs[:200]), ("valid", pairs[200:220]), ("test", pairs[220:])):
        for side, ending in enumerate(("de", "en")):
            (folder / f"{split}.{ending}").write_text("".join(pair[side] + "\n" for pair in part))
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Interrupted after its first epoch, then resumed."""
    folder = tmp_path_factory.mktemp("runs")
    sets = [*TOY, f"data.path={write_pairs(folder / 'pairs')}"]
    command = ["train", "embedded-mt", *(word for each in sets for word in ("--set", each)), "--out", folder / "toy"]
    on_validation = TrainingBar.on_validation

    def interrupt(self, progress, validation, is_best):
        on_validation(self, progress, validation, is_best)
        if progress.epoch == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("G2LSTM_CACHE", str(folder / "cache"))
        patch.setattr(TrainingBar, "on_validation", interrupt)
        stopped = run(*command)
        assert stopped.returncode == 130
        assert "--resume" in stopped.stderr
        patch.setattr(TrainingBar, "on_validation", on_validation)
        done = run(*command, "--resume")
        assert done.returncode == 0, done.stderr
        assert "continuing from step" in done.stderr
        yield folder / "toy"


def test_a_run_has_its_files(trained):
    names = {path.name for path in trained.iterdir()}
    assert {"recipe.toml", "tokenizer.source.json", "tokenizer.target.json", "model.safetensors"} <= names


def test_held_out_pairs_are_translated(trained):
    done = run("eval", trained, "--split", "test", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["bleu"] > 90
    assert result["sentences"] == 52
    assert result["eval_gate"] == "soft"
    assert "|tok:none|" in result["bleu_signature"]
    assert "beam:5" in result["signature"]
    assert json.loads((trained / "result.json").read_text())["scores"] == [result]
    greedy = run("eval", trained, "--split", "test", "--beam", "1")
    assert "BLEU" in greedy.stdout
    assert "chrF2" in greedy.stdout


def test_translate(trained):
    german = "die frau schläft .\n\nweil der mann liest , schläft die frau .\n"
    done = run("translate", trained, "--beam", "3", standard_input=german)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.split("\n")
    assert lines[0] == "the woman sleeps ."
    assert lines[1] == ""
    assert lines[2] == "because the man reads , the woman sleeps ."
    best = run("translate", trained, "--n-best", "2", "--detokenize", standard_input=german)
    rows = [line.split("\t") for line in best.stdout.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert rows[0][2] == "the woman sleeps."
    assert float(rows[0][1]) > float(rows[1][1])


def test_attention_and_json(trained):
    shown = run("translate", trained, "--attention", standard_input="die frau schläft .\n").stdout.splitlines()
    assert shown[0] == "the woman sleeps ."
    assert [line.split()[0] for line in shown[1:]] == ["the", "woman", "sleeps", ".", "<eos>"]
    done = run("translate", trained, "--attention", "--json", standard_input="die frau schläft .\n")
    result = json.loads(done.stdout)
    assert result["text"] == "the woman sleeps ."
    assert result["rank"] == 1
    assert result["source"] == ["die", "frau", "schläft", ".", "<eos>"]
    assert all(sum(row) == pytest.approx(1, abs=1e-2) for row in result["attention"])


def test_options_reach_the_search(trained):
    """The mark of byte order before the first line is no word."""
    options = ["--json", "--n-best", "2", "--length-penalty", "0"]
    done = run("translate", trained, *options, standard_input="\ufeffdie frau schläft .\n")
    best, second = map(json.loads, done.stdout.splitlines())
    assert (best["text"], best["rank"], second["rank"]) == ("the woman sleeps .", 1, 2)
    assert best["score"] == best["log_probability"] > second["score"]
    cut = run("translate", trained, "--max-length", "2", "--beam", "1", standard_input="die frau schläft .\n")
    assert cut.stdout == "the woman\n"
    short = run("translate", trained, "--max-source", "2", standard_input="die frau schläft .\n")
    assert short.returncode == 2
    assert "line 1 has 4 tokens, more than max_source, which is 2" in short.stderr


def test_a_reader_that_has_had_enough_is_no_error(trained, monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    given = io.TextIOWrapper(io.BytesIO(b"die frau .\n"))
    with os.fdopen(writing, "w") as stdout, monkeypatch.context() as patch:  # closing it must not fail either
        patch.setattr(sys, "argv", ["g2lstm", "translate", str(trained)])
        patch.setattr(sys, "stdin", given)
        patch.setattr(sys, "stdout", stdout)
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 0


def test_from_python(trained):
    import g2lstm

    model = g2lstm.load(trained)
    assert model.translate("die frau schläft .\ndie frau schläft .") == "the woman sleeps .\nthe woman sleeps ."
    unknown = model.translate("die frau xylophon schläft .")
    assert "<unk>" not in unknown


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.de").write_text("ein haus\n" * 50)
        (tmp_path / f"{split}.en").write_text("a house\n" * 50)
    return tmp_path


def own(folder, *more):
    sets = ["data.name=", f"data.path={folder}", "train.epochs=1", "train.minutes="]
    return [
        "train",
        "embedded-mt",
        *(part for each in sets for part in ("--set", each)),
        "--out",
        folder / "run",
        *more,
    ]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train.en", b"a house\n" * 49, "has 50 lines, but"),
        ("train.en", b"", "contains no text"),
        ("train.de", b"gr\xfc\xdfe\n" * 50, "is not UTF-8 text: byte 0xfc"),
        ("valid.de", None, "lacks valid.de"),
    ],
)
def test_bad_files(folder, file, content, message):
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    done = run(*own(folder))
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (folder / "run" / "recipe.toml").exists()


def test_unknown_pair(folder):
    done = run(*own(folder, "--set", "data.source=fr"))
    assert done.returncode == 2
    assert "train.fr" in done.stderr
    done = run("train", "multi30k-small", "--set", "data.source=fr", "--out", folder / "run")
    assert done.returncode == 2
    assert "fr" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_bad_input_of_translate(trained):
    done = run("translate", trained, standard_input=b"gut\ngr\xfc\xdfe\n")
    assert done.returncode == 2
    assert "line 2 of the input is not UTF-8 text: byte 0xfc at position 3" in done.stderr
    long = run("translate", trained, standard_input="die frau\n" + "die " * 1200 + "\n")
    assert long.returncode == 2
    assert "line 2 has 1200 tokens" in long.stderr
    assert long.stdout == ""
    assert len(long.stderr.splitlines()) == 1


def test_commands_of_the_other_task(trained):
    for command in (["generate", trained], ["eval", trained, "--cache"]):
        done = run(*command)
        assert done.returncode == 2
        assert "task 'mt'" in done.stderr or "is a translation model" in done.stderr


def test_a_truncated_run(trained, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(trained, broken)
    (broken / "tokenizer.target.json").unlink()
    done = run("eval", broken)
    assert done.returncode == 2
    assert "has no tokenizer.target.json" in done.stderr
