"""Commands that answer at once do so without torch, and as they would with it."""

import subprocess
import sys

import pytest

from g2lstm.runs.trained import load
from tests.look.toys import language_run, translation_run

ASK = """
import sys
from g2lstm.__main__ import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""


def answer(*arguments, **options):
    command = [sys.executable, "-c", ASK, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


def test_generating(tmp_path):
    run = language_run(tmp_path)
    found = answer("generate", run, "--prompt", "the cat", "--seed", 3, "--tokens", 9)
    assert found.rstrip("\n") == load(run).generate("the cat", seed=3, tokens=9)


@pytest.mark.parametrize("gate", [None, "hard"])
def test_translating_a_few_lines(tmp_path, gate):
    run, lines = translation_run(tmp_path), ["ein haus", "", "der hund schläft"]
    found = answer("translate", run, *(["--eval-gate", gate] if gate else []), input="\n".join(lines) + "\n")
    assert found.split("\n")[:-1] == [best.text for best, *_ in load(run).search(lines, eval_gate=gate)]


def test_a_line_is_answered_before_the_next_one_comes(tmp_path):
    run = translation_run(tmp_path)
    command = [sys.executable, "-c", ASK, "translate", str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for line in ("ein haus", "der hund schläft"):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{load(run).translate(line)}\n"
        process.stdin.close()
        assert process.wait() == 0
