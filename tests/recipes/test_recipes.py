import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from g2lstm.errors import G2Error
from g2lstm.nn.checks import METHODS
from g2lstm.nn.gate import EVAL_GATES, LSTM
from g2lstm.recipes.explain import dotted_keys
from g2lstm.recipes.files import apply_overrides, parse_value, recipe_hash, recipe_to_toml, shipped_recipes
from g2lstm.recipes.sections import AdaDelta, AdamW, GateCourse, GateSection, NtAsgd
from g2lstm.tasks.lm.recipe import LmTrain
from g2lstm.tasks.mt.recipe import MtRecipe
from g2lstm.tasks.recipes import load_recipe, parse_recipe
from g2lstm.text import datasets

SMALLEST: Mapping[str, Any] = {"task": "lm", "data": {"name": "embedded"}, "train": {"epochs": 1}}


def message(*overrides: str, values: Mapping[str, Any] = SMALLEST) -> str:
    with pytest.raises(G2Error) as caught:
        parse_recipe(values, overrides, source="r")
    return str(caught.value)


def test_the_smallest_recipe_is_a_short_training_on_sub_words() -> None:
    recipe = parse_recipe({"task": "lm", "data": {"path": "my.txt"}})
    assert (recipe.data.tokenizer, recipe.data.vocabulary) == ("bpe", 2000)
    assert (recipe.model.embedding, recipe.model.hidden, recipe.model.layers, recipe.model.tied) == (256, 512, 2, True)
    assert (recipe.model.method, recipe.model.tau, recipe.model.noise_rate) == ("gumbel", 0.9, 0.2)
    assert recipe.train.optimizer == AdamW()
    assert (recipe.train.minutes, recipe.train.epochs) == (10.0, None)
    assert parse_recipe(SMALLEST).train.minutes is None


def test_the_width_of_a_single_layer_is_the_embeddings() -> None:
    assert parse_recipe(SMALLEST, ["model.layers=1", "model.embedding=8"]).model.hidden == 8
    assert parse_recipe(SMALLEST, ["model.layers=1", "model.tied=false"]).model.hidden == 512
    wrong = ["model.layers=1", "model.hidden=9", "model.embedding=8"]
    assert "model.hidden = 9 would be ignored: with a tied softmax, a single layer is as wide as" in message(*wrong)
    assert parse_recipe(SMALLEST, wrong, is_run=True).model.hidden == 9  # as earlier versions wrote it
    assert parse_recipe(SMALLEST, [*wrong, "model.tied=false"]).model.hidden == 9


def test_the_vocabulary_goes_with_the_tokenizer() -> None:
    sub_words = {**SMALLEST, "data": {"path": "x", "vocabulary": 500}}
    assert parse_recipe(sub_words, ["data.tokenizer=word"]).data.vocabulary is None
    assert parse_recipe(sub_words, ["data.tokenizer=bpe"]).data.vocabulary == 500
    assert parse_recipe(sub_words, ["data.tokenizer=character", "data.vocabulary=80"]).data.vocabulary == 80


def test_runs_of_earlier_versions_keep_their_meaning() -> None:
    """Earlier versions wrote every key but those without a value, such as the vocabulary of all words."""
    tables = tomllib.loads(recipe_to_toml(load_recipe("ptb")))
    assert "vocabulary" not in tables["data"]
    del tables["data"]["is_tokenized"]
    assert parse_recipe(tables, is_run=True) == load_recipe("ptb")


def test_choices_are_those_of_the_layer() -> None:
    fields = GateSection.model_fields
    assert set(get_args(fields["method"].annotation)) == set(METHODS)
    assert set(get_args(fields["gates"].annotation)) == set(LSTM.sampled)
    assert set(get_args(fields["eval_gate"].annotation)) == set(EVAL_GATES)


@pytest.mark.parametrize(("method", "tau"), [("gumbel", 0.9), ("binary", 0.5), ("sharpened", 0.2), ("sigmoid", 1.0)])
def test_the_temperature_is_the_methods_unless_given(method: str, tau: float) -> None:
    gate = parse_recipe(SMALLEST, [f"model.method={method}"]).model.eval_gate
    assert gate == ("hard" if method == "binary" else "soft")
    assert parse_recipe(SMALLEST, [f"model.method={method}", "model.eval_gate=tempered"]).model.eval_gate == "tempered"
    assert parse_recipe(SMALLEST, [f"model.method={method}"]).model.tau == tau
    assert parse_recipe(SMALLEST, [f"model.method={method}", "model.tau=0.5"]).model.tau == 0.5


