"""Training through a compression, into a compressed run; the recipe that finetunes a run."""

import json
from itertools import chain, repeat

import pytest
import torch
from safetensors.torch import load_file

import g2lstm
from g2lstm import G2Error
from g2lstm.compression.model import encoded_matrices
from g2lstm.compression.spec import Spec
from g2lstm.nn.record import evaluating
from g2lstm.recipes.files import recipe_to_toml
from g2lstm.recipes.sections import GateCourse
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.recipes import parse_recipe
from g2lstm.training.distill import RATE, finetune_recipe
from g2lstm.training.start import train_recipe
from tests.training.launch import start_pair, wait_for
from tests.training.toys import (
    ADADELTA,
    NTASGD,
    assert_same,
    interrupted,
    lm_recipe,
    make_trainer,
    mt_recipe,
    resumed,
    weights,
    write_text,
)

SPEC = "gates=levels:3; cell=int2; embedding=int3"


@pytest.mark.parametrize("make", [lm_recipe, mt_recipe])
def test_the_best_weights_are_compressed(data, tmp_path, make):
    trainer = make_trainer(make(data, epochs=2, compression=SPEC), tmp_path / "run")
    trainer.train()
    trained = g2lstm.load(tmp_path / "run")
    assert trained.run.compression == SPEC
    kinds = {one.kind for one in encoded_matrices(trained.model).values()}
    assert kinds == {"levels"}
    plain = sum(parameter.nbytes for parameter in trainer.learner.model.parameters())
    assert trained.run.model_file.stat().st_size < plain
    # What is validated is what the file holds.
    trainer.learner.model = trained.model
    with evaluating(trained.model):
        validation = trainer.learner.validate()
    assert validation.criterion == trainer.progress.best
    learner = trainer.learner
    assert learner.validation_loss() == validation.loss
    batches = learner._validation_batches
    learner._validation_batches = lambda: chain(batches(), repeat(None))  # more would fail
    assert learner.validation_loss(most=1) == validation.loss
    assert trained.facts["steps"].isdecimal()


@pytest.mark.parametrize("step", [1, 14])
def test_resumed_is_uninterrupted(data, tmp_path, step):
    recipe = lm_recipe(data, compression=SPEC)
    whole = make_trainer(recipe, tmp_path / "whole")
    whole.train()
    interrupted(recipe, tmp_path / "run", step)
    with RunDirectory(tmp_path / "run").locked():  # although its weights are compressed
        found = resumed(recipe, tmp_path / "run")
    assert_same(weights(found), weights(whole))
    assert_same(load_file(found.run.model_file), load_file(whole.run.model_file))


def test_weight_averages_are_of_full_weights(data, tmp_path):
    trainer = make_trainer(lm_recipe(data, optimizer=NTASGD, epochs=6, compression="int2"), tmp_path / "run")
    trainer.train()
    assert trainer.averaging.is_averaging
    own = weights(trainer)
    with trainer.averaging.evaluation_weights():
        small = g2lstm.compress(trainer.learner.model)
    assert_same(weights(trainer), own)
    assert max(len(torch.unique(mean[0])) for mean in trainer.averaging.means if mean.dim() == 2) > 4
    assert max(len(torch.unique(row)) for row in small.embedding.weight) <= 4


@pytest.mark.parametrize("spec", ["int9", "", "softmax=int7"])
def test_a_wrong_spec_is_a_mistake_in_the_recipe(data, spec):
    tables = lm_recipe(data).model_dump(by_alias=True, exclude_none=True)
    tables["train"]["compression"] = spec
    with pytest.raises(G2Error, match="train.compression"):
        parse_recipe(tables)


def test_presets_are_written_out(data):
    assert lm_recipe(data, compression="small").train.compression == str(Spec.parse("small"))


def test_the_recipe_of_a_finetune(data, tmp_path):
    def recipe_for(name, made, *overrides):
        trainer = make_trainer(made, tmp_path / name)
        return finetune_recipe(trainer.run, Spec.parse("int2"), 4, overrides)

    found = recipe_for("adamw", lm_recipe(data, minutes=5, quiet=True))
    assert (found.train.epochs, found.train.minutes, found.train.compression) == (4, None, "int2")
    assert found.train.finetune_from == str(tmp_path / "adamw")
    assert found.train.optimizer.lr == RATE * 0.01
    assert recipe_for("adadelta", mt_recipe(data, optimizer=ADADELTA)).train.optimizer.name == "adamw"
    assert recipe_for("other", lm_recipe(data), "train.epochs=7").train.epochs == 7
    binary = parse_recipe(lm_recipe(data).model_dump(by_alias=True, exclude_none=True), ["model.method=binary"])
    assert recipe_for("binary", binary).train.gates == GateCourse(soft_rate=0.0)


@pytest.mark.slow
def test_two_processes_see_the_same_weights(tmp_path):
    data = write_text(tmp_path / "data")
    recipe = lm_recipe(data, quiet=True, epochs=2, compression=SPEC)
    (tmp_path / "recipe.toml").write_text(recipe_to_toml(recipe))
    command = ("-m", "g2lstm", "train", tmp_path / "recipe.toml", "--out", tmp_path / "two")
    processes = start_pair(*command, G2LSTM_CACHE=tmp_path / "cache")
    messages = wait_for(processes)
    assert [process.returncode for process in processes] == [0, 0], messages
    train_recipe(recipe, tmp_path / "one")

    def losses(run):
        lines = (tmp_path / run / "metrics.jsonl").read_text().splitlines()
        return [line["loss"] for line in map(json.loads, lines) if line["kind"] == "valid"]

    assert losses("two") == pytest.approx(losses("one"), rel=1e-3)  # sums differ, and now and then a weight's code
