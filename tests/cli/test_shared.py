"""What commands print: whatever a stranger's run or text holds, a terminal shows it and obeys nothing of it."""

import io
import json
import shutil
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from g2lstm import G2Error
from g2lstm.cli import progress, shared
from g2lstm.cli.main import app
from tests.cli.command import run
from tests.fuzz import SHORT
from tests.runs.toys import language_run, translation_run

HOSTILE = "\x1b[2J\x9b31m\r\x07\u202e[bold]:smile:"
SHOWN = r"\u001b[2J\u009b31m\u000d\u0007\u202e[bold]:smile:"


@SHORT
@given(st.text())
def test_nothing_is_left_to_obey_and_json_stays_the_same(text):
    assert shared.safe(shared.safe(text)) == shared.safe(text)
    left = {mark for mark in shared.safe(text) if not mark.isprintable()}
    assert not left & {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160), 0x2028, 0x202E, 0x2066)}
    assert json.loads(shared.safe(json.dumps(text, ensure_ascii=False))) == text


@pytest.mark.parametrize(
    "text", ["a\tb\n", "naïve\u00a0日本\u3000語", "👩\u200d💻 🏴\U000e0067\U000e007f", "می\u200cخواهم"]
)
def test_what_people_write_is_left_alone(text):
    assert shared.safe(text) == text


def test_half_a_surrogate_pair_can_be_printed():
    done = run("eval", "no\udcffrun")
    assert done.returncode == 2
    assert r"no\udcffrun is not a run directory" in done.stderr


@pytest.fixture
def printed(monkeypatch):
    text = io.StringIO()
    console = Console(file=text, width=200, force_terminal=True, color_system=None)
    monkeypatch.setattr(shared, "console", lambda: console)
    monkeypatch.setattr(progress, "error_console", lambda: console)
    return text


def test_lines(printed):
    shared.say(HOSTILE)
    assert printed.getvalue() == f"{SHOWN}\n"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [{"a": float("-inf")}]], ids=str)
def test_no_object_holds_what_json_has_not(capsys, value):
    with pytest.raises(G2Error, match="a result is infinite or not a number, so --json can't print it"):
        shared.print_json({"value": value})
    assert capsys.readouterr().out == ""


def test_tables(printed):
    shared.console().print(shared.table([HOSTILE, "b"], [[HOSTILE, "1"]], title=HOSTILE, caption=HOSTILE))
    assert printed.getvalue().count(SHOWN) == 4
    assert "\x1b" not in printed.getvalue()


def test_bars(printed):
    with progress.bar() as show:
        show(HOSTILE, 1, 2)
    bar = progress.StudyBar([])
    bar.title = HOSTILE
    bar.on_step(_Progress(), 0.5, {"loss": 1.0})
    bar.close()
    shown = printed.getvalue()
    assert shown.count(SHOWN) >= 2
    assert "\x1b[2J" not in shown


