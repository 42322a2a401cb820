"""A hook for mkdocs: puts what `--help` says of every command into docs/commands.md."""

import html
import re
import subprocess
import sys
from typing import Any

MARK = "<!-- every command -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces the mark on a page, if it has one."""
    return markdown.replace(MARK, described()) if MARK in markdown else markdown


def described() -> str:
    """A section for each command, by typer's own generator of documentation."""
    ask = [sys.executable, "-m", "typer", "g2lstm.cli.main", "utils", "docs", "--name", "g2lstm"]
    text = subprocess.run(ask, capture_output=True, encoding="utf-8", check=True).stdout
    text = text.partition("\n")[2]  # the page has a title
    text = re.sub(r"^  (?=\S)", "    ", text, flags=re.MULTILINE)  # an indented block of help is code
    return re.sub(r"`[^`\n]+`", lambda code: html.unescape(code[0]), text)  # markdown escapes code by itself
