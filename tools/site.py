"""A hook for mkdocs: what `--help` says, the keys of recipes, a page for each shipped model, and colours of code."""

import html
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]

from g2lstm.export.html.page import export_html
from g2lstm.recipes.explain import table_of_keys
from g2lstm.tasks.recipes import TASKS

MODELS = Path(__file__).parent.parent / "models"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the shipped models as live pages, try/NAME.html, and the colours of code, in light and dark."""
    styles = {"": "default", '[data-bs-theme="dark"] ': "github-dark"}
    rules = [HtmlFormatter(style=name).get_style_defs(f"{where}.codehilite") for where, name in styles.items()]
    colours = re.sub(r"^.*\{ background: .*$", "", "\n".join(rules), flags=re.MULTILINE)
    files.append(File.generated(config, "code.css", content=colours))
    with tempfile.TemporaryDirectory() as folder:
        for model in sorted(path for path in MODELS.iterdir() if path.is_dir()):
            page = export_html(model, Path(folder) / f"{model.name}.html")
            files.append(File.generated(config, f"try/{model.name}.html", content=page.file.read_bytes()))
    return files


def on_post_page(output: str, **_: Any) -> str:
    """Adds the two style sheets that the theme's switch between light and dark turns on and off; ours is code.css.

    Without them, its script would end in an error, and its menu would do nothing.
    """
    return output.replace("</head>", '<style id="hljs-light"></style><style id="hljs-dark"></style></head>', 1)


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
    text = uncut(text)
    return re.sub(r"`[^`\n]+`", lambda code: html.unescape(code[0]), text)  # markdown escapes code by itself


def uncut(text: str) -> str:
    """Lists of commands with whole sentences; typer cuts them short. They are the first paragraphs of the sections."""
    said = dict(re.findall(r"^#+ `([^`]+)`\n\n(.+?)\n\n", text, re.MULTILINE | re.DOTALL))
    lines, parent = [], "g2lstm"
    for line in text.split("\n"):
        parent = heading[1] if (heading := re.match(r"#+ `([^`]+)`$", line)) else parent
        cut = re.match(r"(\* `([^`]+)`: ).*\.\.\.$", line)
        lines.append(f"{cut[1]}{said[f'{parent} {cut[2]}']}" if cut else line)
    return "\n".join(lines)
