"""Translation through the command line, end to end, and its errors."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.cli.command import run

TOY = [
    "--set", "model.embedding=64", "--set", "model.hidden=64", "--set", "train.minutes=", "--set", "train.epochs=3",
    "--set", "train.batch_size=24",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Stopped once on the way, and taken up again."""
    out = tmp_path_factory.mktemp("runs") / "toy"
    process = subprocess.Popen(
        [sys.executable, "-m", "g2lstm", "train", "embedded-mt", *TOY, "--out", str(out)],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in process.stderr:
        if line.startswith("epoch 1: validation"):
            process.send_signal(2)
            break
    process.communicate()
    assert process.wait() == 130
    done = run("train", "embedded-mt", *TOY, "--out", out, "--resume")
    assert done.returncode == 0, done.stderr
    assert "going on from step" in done.stderr
    return out


def test_a_run_has_its_files(trained):
    names = {path.name for path in trained.iterdir()}
    assert {"recipe.toml", "tokenizer.source.json", "tokenizer.target.json", "model.safetensors"} <= names


def test_held_out_pairs_are_translated(trained):
    done = run("eval", trained, "--split", "test", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["bleu"] > 90
    assert result["sentences"] == 500
    assert result["eval_gate"] == "soft"
    assert "|tok:none|" in result["bleu_signature"]
    assert "beam:5" in result["signature"]
    assert json.loads((trained / "result.json").read_text())["scores"] == [result]
    greedy = run("eval", trained, "--split", "test", "--beam", "1")
    assert "BLEU" in greedy.stdout
    assert "chrF2" in greedy.stdout


def test_translate(trained):
    german = "die frau schläft .\n\nweil der mann das buch liest , schläft die frau .\n"
    done = run("translate", trained, "--beam", "3", standard_input=german)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.split("\n")
    assert lines[0] == "the woman sleeps ."
    assert lines[1] == ""
    assert lines[2].startswith("because the man ")
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
    options = ["--json", "--n-best", "2", "--max-length", "2", "--length-penalty", "0"]
    done = run("translate", trained, *options, standard_input="\ufeffdie frau schläft .\n")
    best, second = map(json.loads, done.stdout.splitlines())
    assert (best["text"], best["rank"], second["rank"]) == ("the woman", 1, 2)
    assert best["score"] == best["log_probability"] > second["score"]
    short = run("translate", trained, "--max-source", "2", standard_input="die frau schläft .\n")
    assert short.returncode == 2
    assert "line 1 has 4 tokens, more than max_source, which is 2" in short.stderr


def test_a_reader_that_has_had_enough_is_no_error(trained):
    command = [sys.executable, "-m", "g2lstm", "translate", str(trained)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes) as process:
        process.stdout.close()
        process.stdin.write(b"die frau .\n")
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


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
        ("train.en", b"a house\n" * 49, "50 lines and"),
        ("train.en", b"", "is empty"),
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
    command = [sys.executable, "-m", "g2lstm", "translate", str(trained)]
    done = subprocess.run(command, capture_output=True, input=b"gut\ngr\xfc\xdfe\n", check=False)
    assert done.returncode == 2
    assert b"line 2 of the input is not UTF-8 text: byte 0xfc at place 3" in done.stderr
    long = run("translate", trained, standard_input="die frau\n" + "die " * 1200 + "\n")
    assert long.returncode == 2
    assert "line 2 has 1200 tokens" in long.stderr
    assert long.stdout == ""
    assert len(long.stderr.splitlines()) == 1


def test_commands_of_the_other_task(trained):
    for command in (["generate", trained], ["eval", trained, "--cache"]):
        done = run(*command)
        assert done.returncode == 2
        assert "task 'mt'" in done.stderr


def test_a_truncated_run(trained, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(trained, broken)
    (broken / "tokenizer.target.json").unlink()
    done = run("eval", broken)
    assert done.returncode == 2
    assert "holds no tokenizer.target.json" in done.stderr
