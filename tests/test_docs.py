"""The documents: all public names and commands are described, code runs, commands parse, links lead somewhere."""

import importlib
import inspect
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import torch
from typer.main import get_command

from g2lstm.cli.main import app
from g2lstm.compression.spec import Spec
from g2lstm.tasks.recipes import load_recipe, parse_recipe

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
# What docs/api.md describes: all that these export, and what stands in rooms that export nothing themselves.
EXPORTING = ["g2lstm", "g2lstm.look"]
IN_ROOMS = [
    "g2lstm.compression.session.Session",
    "g2lstm.compression.stream.TokenSession",
    "g2lstm.export.onnx.Export",
    "g2lstm.export.onnx.export_onnx",
    "g2lstm.tasks.lm.trained.TrainedLanguageModel",
    "g2lstm.runs.scoring.score_language",
    "g2lstm.runs.scoring.score_translation",
    "g2lstm.tasks.mt.trained.TrainedTranslationModel",
    "g2lstm.tasks.mt.trained.Translation",
    "g2lstm.tasks.lm.recipe.LmRecipe",
    "g2lstm.tasks.mt.recipe.MtRecipe",
    "g2lstm.tasks.recipes.ShippedRecipe",
    "g2lstm.tasks.recipes.load_recipe",
    "g2lstm.tasks.recipes.parse_recipe",
    "g2lstm.tasks.recipes.shipped_recipes",
    "g2lstm.recipes.write.recipe_hash",
    "g2lstm.recipes.write.recipe_to_toml",
]
BY_HAND = {"__version__", "Recipe"}


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks(page, language):
    return [textwrap.dedent(code) for _, named, code in FENCED.findall(page.read_text()) if named == language]


def table_rows(text):
    """The lines of tables whose first cell is code."""
    return {line for line in text.splitlines() if line.startswith("| `")}


def row(code, text):
    return f"| `{code}` | {text} |"


def said(name, thing):
    """The first line of a docstring that someone wrote, and did not come from a dataclass or a base class."""
    text = inspect.getdoc(thing) if not inspect.isclass(thing) else thing.__doc__
    assert text, f"{name} has no docstring"
    first = text.strip().splitlines()[0]
    assert not first.startswith(f"{name}("), f"{name} has no docstring of its own"
    return first.replace("|", r"\|")


def shown(parameter):
    """A parameter as in a call."""
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    if parameter.default is parameter.empty:
        return star + parameter.name
    plain = isinstance(parameter.default, str | int | float | tuple | None)
    return f"{parameter.name}={parameter.default!r}" if plain else f"{parameter.name}=…"


def signature(name, thing):
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return name
    parameters = [p for p in inspect.signature(thing).parameters.values() if p.name not in ("self", "cls")]
    words = [shown(parameter) for parameter in parameters]
    if by_name := [number for number, parameter in enumerate(parameters) if parameter.kind is parameter.KEYWORD_ONLY]:
        words.insert(by_name[0], "*")
    return f"{name}({', '.join(words)})"


def described(name, thing):
    """Rows for a function, or for a class and its own public members."""
    rows = [row(signature(name, thing), said(name, thing))]
    for member, value in vars(thing).items() if inspect.isclass(thing) else ():
        value = getattr(value, "__func__", value)  # of a class method
        if member.startswith("_") or getattr(value, "__module__", "g2lstm").split(".")[0] != "g2lstm":
            continue
        if inspect.isfunction(value):
            rows.append(row(signature(f"{name}.{member}", value), said(member, value)))
        elif isinstance(value, property):
            rows.append(row(f"{name}.{member}", said(member, value)))
    return rows


def test_every_public_name_is_described():
    public = {name: getattr(importlib.import_module(m), name) for m in EXPORTING for name in _exports(m)}
    for path in IN_ROOMS:
        module, name = path.rsplit(".", 1)
        public[name] = getattr(importlib.import_module(module), name)
    expected = {line for name, thing in public.items() if name not in BY_HAND for line in described(name, thing)}
    found = table_rows((ROOT / "docs" / "api.md").read_text())
    by_hand = {line for line in found if line.split("`")[1] in BY_HAND}
    assert {line.split("`")[1] for line in by_hand} == BY_HAND
    assert "\n".join(sorted(expected - found)) == "", "docs/api.md lacks these lines"
    assert "\n".join(sorted(found - expected - by_hand)) == "", "docs/api.md has lines for what is not so"


def _exports(module):
    return importlib.import_module(module).__all__


def test_rooms_that_export_are_all_looked_at():
    found = [
        ".".join(path.relative_to(ROOT).parent.parts)
        for path in (ROOT / "g2lstm").rglob("__init__.py")
        if "__all__" in path.read_text()
    ]
    assert sorted(found) == EXPORTING


