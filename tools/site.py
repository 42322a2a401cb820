"""A hook for mkdocs: puts what `--help` says of every command into docs/commands.md, and all keys into recipes.md."""

import html
import re
import subprocess
import sys
from typing import Any

from g2lstm.recipes.explain import table_of_keys
from g2lstm.tasks.recipes import TASKS


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces the mark on a page, if it has one."""
    for mark, content in {"<!-- every command -->": described, "<!-- every recipe key -->": recipe_keys}.items():
        if mark in markdown:
            markdown = markdown.replace(mark, content())
    return markdown


def recipe_keys() -> str:
    """A table of the keys of each task."""
    tasks = TASKS.values()
    return "\n\n".join(f"## {task.trained.title.capitalize()}\n\n{table_of_keys(task.recipe)}" for task in tasks)


def described() -> str:
    """A section for each command, by typer's own generator of documentation."""
    ask = [sys.executable, "-m", "typer", "g2lstm.cli.main", "utils", "docs", "--name", "g2lstm"]
    text = subprocess.run(ask, capture_output=True, encoding="utf-8", check=True).stdout
    text = text.partition("\n")[2]  # the page has a title
    text = re.sub(r"^  (?=\S)", "    ", text, flags=re.MULTILINE)  # an indented block of help is code
    return re.sub(r"`[^`\n]+`", lambda code: html.unescape(code[0]), text)  # markdown escapes code by itself
