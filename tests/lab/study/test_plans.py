"""Runs and columns of every study: recipes load, names are unique, the paper's figures stand where they should."""

import pytest
import torch

from g2lstm import G2Error
from g2lstm.compression.spec import Spec
from g2lstm.lab.study.jobs import estimate
from g2lstm.lab.study.plan import Measurement
from g2lstm.lab.study.studies import STUDIES, demo, find_study
from g2lstm.tasks.recipes import load_recipe

ALL = [(name, scale) for name in STUDIES for scale in ("small", "paper") if (name, scale) != ("table5", "small")]


@pytest.mark.parametrize(("name", "scale"), ALL)
def test_every_study_is_whole(name, scale, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # the small scale is for two cores
    seeds = 1 if name == "figures" else 2
    study = find_study(name, scale, seeds)
    names = [plan.name for plan in study.runs]
    assert len(set(names)) == len(names)
    seen = set()
    for plan in study.runs:
        recipe = plan.load(tmp_path)
        assert recipe.train.seed == plan.seed
        assert plan.starts_from is None or plan.starts_from in seen, "a run comes after the one it starts from"
        if plan.starts_from is not None:
            assert recipe.train.finetune_from == str(tmp_path / plan.starts_from)
        seen.add(plan.name)
        assert estimate(recipe)[0] > 0
        if scale == "small":
            assert recipe.train.minutes is None or recipe.train.minutes <= 60
            assert estimate(recipe)[0] <= 3600
    for table in study.tables:
        assert table.title
        for column in table.columns:
            mine = [plan for plan in study.runs if plan.source == column.source]
            assert {plan.row for plan in mine} >= set(column.paper)
            assert {plan.seed for plan in mine} == set(range(1, seeds + 1))
            for plan in mine:
                assert {column.measurement, column.against or column.measurement} <= set(plan.measurements)


def overrides_of(name, scale="small"):
    return {plan.name: plan.overrides for plan in find_study(name, scale, 1).runs}


def test_names_of_runs_say_recipe_method_and_seed():
    assert list(overrides_of("table3")) == [
        "ptb-small-sigmoid-seed1", "ptb-small-sharpened-seed1", "ptb-small-gumbel-seed1", "ptb-small-binary-seed1",
    ]  # fmt: skip
    assert set(overrides_of("table1")) >= set(overrides_of("table3")), "the two tables share their runs"
    assert "ptb-small-finetune-gumbel-seed1" in overrides_of("table1")
    assert set(overrides_of("table1", "paper")) == set(overrides_of("table3", "paper"))
    assert overrides_of("table4").keys() == overrides_of("table2").keys()


def test_table1_has_the_papers_figures_beside_ours():
    (table,) = find_study("table1", "paper", 1).tables
    figures = {column.title: column.paper["gumbel"] for column in table.columns}
    assert figures == {
        "valid": 60.4, "test": 58.2, "valid, finetuned": 58.5, "test, finetuned": 56.1,
        "valid, finetuned, cache": 52.9, "test, finetuned, cache": 52.1,
    }  # fmt: skip


def test_table3_has_the_papers_ranks_and_proportional_ones():
    (small,), (paper,) = (find_study("table3", scale, 1).tables for scale in ("small", "paper"))
    assert [column.title for column in paper.columns] == [
        "original", "round 0.2", "round 0.2, clip 0.4", "svd 128", "svd 64", "hard gates, no cache",
    ]  # fmt: skip
    assert [column.title for column in small.columns][5:] == [
        "svd 57",
        "svd 28",
        "hard gates, no cache",
    ]  # 128 and 64 times 512 / 1150
    assert [column.paper.get("sigmoid") for column in small.columns] == [52.8, 0.4, 0.8, 3.8, 12.7, None, None, None]
    assert "57 and 28 of layers 512 wide" in " ".join(small.notes)
    assert {column.measurement.cache for column in paper.columns} == {"recipe", None}
    assert {column.measurement.cache for column in small.columns} == {"tuned", None}


def test_table4_compresses_as_the_paper_did():
    multi30k, iwslt = find_study("table4", "small", 1).tables
    assert [column.measurement.spec for column in iwslt.columns] == [
        None, "gates=round:0.5", "gates=round:0.5,clip:1.0", "gates=svd:32", "gates=svd:16", None,
    ]  # fmt: skip
    assert [column.paper["gumbel"] for column in iwslt.columns[:-1]] == [31.95, -0.51, -0.51, -0.33, -0.67]
    assert not any(column.paper for column in multi30k.columns), "the paper says nothing of Multi30k"


def test_table5_is_for_the_papers_scale():
    (table,) = find_study("table5", "paper", 1).tables
    assert [column.paper["sigmoid"] for column in table.columns[:-1]] == [21.89, -5.67, -5.86, -0.74, -1.90]
    with pytest.raises(G2Error, match="use --scale paper, or table4"):
        find_study("table5", "small", 1)


def test_ranks_that_do_not_fit_are_left_out_and_told():
    (table,) = find_study("table3", "small", 1, ["model.hidden=40", "model.embedding=20"]).tables
    assert [column.title for column in table.columns] == [
        "original",
        "round 0.2",
        "round 0.2, clip 0.4",
        "svd 4",
        "svd 2",
        "hard gates, no cache",
    ]
    assert "Rank 64 is left out: the layers are only 20 wide." in table.notes


def test_ablations_change_one_thing_each(tmp_path):
    plans = {plan.row: plan for plan in find_study("ablations", "small", 1).runs}
    base = plans["gumbel"].load(tmp_path).model_dump()
    changed = {
        row: {
            key: value
            for section in ("model", "train")
            for key, value in plan.load(tmp_path).model_dump()[section].items()
            if value != base[section][key]
        }
        for row, plan in plans.items()
    }
    assert changed["ifo"] == {"gates": "ifo"}
    assert changed["tau0.3"] == {"tau": 0.3}
    assert changed["noise1.0"] == {"noise_rate": 1.0}
    rate = {"optimizer": base["train"]["optimizer"] | {"lr": 3e-3}}
    assert changed["deep-gumbel"] == {"layers": 8, "residual": True, **rate}
    assert changed["deep-sigmoid"] == changed["deep-gumbel"] | {"method": "sigmoid", "tau": 1.0}
    assert set(changed["converted4"]) == {"epochs", "optimizer", "finetune_from"}
    assert changed["less-gumbel"] == {
        "weight_dropout": 0.15, "dropout": {"words": 0.025, "input": 0.15, "between": 0.1, "output": 0.15}
    }  # fmt: skip
    assert changed["less-sigmoid"] == changed["less-gumbel"] | {"method": "sigmoid", "tau": 1.0}
    assert changed["continued16"] == changed["converted16"] | {"method": "sigmoid", "tau": 1.0}
    assert base["train"]["minutes"] is None, "rows are compared by epochs"
    assert plans["converted4"].starts_from == plans["sigmoid"].name
    gates = {one.eval_gate for one in plans["gumbel"].measurements}
    assert gates == {None, "tempered", "hard"}


def test_what_a_row_is_called_by_is_not_overridden(tmp_path):
    overrides = ["model.layers=3", "model.tau=0.7", "train.epochs=10"]
    plans = {plan.row: plan.load(tmp_path) for plan in find_study("ablations", "small", 1, overrides).runs}
    assert plans["gumbel"].model.layers == 3
    assert plans["deep-gumbel"].model.layers == 8
    assert [plans[row].model.tau for row in ("gumbel", "tau0.3")] == [0.7, 0.3]
    assert [plans[row].train.epochs for row in ("gumbel", "converted4", "continued16")] == [10, 4, 16]


@pytest.mark.parametrize("name", ["table1", "table3", "ablations"])
def test_temperature_and_noise_are_those_of_g2_alone(name, tmp_path):
    plans = find_study(name, "small", 1, ["model.tau=0.7", "model.noise_rate = 0.4"]).runs
    recipes = [(plan.row, plan.load(tmp_path).model) for plan in plans]
    ours = [model for row, model in recipes if row == "gumbel"]
    assert {(model.tau, model.noise_rate) for model in ours} == {(0.7, 0.4)}
    rest = [model for row, model in recipes if row != "binary-from-start"]  # which needs noise
    others = {(model.method, model.tau, model.noise_rate) for model in rest if model.method != "gumbel"}
    assert others == {("sigmoid", 1.0, 0.2), ("sharpened", 0.2, 0.2), ("binary", 0.5, 0.0)}


@pytest.mark.parametrize("name", STUDIES)
def test_methods_and_seeds_are_the_studys_own(name):
    with pytest.raises(G2Error, match=r"can't change model.method here: .*--only"):
        find_study(name, "paper", 1, ["model.method=sigmoid"])
    with pytest.raises(G2Error, match="can't change train.seed here: --seeds N"):
        find_study(name, "paper", 1, ["train.seed = 2"])
    with pytest.raises(G2Error, match="can't change model here"):
        find_study(name, "paper", 1, ['model={method="sigmoid"}'])


def test_the_demo_takes_another_seed_but_no_method(tmp_path):
    assert {plan.load(tmp_path).train.seed for plan in demo(["train.seed=5"]).runs} == {5}
    with pytest.raises(G2Error, match="can't change model.method here: the demo compares all"):
        demo(["model.method=sigmoid"])


def test_the_name_of_a_measurement_is_one_of_a_file_and_its_own():
    ways = [
        Measurement(), Measurement("valid"), Measurement(eval_gate="hard"), Measurement(cache="tuned"),
        Measurement(cache="recipe"), Measurement(compression="small"), Measurement(compression="gates=svd:4"),
        Measurement(compression="gates=svd:4,int8"),
    ]  # fmt: skip
    recipe, binary = load_recipe("ptb-small"), load_recipe("ptb-small", ["model.method=binary"])
    names = [way.name(recipe) for way in ways]
    assert len(set(names)) == len(names)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-") for name in names)
    assert Measurement(compression="paper-lm-svd64").name(recipe) == "test-soft-gates_svd64"
    assert [Measurement(eval_gate=gate).name(binary) for gate in (None, "soft")] == ["test-hard", "test-soft"]
    assert Measurement(compression="small").spec == str(Spec.parse("small"))


def test_unknown_names_are_told():
    with pytest.raises(G2Error, match="no study 'table9'; choose one of table1"):
        find_study("table9", "small", 1)


@pytest.mark.parametrize("override", ["data.path=x", 'data={path="x"}', "data.name=wikitext-2"])
def test_other_texts_do_not_stand_beside_the_papers_figures(override):
    (table,) = find_study("table3", "small", 1, [override]).tables
    assert not any(column.paper for column in table.columns)
    assert table.notes[0] == f"This is not the data of the title, but {override}, so the paper's figures are left out."