def all_commands(command, name="g2lstm"):
    yield name, command
    for word, inner in getattr(command, "commands", {}).items():
        yield from all_commands(inner, f"{name} {word}")


def test_every_command_and_option_is_described():
    text = (ROOT / "docs" / "commands.md").read_text()
    sections = dict(re.findall(r"^## `(.+?)`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    commands = dict(all_commands(get_command(app)))
    assert list(sections) == list(commands)
    for name, command in commands.items():
        expected = {
            row(parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.name.upper(), parameter.help)
            for parameter in command.params
        }
        found = table_rows(sections[name])
        assert "\n".join(expected - found) == "", f"docs/commands.md lacks these lines, of {name}"
        assert "\n".join(found - expected) == "", f"docs/commands.md has lines for what is not so, of {name}"
        assert command.help.splitlines()[0] in sections[name], name


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_python_code_runs(page, tmp_path, monkeypatch):
    """The blocks of a page one after the other, as a reader would; `model` is any model that holds an LSTM."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    names = {"model": torch.nn.Sequential(torch.nn.LSTM(4, 4))}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=name_of)
def test_recipes_are_recipes(page):
    for block in blocks(page, "toml"):
        parse_recipe(tomllib.loads(block))


def shell_lines(page):
    """What a reader would type: the lines of shell blocks, and code within the text that begins as a command does."""
    for block in blocks(page, "sh"):
        yield from block.replace("\\\n", " ").splitlines()
    for code in re.findall(r"`([^`]+)`", FENCED.sub("", page.read_text())):
        if code.split()[0] in ("g2lstm", "make", "python") and "…" not in code:
            yield " ".join(code.split())


def words_of(line):
    words = shlex.split(line, comments=True)
    ends = [number for number, word in enumerate(words) if word in ("<", ">", "|", "&&")]
    return words[: ends[0]] if ends else words


def check_line(line):
    """Raises if a command could not be what it seems to be."""
    words = [word.removeprefix("/tmp/empty/bin/") for word in words_of(line)]
    if words[:1] == ["make"]:
        for target in words[1:]:
            assert re.search(f"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
    elif words[:1] == ["python"] and words[1].endswith(".py"):
        script = (ROOT / words[1]).read_text()
        assert all(word in script for word in words[2:] if word.startswith("--")), words
    elif "g2lstm" in words and (words[0] == "g2lstm" or words[words.index("g2lstm") - 1] == "-m"):
        check_command(words[words.index("g2lstm") + 1 :])


def check_command(words):
    command = get_command(app)
    name = "g2lstm"
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name, *words = words
        command = command.commands[name]
    if not words:
        return  # the command is only named
    given = command.make_context(name, list(words)).params  # mistakes are exceptions
    recipe = given.get("recipe", "list")
    if recipe not in ("list", "RECIPE") and not recipe.endswith(".toml"):
        load_recipe(recipe, [one for one in given["overrides"] or () if not one.split("=")[1].isupper()])
    if given.get("spec") not in (None, "SPEC"):
        Spec.parse(given["spec"])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_parse(page):
    for line in shell_lines(page):
        try:
            check_line(line)
        except Exception as problem:
            raise AssertionError(f"{name_of(page)}: {line}") from problem


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("g2lstm evaluate runs/x", "evaluate"),
        ("g2lstm eval runs/x --splitt test", "--splitt"),
        ("g2lstm train ptb-smal", "ptb-smal"),
        ("g2lstm train ptb-small --set model.hiden=3", "model.hiden"),
        ("torchrun --nproc-per-node 8 -m g2lstm train ptb-small --resumes", "--resumes"),
        ('g2lstm compress runs/x "gates=rund:3" > table', "rund"),
        ("make test tset  # a comment", "tset"),
        ("python benchmarks/faults.py --surely-not", "--surely-not"),
    ],
)
def test_mistakes_in_commands_would_be_noticed(line, mistake):
    with pytest.raises(Exception, match=mistake):
        check_line(line)


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent == ROOT], ids=name_of)
def test_links_of_pages_outside_the_site_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert "://" in target or (ROOT / target).exists(), target


def test_the_site_is_built_and_needs_nothing_from_outside(tmp_path):
    """Strict: a broken link, a missing anchor or a page that no menu leads to is an error."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.glob("*.html"))
    assert {"index.html", "api.html", "commands.html"} <= {page.name for page in pages}
    for page in pages:
        assert not re.search(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//', page.read_text()), page
        assert not re.search(r'<link[^>]* href="(?:https?:)?//', page.read_text()), page
