"""Whatever a recipe says, it is a recipe or a clear error, soon, and nothing is allocated for sizes it names."""

import tomllib
from contextlib import suppress
from importlib.resources import files

import pytest
import tomli_w
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from g2lstm import G2Error
from g2lstm.recipes.files import recipe_to_toml
from g2lstm.tasks import recipes
from g2lstm.tasks.recipes import load_recipe, parse_recipe
from tests.fuzz import SHORT, changed, damaged, fuzzed

SHIPPED = {file.name: file.read_bytes() for file in (files("g2lstm") / "recipes").iterdir() if file.suffix == ".toml"}
LM = {"task": "lm", "data": {"name": "embedded"}, "train": {"epochs": 1}}
MT = {"task": "mt", "data": {"name": "embedded-mt", "source": "de", "target": "en"}}
MT |= {"train": {"epochs": 1, "batch_size": 4}}


def check_file(path, content):
    path.write_bytes(content)
    try:
        recipe = load_recipe(path)
    except G2Error:
        return
    assert parse_recipe(tomllib.loads(recipe_to_toml(recipe))) == recipe


@fuzzed()
def test_damaged_recipes(tmp_path, data):
    check_file(tmp_path / "my.toml", damaged(data, data.draw(st.sampled_from(sorted(SHIPPED.values())))))


@fuzzed()
def test_recipes_that_say_something_else(tmp_path, data):
    tables = changed(data, tomllib.loads(data.draw(st.sampled_from(sorted(SHIPPED.values()))).decode()))
    try:
        content = tomli_w.dumps(tables).encode()
    except (TypeError, ValueError, RecursionError):  # JSON has values that TOML lacks
        return
    check_file(tmp_path / "my.toml", content)


@SHORT
@given(st.text(max_size=30), st.text(max_size=30))
@example("model.hidden", "9" * 5000)
@example("model.hidden", "0x" + "f" * 5000)
@example("model.hidden", "[" * 100_000)
@example(".".join(["a"] * 2000), "1")
@example("data.path", '"a\\u0000b"')
@example("data.path", "~nobody-of-this-name/x")
@example("data.path", "x" * 300)
@example("train.finetune_from", "x/" * 3000)
def test_any_override_is_taken_or_refused(key, value):
    with suppress(G2Error):
        parse_recipe(LM, [f"{key}={value}"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = " + b"9" * 5000, "is not valid TOML: Exceeds the limit"),
        (b'task = "lm"\n[model]\nhidden = 0x' + b"f" * 5000, "model.hidden = a number of thousands of digits: "),
        (b"a = " + b"[" * 9000, "is not valid TOML: maximum recursion"),
        (b".".join([b"a"] * 500) + b" = 1", "is nested more than 20 deep"),
        (b"a = " + b"[" * 90 + b"]" * 90, "is nested more than 20 deep"),
        (b"#" * 20_000, "is longer than 16,384 bytes"),
        (b'task = "lm"\n' + b"".join(b"k%d = 1\n" % number for number in range(1000)), "50 mistakes or more"),
        (b'task = "lm"\ndata.path = "a\\u0000b"\ntrain.epochs = 1', "no file or folder can have this name"),
        (b'task = "lm"\ndata.path = "~nobody-of-this-name"\ntrain.epochs = 1', "there is no such user"),
        (b'task = "lm"\ndata.name = "ptb"\ntrain.epochs = 1e999', "must be a valid integer"),
        (b'task = "lm"\n"' + b"k" * 9000 + b'" = 1', "k\\.\\.\\. is not a key"),
    ],
)  # fmt: skip
def test_hostile_files(tmp_path, content, message):
    (tmp_path / "my.toml").write_bytes(content)
    with pytest.raises(G2Error, match=message) as raised:
        load_recipe(tmp_path / "my.toml")
    assert len(str(raised.value)) < 20_000


def test_a_file_with_a_hole_is_not_read(tmp_path):
    with (tmp_path / "my.toml").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(G2Error, match="is longer than 16,384 bytes"):
        load_recipe(tmp_path / "my.toml")


@pytest.mark.parametrize("key", ["hidden", "embedding", "layers"])
@pytest.mark.parametrize("tables", [LM, MT], ids=["lm", "mt"])
def test_sizes_beyond_all_reason_are_refused_by_the_recipe(tables, key):
    with pytest.raises(G2Error, match=rf"model.{key} = 1000000000000: must be less than or equal to"):
        parse_recipe({**tables, "model": {key: 10**12}})


@pytest.mark.parametrize(
    ("tables", "build"),
    [
        (LM, lambda recipe: recipes.LM.build(recipe, 2**31)),
        (MT, lambda recipe: recipes.MT.build(recipe, 9, 9)),
    ],
    ids=["lm", "mt"],
)
def test_a_model_that_does_not_fit_is_refused_before_it_is_made(tables, build):
    recipe = parse_recipe({**tables, "model": {"hidden": 2**20, "embedding": 2**20, "layers": 256}})
    before = torch.get_rng_state()
    with pytest.raises(
        G2Error, match=r"weights, which take .* GB, and this machine has .* GB of memory; choose smaller"
    ):
        build(recipe)
    assert torch.equal(torch.get_rng_state(), before)


def test_counting_weights_draws_no_random_numbers():
    recipe = parse_recipe({**LM, "model": {"hidden": 4, "embedding": 3, "layers": 2}})
    torch.manual_seed(3)
    counted = recipes.LM.build(recipe, 5)
    torch.manual_seed(3)
    plain = recipes.LM.module(recipe, 5)
    assert all(map(torch.equal, counted.parameters(), plain.parameters()))