def test_shipped_recipes_are_complete_and_say_what_they_are() -> None:
    assert list(shipped_recipes()) == [
        "demo",
        "embedded",
        "embedded-mt",
        "iwslt14",
        "iwslt14-small",
        "multi30k-small",
        "ptb",
        "ptb-300",
        "ptb-finetune",
        "ptb-small",
        "ptb-small-finetune",
        "wikitext-2",
        "wmt14",
    ]
    for shipped, summary in shipped_recipes().items():
        assert summary.endswith(".")
        recipe = load_recipe(shipped)
        assert recipe.data.name is not None
        assert datasets.data_set(recipe.data.name).task == recipe.task
        for method in METHODS:
            assert load_recipe(shipped, [f"model.method={method}"]).model.method == method


def test_the_translation_recipes_are_the_papers() -> None:
    small, large = load_recipe("iwslt14"), load_recipe("wmt14")
    for recipe, embedding, hidden, layers, batch, vocabulary in (
        (small, 256, 256, 2, 32, 25_000),
        (large, 512, 1024, 3, 64, 30_000),
    ):
        assert isinstance(recipe, MtRecipe)
        assert (recipe.model.embedding, recipe.model.hidden, recipe.model.layers) == (embedding, hidden, layers)
        assert (recipe.train.batch_size, recipe.data.vocabulary) == (batch, vocabulary)
        assert recipe.train.optimizer == AdaDelta()
        assert (recipe.train.clip, recipe.data.max_length, recipe.model.tau, recipe.evaluate.beam) == (2.0, 64, 0.9, 5)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["data.target=de"], 'data.target = "de": the target must be a different language from the source'),
        (["data.source=fr"], "the data set 'embedded-mt' has de and en, not fr and en"),
        (["data.source=../x"], "data.source"),
        (
            ["train.batch_tokens=100", "train.batch_size=8"],
            "give either train.batch_size or train.batch_tokens, but not both",
        ),
        (["model.tied=all"], 'model: model.tied = "all" needs one vocabulary for both sides: set data.joint = true'),
        (["data.name=ptb"], "this data set is plain text; translation needs sentence pairs"),
        (["data.tokenizer=bpe", "data.vocabulary=9"], 'the tokenizer "bpe" needs a vocabulary of at least'),
        (["model.hiden=3"], "model.hiden is not a key; did you mean model.hidden?"),
    ],
)
def test_mistakes_in_a_translation_recipe(overrides: list[str], line: str) -> None:
    with pytest.raises(G2Error) as caught:
        load_recipe("embedded-mt", overrides)
    assert line in str(caught.value)


def test_the_recipe_called_ptb_is_the_papers() -> None:
    ptb = load_recipe("ptb")
    assert (ptb.data.tokenizer, ptb.data.vocabulary, ptb.data.min_frequency) == ("word", None, 1)
    assert (ptb.model.embedding, ptb.model.hidden, ptb.model.layers, ptb.model.tied) == (400, 1150, 3, True)
    assert (ptb.model.weight_dropout, *ptb.model.dropout.model_dump().values()) == (0.5, 0.1, 0.4, 0.25, 0.4)
    assert ptb.train.optimizer == NtAsgd()
    assert isinstance(ptb.train, LmTrain)
    assert (ptb.train.epochs, ptb.train.minutes, ptb.train.frequency_bias) == (500, None, False)
    assert (ptb.train.batch_size, ptb.train.bptt, ptb.train.clip) == (20, 70, 0.25)
    tuned = load_recipe("ptb-finetune")
    assert tuned.train.optimizer == NtAsgd(start="asgd")
    assert tuned.train.finetune_from is not None
    assert tuned.model == load_recipe("ptb").model


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_written_out_is_the_same_recipe(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_to_toml(recipe), encoding="utf-8")
    again = load_recipe(path)
    assert again == recipe
    assert recipe_hash(again) == recipe_hash(recipe)
    optional = {"data.path", "data.name", "data.vocabulary", "train.epochs", "train.minutes", "train.finetune_from"}
    optional |= {
        "train.patience",
        "train.average",
        "train.compression",
        "train.batch_size",
        "train.batch_tokens",
        "model.decoder_layers",
    }
    written = tomllib.loads(recipe_to_toml(recipe))
    for key in dotted_keys(type(recipe)):
        if key not in optional and not key.startswith(("train.optimizer.", "train.gates", "train.teacher")):
            found: Any = written
            for part in key.split("."):
                found = found[part]


def test_weights_are_not_averaged_twice() -> None:
    with pytest.raises(
        G2Error, match='train.average = 3: the optimiser "ntasgd" averages by itself; remove train.average'
    ):
        load_recipe("ptb", ["train.average=3"])
    assert load_recipe("embedded", ["train.average=3"]).train.average == 3


