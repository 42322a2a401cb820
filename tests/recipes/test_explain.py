"""Every key of a recipe is explained, and comments in a written recipe change nothing."""

import tomllib

import pytest

from g2lstm.errors import G2Error
from g2lstm.recipes.explain import commented, dotted_keys, explain, keys_of, table_of_keys
from g2lstm.tasks.recipes import TASKS, load_recipe

RECIPES = {name: task.recipe for name, task in TASKS.items()}


@pytest.mark.parametrize("task", RECIPES)
def test_every_key_has_a_meaning(task):
    keys = list(keys_of(RECIPES[task]))
    assert {key.name.partition(" ")[0] for key in keys} == set(dotted_keys(RECIPES[task]))
    for key in keys:
        assert key.meaning.endswith((".", '."')), key
        assert key.allowed, key
    table = table_of_keys(RECIPES[task])
    assert all(f"`{key.name}`" in table for key in keys)


def test_a_key_says_its_values_and_its_default():
    (text,) = explain("train.patience", RECIPES)
    assert text.startswith("train.patience: a whole number, at least 1\n  Stop after this many validations")
    (text,) = explain("noise_rate", {"lm": RECIPES["lm"]})[:1]
    assert text.startswith("model.noise_rate: a number, at least 0 and at most 1\n")
    assert explain("data.source", RECIPES)[0].startswith("[mt] data.source: text\n")
    (text,) = explain("train.optimizer.name", RECIPES)
    assert 'train.optimizer.name: "adamw", "ntasgd" or "adadelta"; default "adamw"' in text
    lm, mt = explain("train.clip", RECIPES)
    assert lm.startswith("[lm] train.clip: a number, at least 0; default 1.0\n")
    assert mt.startswith("[mt] train.clip: a number, at least 0; default 2.0\n")
    assert len(explain("train.optimizer", {"lm": RECIPES["lm"]})) == 17


def test_unknown_keys():
    with pytest.raises(G2Error, match=r"a recipe has no key 'train.minuts'; did you mean train.minutes\?"):
        explain("train.minuts", RECIPES)
    with pytest.raises(G2Error, match="a recipe has no key 'zzz'; its sections are task, data, model, train, evaluate"):
        explain("zzz", RECIPES)


@pytest.mark.parametrize("name", ["ptb", "embedded-mt"])
def test_comments_change_nothing(name):
    recipe = load_recipe(name)
    tables = recipe.model_dump(by_alias=True, exclude_none=True)
    text = commented(tables, type(recipe))
    assert tomllib.loads(text) == tables
    learning_rate = {"ptb": "# The learning rate, which stays the same.", "embedded-mt": "# The highest learning rate."}
    assert f"{learning_rate[name]}\nlr = " in text
