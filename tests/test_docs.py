"""The docs: every public name is there, code runs, commands parse, links lead somewhere."""

import importlib
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
from tests.requirements import needs_new_compiler

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks(page, language):
    return [textwrap.dedent(code) for _, named, code in FENCED.findall(page.read_text()) if named == language]


def test_every_public_name_is_on_the_page():
    """Ruff makes sure that it has a docstring, and mkdocs that each entry of the page exists."""
    exporting = [path.parent for path in (ROOT / "g2lstm").rglob("__init__.py") if "__all__" in path.read_text()]
    modules = [".".join(folder.relative_to(ROOT).parts) for folder in exporting]
    assert "g2lstm" in modules
    public = {f"{module}.{name}" for module in modules for name in importlib.import_module(module).__all__}
    on_page = set(re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE))
    assert public - on_page == {"g2lstm.__version__"}


def test_inherited_methods_are_on_the_page():
    griffe = pytest.importorskip("griffe")  # what mkdocs reads the source with
    assert "inherited_members: true" in (ROOT / "mkdocs.yml").read_text()
    package = griffe.load("g2lstm", search_paths=[ROOT])
    for name in ("tasks.mt.trained.TrainedTranslationModel", "runtime.translation.TranslationModel"):
        assert {"translate", "search"} <= set(package[name].all_members)


def test_the_tutorial_explains_what_newcomers_set():
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    for key in ("data.tokenizer", "data.vocabulary", "data.min_frequency", "train.minutes", "train.optimizer"):
        assert f"\n- **`{key}`**: " in tutorial


def test_the_front_page_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page):
    for path in re.findall(r"`((?:[a-z]+/)+[a-z_0-9]+\.(?:py|toml|cpp|h))`", page.read_text()):
        assert (ROOT / path).exists() or (ROOT / "g2lstm" / path).exists(), path


def test_the_architecture_is_what_is_there():
    (tree,) = blocks(ROOT / "docs" / "architecture.md", "text")
    parts = {
        path.name for path in (ROOT / "g2lstm").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    listed = re.findall(r"^  ([a-z]+)(/|\.py) ", tree, re.MULTILINE)
    assert {name + end.strip("/") for name, end in listed} == {name for name in parts if not name.startswith("_")}
    for name in re.findall(r"([a-z_]+\.(?:py|cpp)) ", tree):
        assert list((ROOT / "g2lstm").rglob(name)), name


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=needs_new_compiler if page.name == "compare.md" else ())
        for page in PAGES
        if blocks(page, "python")
    ],
    ids=name_of,
)
def test_python_code_runs(page, tmp_path, monkeypatch, capsys):
    """The blocks of a page one after the other, as a reader would; `model` is any model that holds an LSTM."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("G2LSTM_CACHE", str(tmp_path / "cache"))
    names = {"model": torch.nn.Sequential(torch.nn.LSTM(4, 4))}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)
    if page.name == "README.md":
        assert capsys.readouterr().out == blocks(page, "text")[0]


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
    if words[:2] == ["make", "-C"]:
        assert (ROOT / words[2] / "Makefile").is_file(), words[2]
    elif words[:1] == ["make"]:
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
    if recipe not in ("list", "RECIPE") and not recipe.endswith((".toml", ".txt", "/")):
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


@pytest.mark.slow
def test_the_site_is_built_and_needs_nothing_from_outside(browser, tmp_path):
    """Strict: a broken link, a missing anchor or a page that no menu leads to is an error. Its dark mode works."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.glob("*.html"))
    assert {"index.html", "api.html", "commands.html"} <= {page.name for page in pages}
    assert "weight_dropout" in (tmp_path / "api.html").read_text()  # an argument of G2LSTM
    assert "--eval-gate" in (tmp_path / "commands.html").read_text()
    assert "...</li>" not in (tmp_path / "commands.html").read_text()  # whole sentences
    assert "train.checkpoint_minutes" in (tmp_path / "recipes.html").read_text()
    for page in pages:
        assert not re.search(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//', page.read_text()), page
        assert not re.search(r'<link[^>]* href="(?:https?:)?//', page.read_text()), page
        assert not re.search(r"<unk>|<eos>|<blockquote>", page.read_text()), page  # a token or a >= taken for markup
    view = browser.new_page(color_scheme="light")
    view.goto((tmp_path / "index.html").as_uri())
    view.evaluate("document.querySelector('[data-bs-theme-value=dark]').click()")
    assert view.evaluate("document.documentElement.dataset.bsTheme") == "dark"