def test_hashes_tell_recipes_apart() -> None:
    hashes = {recipe_hash(parse_recipe(SMALLEST, [f"train.seed={seed}"])) for seed in (1, 2, 3)}
    assert len(hashes) == 3
    assert recipe_hash(parse_recipe(SMALLEST, ["train.seed=1"])) == recipe_hash(parse_recipe(SMALLEST))
    assert all(re.fullmatch("[0-9a-f]{16}", one) for one in hashes)


def test_a_recipe_does_not_change() -> None:
    recipe = parse_recipe(SMALLEST)
    with pytest.raises(ValueError, match="frozen"):
        recipe.train.seed = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.hiden=3", "model.hiden is not a key; did you mean model.hidden?"),
        ("hidden=3", "hidden is not a key; did you mean model.hidden?"),
        ("train.lr=3", "train.lr is not a key; did you mean train.optimizer.lr?"),
        ("modle.hidden=3", "modle is not a key; did you mean model?"),
        ("zzz=3", "zzz is not a key; a recipe has: task, data, model, train, evaluate"),
        ("data.zzz=3", "data.zzz is not a key; data has: name, path, tokenizer, vocabulary, min_frequency, lowercase"),
        ("evaluate.cache.lambda_=0.1", "evaluate.cache.lambda_ is not a key; did you mean evaluate.cache.lambda?"),
        ("train.optimizer.windw=3", "train.optimizer.windw is not a key; did you mean train.optimizer.window?"),
        ("train.optimizer.rho=1", "train.optimizer.rho is not a key of this kind of train.optimizer, only of another"),
        ("model.hidden=big", 'model.hidden = "big": must be a valid integer'),
        ("model.hidden=0", "model.hidden = 0: must be greater than or equal to 1"),
        ("model.hidden=1.5", "model.hidden = 1.5: must be a valid integer"),
        ("model.hidden=true", "model.hidden = true: must be a valid integer"),
        ("model.tau=0", "model.tau = 0: must be greater than or equal to 0.000001"),
        ("model.tau=inf", "model.tau = Infinity: must be a finite number"),
        ("model.noise_rate=2", "model.noise_rate = 2: must be less than or equal to 1"),
        ("model.dropout.words=1", "model.dropout.words = 1: must be less than 1"),
        ("model.tied=1", "model.tied = 1: must be a valid boolean"),
        ("model.method=gumbell", "model.method = \"gumbell\": must be 'gumbel', 'binary', 'sigmoid' or 'sharpened'"),
        ("evaluate.cache.lambda=2", "evaluate.cache.lambda = 2: must be less than 1"),
        ("train.optimizer.lr=-1", "train.optimizer.lr = -1: must be greater than 0"),
        ("train.average=1", "train.average = 1: must be greater than or equal to 2"),
        ("train.optimizer.name=sgd", "train.optimizer.name = \"sgd\": must be one of 'adamw', 'ntasgd', 'adadelta'"),
        ("train.optimizer=adamw", 'train.optimizer = "adamw": must be a section with its own keys'),
        ("train.finetune_from=3", "train.finetune_from = 3: must be a valid string"),
        ("model=3", "model = 3: must be a section with its own keys"),
        ("train=3", "train = 3: must be a section with its own keys"),
        ("task=mt2", "task = \"mt2\": must be 'lm' or 'mt'"),
        ("task=", "task is missing: must be 'lm' or 'mt'"),
        ("data.name=", "data.path: give either data.name or data.path, but not both"),
        (
            "data.name=embeded",
            "data.name = \"embeded\": there is no data set 'embeded'; did you mean 'embedded'? Choose",
        ),
        ("data.vocabulary=9", 'data.vocabulary = 9: the tokenizer "bpe" needs a vocabulary of at least 258, such as'),
        ("data.vocabulary=1", "data.vocabulary = 1: must be greater than or equal to 3"),
        ("nothing", "the override 'nothing' does not have the form a.b=value, such as train.epochs=3"),
        ("=3", "the override '=3' does not have the form a.b=value"),
        ("a..b=3", "the override 'a..b=3' does not have the form a.b=value"),
        ("task.x=3", "task.x cannot be set, because task is a value, not a section"),
    ],
)
def test_one_mistake_is_one_line(override: str, expected: str) -> None:
    values = {**SMALLEST, "train": {"epochs": 1, "optimizer": {"name": "ntasgd"}}}
    text = message(override, values=values)
    assert text.startswith(f"the recipe r: {expected}")
    assert "\n" not in text