class _Progress:
    epoch, tokens, seconds, validating_seconds = 0, 1, 1.0, 0.0


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """Runs of both tasks whose every word would clear the screen."""
    folder = tmp_path_factory.mktemp("strangers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("G2LSTM_CACHE", str(folder / "cache"))
        runs = {"lm": language_run(folder / "lm"), "mt": translation_run(folder / "mt")}
        for file in (runs["lm"] / "tokenizer.json", runs["mt"] / "tokenizer.target.json"):
            tokenizer = json.loads(file.read_text())
            words = tokenizer["model"]["vocab"]
            renamed = {word if word[0] == "<" else f"\x1b[2J{word}": number for word, number in words.items()}
            file.write_text(json.dumps({**tokenizer, "model": {**tokenizer["model"], "vocab": renamed}}))
        yield runs


@pytest.mark.parametrize("on_terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize(
    ("task", "arguments"),
    [
        ("lm", ["generate", "RUN", "--tokens", "9", "--seed", "1"]),
        ("lm", ["gates", "RUN", "--text", "w1 \x1b[2Jw1", "--split", "none"]),
        ("mt", ["translate", "RUN"]),
        ("mt", ["translate", "RUN", "--n-best", "2", "--attention"]),
        ("mt", ["translate", "RUN", "--json"]),
    ],
    ids=lambda value: " ".join(value[::2]) if isinstance(value, list) else value,
)
@pytest.mark.usefixtures("no_drawing")
def test_a_strangers_words(strangers, tmp_path, task, arguments, on_terminal):
    """In a pipe a text is data, and stays as it is; an object escapes its words anyway."""
    copy = shutil.copytree(strangers[task], tmp_path / "run")
    given = [copy if word == "RUN" else word for word in arguments]
    done = run(*given, standard_input="ein haus\n", on_terminal=on_terminal, TERM="dumb")
    assert done.returncode == 0, done.stderr
    is_raw = not on_terminal and arguments[0] != "gates" and "--json" not in arguments
    assert ("\x1b[2J" in done.stdout) == is_raw
    assert is_raw or "[2J" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "embedded", "--out", "NAME"],
        ["compress", ".", "small", "--out", "NAME"],
        ["gates", ".", "--out", "NAME"],
        ["report", ".", "--out", "NAME"],
        ["export", ".", "--out", "NAME"],
        ["study", "table3", "--out", "NAME"],
        ["demo", "--out", "NAME"],
        ["eval", "NAME"],
        ["view", ".", "NAME"],
        ["data", "path", "ptb", "--data-dir", "NAME"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x" * 201, "x... is too long for a file name; choose a shorter one"),
        ("x/" * 2001, "x/... is too long for a file name"),
        (
            "~nobody-of-this-name/y",
            "there is no user 'nobody-of-this-name'; a folder of that name is ./~nobody",
        ),
    ],
    ids=["long", "deep", "user"],
)
def test_names_that_no_file_can_have(arguments, name, message):
    done = run(*(name if word == "NAME" else word for word in arguments))
    assert done.returncode == 2
    assert message in done.stderr


def test_the_home_directory_is_found(tmp_path):
    done = run("data", "path", "ptb", "--data-dir", "~/sets", HOME=str(tmp_path))
    assert done.stdout == f"{tmp_path}/sets/ptb\n"
    assert run("eval", "~/run", HOME=str(tmp_path)).stderr.startswith(f"g2lstm: {tmp_path}/run is not a run directory")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["init", "my.txt"], "my.toml"), (["report", "RUN"], "y.html"), (["compress", "RUN", "small", "--no-score"], "y")],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
@pytest.mark.usefixtures("no_drawing")
def test_files_are_written_to_the_home_directory(strangers, tmp_path, monkeypatch, arguments, name):
    """A shell leaves ~ as it is in --out=~/y."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "my.txt").write_text("some words of a text\n" * 100)
    given = [strangers["lm"] if word == "RUN" else word for word in arguments]
    done = run(*given, f"--out=~/{name}", HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "home").iterdir()] == [name]
    assert not (tmp_path / "~").exists()


def test_every_path_is_made_usable():
    """Whatever the command: ~ is expanded, and names that no file can have are refused."""
    groups = [app, *(group.typer_instance for group in app.registered_groups)]
    commands = [command.callback for group in groups for command in group.registered_commands]
    hints = [hint for command in commands for hint in get_type_hints(command, include_extras=True).values()]
    paths = [hint for hint in hints if hint != Path and "Path" in str(getattr(hint, "__origin__", hint))]
    assert len(paths) > 20
    for hint in paths:
        assert hint.__metadata__[0].callback is shared.usable, hint


def test_a_strangers_run_is_named_safely(tmp_path):
    done = run("eval", tmp_path / "\x1b[2Jrun", on_terminal=True, TERM="dumb")
    assert r"\u001b[2Jrun is not a run directory" in done.stderr
    assert "\x1b[2J" not in done.stderr
