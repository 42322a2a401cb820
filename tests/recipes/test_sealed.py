"""A run's recipe says its version and its end: what is newer, of another task or truncated is told as such."""

import pytest

from g2lstm.errors import G2Error
from g2lstm.recipes.files import recipe_to_toml, seal
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.recipes import load_recipe, parse_recipe

RECIPE = parse_recipe({"task": "lm", "data": {"name": "embedded"}, "train": {"epochs": 1}})


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", RECIPE, {})


def test_a_run_keeps_its_recipe(run):
    assert run.recipe == RECIPE
    text = run.recipe_file.read_text()
    assert text.startswith("# g2lstm run, version 1\n")
    assert text.endswith("\n# end\n")
    assert load_recipe(run.recipe_file, ["train.epochs=2"]).train.epochs == 2


def test_no_truncation_reads_as_a_whole_recipe(run):
    text = run.recipe_file.read_text()
    for length in range(len(text) - 1):  # without its last line feed it is still whole
        run.recipe_file.write_text(text[:length])
        with pytest.raises(G2Error):
            load_recipe(run.recipe_file)
    run.recipe_file.write_text(text[: text.index("[evaluate")])  # this would be a complete recipe
    with pytest.raises(
        G2Error, match=r"^the recipe \S+ is truncated: its last line should be '# end'; restore it .*again$"
    ):
        load_recipe(run.recipe_file)


def test_recipes_without_these_lines_and_edited_ones_are_fine(run, tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(recipe_to_toml(RECIPE))
    assert load_recipe(path) == RECIPE
    path.write_text(run.recipe_file.read_text().replace("epochs = 1", "epochs = 7") + "# mine\n")
    assert load_recipe(path).train.epochs == 7


def test_a_newer_version_is_told_before_its_keys_are_read(run):
    text = run.recipe_file.read_text().replace("version 1", "version 7")
    run.recipe_file.write_text(text.replace("[data]", '[data]\nflavour = "new"'))
    for reading in (lambda: RunDirectory.open(run.path), lambda: RunDirectory.open(run.path, task="mt")):
        with pytest.raises(G2Error, match=r"recipe.toml has version 7, but this g2lstm reads only up to 1; upgrade"):
            reading()


def test_another_task_is_told_before_its_keys_are_read(run):
    run.recipe_file.write_text(seal('task = "mt"\nnews = 3\n'))
    with pytest.raises(G2Error, match="is a translation model, and this needs a language model; .* `g2lstm translate"):
        RunDirectory.open(run.path, task="lm")
    run.recipe_file.write_text(seal('task = "speech"\nnews = 3\n'))
    with pytest.raises(G2Error, match="is a run of task 'speech', which this g2lstm does not know; install a newer"):
        RunDirectory.open(run.path)


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_recipe(tmp_path, text):
    (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(G2Error, match="recipe.toml is empty; if it belongs to a run, restore it from a copy, or"):
        _ = RunDirectory(tmp_path).recipe