def test_a_long_value_is_shortened() -> None:
    assert message(f"model.hidden={'x' * 100}").startswith(f'the recipe r: model.hidden = "{"x" * 56}...: must be')


def test_a_data_set_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = datasets.DataSet("pairs", "mt", "pairs", "pairs")
    monkeypatch.setattr(datasets, "data_sets", lambda: {"pairs": pairs})
    assert message("data.name=pairs").startswith('the recipe r: data.name = "pairs": this data set is for translation')


def test_all_mistakes_at_once() -> None:
    values = {
        "task": "lm",
        "data": {"path": "x", "name": "ptb", "tokenizer": "chars"},
        "model": {"hiden": 3, "tau": "warm", "method": "none", "dropout": {"words": 2}},
        "train": {"seed": -1, "optimizer": {"name": "adamw", "lr": 0, "window": 5}},
        "evalute": {},
    }
    first, *lines = message("wrong", "train.clip=x", values=values).splitlines()
    assert first == "the recipe r has 12 mistakes:"
    assert sorted(line.split()[0].rstrip(":") for line in lines) == [
        "data.path",
        "data.tokenizer",
        "evalute",
        "model.dropout.words",
        "model.hiden",
        "model.method",
        "model.tau",
        "the",
        "train.clip",
        "train.optimizer.lr",
        "train.optimizer.window",
        "train.seed",
    ]


def test_mistakes_are_told_when_the_task_is_one_of_them() -> None:
    lines = message("task=", "model.hidden=0").splitlines()
    assert [line.strip() for line in lines[1:]] == [
        "task is missing: must be 'lm' or 'mt'",
        "model.hidden = 0: must be greater than or equal to 1",
    ]


def test_an_empty_recipe() -> None:
    lines = message(values={}).splitlines()
    assert [line.strip().split(":")[0] for line in lines[1:]] == ["task is missing", "data.path"]


def test_overriding_the_data_or_the_optimizer_replaces_what_went_with_it() -> None:
    assert parse_recipe(SMALLEST, ["data.path=/my/text"]).data.name is None
    back = parse_recipe({**SMALLEST, "data": {"path": "/my/text"}}, ["data.name=ptb"])
    assert (back.data.name, back.data.path) == ("ptb", None)
    assert "give either data.name or data.path" in message("data.path=x", "data.name=ptb")
    tuned = {**SMALLEST, "train": {"epochs": 1, "optimizer": {"name": "adamw", "lr": 0.5, "beta2": 0.5}}}
    assert parse_recipe(tuned, ["train.optimizer.name=ntasgd"]).train.optimizer == NtAsgd()
    assert parse_recipe(tuned, ["train.optimizer.name=ntasgd", "train.optimizer.lr=2"]).train.optimizer == NtAsgd(lr=2)
    assert parse_recipe(tuned, ["train.optimizer.name=adamw"]).train.optimizer == AdamW(lr=0.5, beta2=0.5)


def test_overriding_the_method_takes_its_temperature() -> None:
    values = {**SMALLEST, "model": {"method": "gumbel", "tau": 0.7}}
    assert parse_recipe(values, ["model.method=sharpened"]).model.tau == 0.2
    assert parse_recipe(values, ["model.method=gumbel"]).model.tau == 0.7
    assert parse_recipe(values, ["model.tau=0.3", "model.method=sharpened"]).model.tau == 0.3
    unnamed = {**SMALLEST, "model": {"tau": 0.7}}  # so that of the default
    assert parse_recipe(unnamed, ["model.method=gumbel"]).model.tau == 0.7
    assert parse_recipe(unnamed, ["model.method=sharpened"]).model.tau == 0.2
    assert parse_recipe(values, ["model.method="]).model.tau == 0.7


def test_an_override_leaves_what_was_given_alone() -> None:
    values = {"task": "lm", "data": {"name": "ptb"}, "train": {"epochs": 1}}
    parse_recipe(values, ["train.epochs=2", "data.path=x"])
    assert values == {"task": "lm", "data": {"name": "ptb"}, "train": {"epochs": 1}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-3", 1e-3),
        ("true", True),
        ('"3"', "3"),
        ("[1, 2]", [1, 2]),
        ("sigmoid", "sigmoid"),
        ("/my/text", "/my/text"),
        ("007", "007"),
        ("2024-01-01", "2024-01-01"),
        ("1\nother = 2", "1\nother = 2"),
        ("1 # one", 1),
    ],
)
def test_values(text: str, value: object) -> None:
    assert parse_value(text) == value


