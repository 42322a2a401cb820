"""Training with a teacher: a trained run whose predictions are a part of the loss."""

import pytest
import torch
from accelerate import Accelerator
from torch.nn import functional as F

import g2lstm
from g2lstm import G2Error
from g2lstm.tasks.recipes import parse_recipe
from g2lstm.training.start import prepare, train_recipe
from tests.training.toys import assert_same, interrupted, lm_recipe, make_trainer, mt_recipe, resumed, weights

PLAIN = {"activation_regularisation": 0.0, "temporal_regularisation": 0.0}


def tables_of(recipe):
    return recipe.model_dump(by_alias=True, exclude_none=True)


@pytest.fixture(params=["lm", "mt"])
def guided(request, data, tmp_path):
    """A recipe without noise or dropout, and its teacher, which has another width."""
    made = lm_recipe(data, quiet=True, **PLAIN) if request.param == "lm" else mt_recipe(data, quiet=True)
    train_recipe(parse_recipe(tables_of(made), ["model.hidden=9", "train.epochs=1"]), tmp_path / "teacher")
    recipe = parse_recipe(tables_of(made), [f"train.teacher.run={tmp_path / 'teacher'}", "train.teacher.share=0.7"])
    return recipe, g2lstm.load(tmp_path / "teacher").model


def test_the_loss_is_that_of_torch(guided, tmp_path):
    recipe, teacher = guided
    learner = make_trainer(recipe, tmp_path / "run").learner
    states = {learner.model: None, teacher: None}
    for _ in range(2):  # a language model's second window begins with the states of both
        batch = learner.next_batch()
        found, logits = learner.loss(learner.module, batch), {}
        for model in states:
            if recipe.task == "lm":
                features, _, states[model] = model(batch.tokens, states[model])
            else:
                features = model(*learner._inputs(batch))
            logits[model] = model.logits(features)[batch.targets >= 0]
        targets = batch.targets[batch.targets >= 0]
        smoothing = getattr(recipe.train, "label_smoothing", 0.0)
        hard = F.cross_entropy(logits[learner.model], targets, label_smoothing=smoothing)
        soft = F.cross_entropy(logits[learner.model], logits[teacher].softmax(-1))
        assert found.total.item() == pytest.approx((0.3 * hard + 0.7 * soft).item(), rel=1e-5)
        assert found.nats == pytest.approx(F.cross_entropy(logits[learner.model], targets).item(), rel=1e-5)
        if recipe.task == "lm":
            torch.testing.assert_close(learner.state, [*states[learner.model], *states[teacher]])


def test_resumed_is_uninterrupted(guided, tmp_path):
    recipe, teacher = guided
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    whole = make_trainer(recipe, tmp_path / "whole")
    whole.train()
    interrupted(recipe, tmp_path / "run", 4)
    assert_same(weights(resumed(recipe, tmp_path / "run")), weights(whole))
    assert_same(g2lstm.load(tmp_path / "teacher").model.state_dict(), before)
    saved = g2lstm.load(tmp_path / "run").recipe.train.teacher
    assert (saved.run, saved.share) == (str(tmp_path / "teacher"), 0.7)


def test_a_teacher_may_be_compressed(data, tmp_path):
    tables = tables_of(lm_recipe(data, quiet=True, epochs=1))
    train_recipe(parse_recipe(tables, ["train.compression=int2"]), tmp_path / "small")
    recipe = parse_recipe(tables, [f"train.teacher.run={tmp_path / 'small'}", "train.epochs=3"])
    trainer = make_trainer(recipe, tmp_path / "run")
    trainer.train()
    assert trainer.progress.best_loss < trainer.progress.first_loss


def test_wrong_teachers_are_refused(data, tmp_path):
    tables = tables_of(lm_recipe(data, epochs=1))
    train_recipe(parse_recipe(tables, ["data.vocabulary=9"]), tmp_path / "few words")
    train_recipe(mt_recipe(data, epochs=1), tmp_path / "mt")
    for run, message in (
        ("few words", r"few words \(train.teacher.run\) has a different vocabulary"),
        ("mt", "mt"),
        ("none", "none is not a run directory"),
    ):
        recipe = parse_recipe(tables, [f"train.teacher.run={tmp_path / run}"])
        with pytest.raises(G2Error, match=message):
            prepare(recipe, Accelerator(cpu=True))
    with pytest.raises(G2Error, match=r"train.teacher.share"):
        parse_recipe(tables, ["train.teacher.run=x", "train.teacher.share=0"])
