"""Texts that anyone may give to a command: it works with them, or refuses them with one message."""

import os
import random

import pytest

from tests.cli.command import run
from tests.runs.toys import translation_run

TOY = {
    "data.vocabulary": 300, "model.embedding": 8, "model.hidden": 8, "model.layers": 1,
    "train.minutes": "", "train.epochs": 1, "train.batch_size": 4,
}  # fmt: skip
EMOJI = "👩\u200d💻 🏴\U000e0067\U000e007f é ŝ 🎉🎉 日本語 می\u200cخواهم"


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("G2LSTM_CACHE", str(folder / "cache"))
        return translation_run(folder / "mt")


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def hole(path):
    path.write_bytes(b"some words\n" * 2000)
    os.truncate(path, 2**42)


MESSAGES = {
    pipe: "is a pipe or a device, not a text file",
    device: "is a pipe or a device",
    hole: "has a hole at offset",
}


@pytest.mark.parametrize("make", MESSAGES, ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "TEXT", "--out", "run"],
        ["train", "FOLDER", "--out", "run"],
        ["init", "TEXT"],
        ["score", "RUN", "TEXT", "TEXT"],
        ["eval", "RUN", "--source", "TEXT", "--reference", "TEXT"],
    ],
    ids=" ".join,
)
def test_what_might_never_end_is_refused(tmp_path, pairs, make, arguments):
    folder = tmp_path / "texts"
    folder.mkdir()
    make(folder / "train.txt")
    names = {"TEXT": folder / "train.txt", "FOLDER": folder, "RUN": pairs}
    done = run(*(names.get(word, word) for word in arguments))
    assert done.returncode == 2
    assert MESSAGES[make] in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "".join(" ".join(random.Random(k).choices(EMOJI.split(), k=9)) + "\n" for k in range(40)),
        "one endless line of words " * 200,
        "".join(random.Random(0).choices("abcdefgh", k=4000)),
    ],
    ids=["emoji", "one line", "one word"],
)
def test_strange_texts_are_trained_on(tmp_path, text):
    (tmp_path / "my.txt").write_text(text, encoding="utf-8")
    options = [word for key, value in TOY.items() for word in ("--set", f"{key}={value}")]
    done = run("train", "my.txt", *options, "--out", "run")
    assert done.returncode == 0, done.stderr
    done = run("generate", "run", "--prompt", text[:4], "--tokens", "3", "--seed", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(text[:4])