@given(st.text())
def test_any_text_is_a_value(text: str) -> None:
    parse_value(text)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,3}(\.[a-z]{1,3}){0,2}", fullmatch=True),
        st.one_of(
            st.integers(-99, 99),
            st.booleans(),
            st.floats(allow_nan=False),
            st.from_regex(r"[x-z]{1,5}", fullmatch=True),
        ),
        max_size=6,
    )
)
def test_overrides_set_what_they_say(settings: dict[str, Any]) -> None:
    leaves = {k: v for k, v in settings.items() if not any(other.startswith(f"{k}.") for other in settings)}
    tables: dict[str, Any] = {}
    written = {True: "true", False: "false"}
    texts = [f"{key}={written[value] if isinstance(value, bool) else value}" for key, value in leaves.items()]
    assert apply_overrides(tables, texts) == []
    for key, value in leaves.items():
        found: Any = tables
        for part in key.split("."):
            found = found[part]
        assert found == value
        assert type(found) is type(value)


def test_taking_out_what_is_not_there() -> None:
    assert parse_recipe(SMALLEST, ["evaluate.cache.theta="]) == parse_recipe(SMALLEST)


@pytest.mark.parametrize("overrides", ["train.epochs=1", {"train.epochs": 1}])
def test_overrides_are_a_list(overrides: Any) -> None:
    with pytest.raises(G2Error, match=r'overrides must be a list such as \["train.epochs=1"\], got a (str|dict)'):
        parse_recipe(SMALLEST, overrides)


@pytest.mark.parametrize("name", ["nope.txt", "some/folder"])
def test_a_text_that_does_not_exist(name: str) -> None:
    with pytest.raises(G2Error, match=f"there is no file or folder {name}; give a text, a folder with train.txt or"):
        load_recipe(name)


def test_names_of_recipes() -> None:
    with pytest.raises(
        G2Error, match="there is no recipe 'ptb-smal', neither a file nor a shipped one; did you mean 'ptb-"
    ):
        load_recipe("ptb-smal")
    with pytest.raises(
        G2Error, match="neither a file nor a shipped one. Shipped recipes: demo, embedded, embedded-mt, iwslt14, "
    ):
        load_recipe("some/where/my.toml")


def test_a_run_directory_is_not_a_recipe_but_holds_one(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("")
    with pytest.raises(G2Error, match=re.escape(f"to use the recipe in it, give {tmp_path / 'recipe.toml'}")):
        load_recipe(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'task = "lm\n', r"the recipe .* is not valid TOML: .*line 1"),
        (b'task = "caf\xe9"\n', r"the recipe .* is not valid TOML: .* byte 0xe9 in position 11"),
        (b"\n", r"the recipe .* is empty"),
        (b"# nothing\n", r"has 2 mistakes:\n  task is missing"),
    ],
)
def test_files_that_are_no_recipes(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "my.toml").write_bytes(content)
    with pytest.raises(G2Error, match=expected):
        load_recipe(tmp_path / "my.toml")


def test_a_file_that_the_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "my.toml").write_text("")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(G2Error, match=r"my.toml cannot be read: Permission denied"):
        load_recipe(tmp_path / "my.toml")


@pytest.mark.parametrize("task", ["lm", "mt"])
def test_settings_of_an_optimizer_without_a_name_are_the_default_ones(task):
    data = {"path": "x"} | ({"source": "de", "target": "en"} if task == "mt" else {})
    train = {"epochs": 1, "batch_size": 8}
    recipe = parse_recipe({"task": task, "data": data, "train": train}, ["train.optimizer.lr=3"])
    assert recipe.train.optimizer == AdamW(lr=3)


def test_binary_gates_have_a_course_unless_the_recipe_says_otherwise() -> None:
    assert load_recipe("ptb-small").train.gates is None
    assert load_recipe("ptb-small", ["model.method=binary"]).train.gates == GateCourse()
    course = load_recipe("ptb-small", ["train.gates.start=0.25", "train.gates.tau=1.5"]).train.gates
    assert course == GateCourse(start=0.25, tau=1.5)
    assert load_recipe("ptb-small", ["model.method=binary"]).model.noise_rate == 0
    with pytest.raises(G2Error, match=r'train.gates changes nothing if model.method is "sigmoid"'):
        load_recipe("ptb-small", ["model.method=sigmoid", "train.gates.start=0.5"])


def test_another_method_brings_its_own_course_and_evaluation(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_text(recipe_to_toml(load_recipe("ptb-small", ["model.method=binary"])), encoding="utf-8")
    plain = load_recipe(path, ["model.method=sigmoid"])
    assert (plain.train.gates, plain.model.eval_gate, plain.model.tau) == (None, "soft", 1.0)
