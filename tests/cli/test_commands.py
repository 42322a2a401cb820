"""The command line as a user meets it: output, errors, exit codes."""

import json
import subprocess
import sys

import pytest

from g2lstm import G2Error
from tests.cli.command import run


def test_as_a_process_of_its_own():
    command = [sys.executable, "-m", "g2lstm", "--debug", "bench", "layer", "--shape", "1,2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_help_and_version():
    assert "demo" in run("--help").stdout
    assert run("--version").stdout.startswith("g2lstm ")


def test_info_says_which_backends_are_here():
    facts = json.loads(run("info", "--json").stdout)
    assert facts["backends"]["native"].startswith("compiled for")
    assert "backend native" in run("info").stdout


def test_info_says_why_the_kernel_is_not_here(monkeypatch):
    from g2lstm.nn import backends, kernel

    monkeypatch.setattr(kernel, "find", lambda: kernel.Found(None, "not compiled: no C++ compiler"))
    assert backends.describe()["native"] == "torch operations, slower (not compiled: no C++ compiler)"


def test_bench_layer_as_json():
    done = run("bench", "layer", "--shape", "3,2,4,5", "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["what"], row["name"]) for row in rows] == [
        ("train", "torch.nn.LSTM"), ("train", "auto"), ("train", "stock"), ("train", "reference"),
        ("eval", "torch.nn.LSTM"), ("eval", "auto"),
    ]  # fmt: skip
    assert all(row["milliseconds"] > 0 for row in rows)


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["bench", "layer", "--shape", "1,2"], ["bench", "layer", "--rounds", "0"]]
)
def test_a_users_mistake_is_exit_2_without_a_traceback(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_debug_shows_the_traceback():
    with pytest.raises(G2Error, match="shape"):
        run("--debug", "bench", "layer", "--shape", "1,2")
