"""Runs the command line inside the tests' own process, which spares each call the seconds that importing takes."""

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest.mock import patch

from g2lstm.cli.main import main


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


def run(
    *arguments, standard_input: str | bytes | io.TextIOWrapper = "", on_terminal: bool = False, **environment
) -> Done:
    given = standard_input.encode() if isinstance(standard_input, str) else standard_input
    stream = Terminal if on_terminal else io.TextIOWrapper
    stdin = stream(io.BytesIO(given), encoding="utf-8") if isinstance(given, bytes) else given
    stdout, stderr = (stream(io.BytesIO(), encoding="utf-8") for _ in range(2))
    code = 0
    with (
        patch.object(sys, "argv", ["g2lstm", *map(str, arguments)]),
        patch.object(sys, "stdin", stdin),
        patch.dict(os.environ, environment),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    texts = []
    for stream in (stdout, stderr):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return Done(code, *texts)
