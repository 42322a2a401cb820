"""Numbers that are not finite: the update is skipped and counted, its batch kept; such weights are never saved."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from safetensors.torch import load_file

from g2lstm import G2Error
from g2lstm.training.checkpoint import load_checkpoint
from tests.training.toys import assert_same, lm_recipe, make_trainer, mt_recipe, resumed, weights

RECIPES = {"lm": lm_recipe, "mt": mt_recipe}


@pytest.fixture(params=RECIPES)
def recipe(request, data):
    return RECIPES[request.param](data, epochs=1)


def spoil(trainer, is_bad, *, where="gradient"):
    """Makes the gradient or the loss of some steps infinite; returns their batches, and the tokens of the others."""
    batches, tokens, original = [], [], trainer.learner.loss

    def loss(module, batch):
        found = original(module, batch)
        if not is_bad(trainer.progress.step):
            tokens.append(found.tokens)
            return found
        batches.append(batch)
        factor = float("inf")
        if where == "gradient":  # the value as it was, the gradient not
            return found._replace(total=found.total.detach() + (found.total - found.total.detach()) * factor)
        return found._replace(total=found.total * factor, nats=factor)

    trainer.learner.loss = loss
    return batches, tokens


def poison(trainer, step, value=torch.nan):
    """Makes a weight infinite or NaN after a step."""

    def after(progress):
        if progress.step == step:
            with torch.no_grad():
                trainer.learner.model.softmax_bias.fill_(value)

    trainer.observer.after = after


def all_finite(state):
    return all(value.isfinite().all() for value in state.values())


@pytest.mark.parametrize("where", ["gradient", "loss"])
def test_an_update_that_is_not_finite_is_skipped_and_counted(recipe, tmp_path, where):
    seen = {}
    trainer = make_trainer(recipe, tmp_path / "run", lambda progress: seen.update({progress.step: weights(trainer)}))
    batches, tokens = spoil(trainer, lambda step: step in (1, 2, 4), where=where)
    progress = trainer.train()
    assert (progress.skipped, progress.skipped_in_a_row, progress.finished) == (3, 0, True)
    assert sorted(set(range(1, progress.step + 1)) - set(seen)) == [2, 3, 5]
    assert all_finite(weights(trainer))
    # Of the newest row, the first batch is kept.
    kept = load_checkpoint(tmp_path / "run/skipped-batch.json")
    assert kept["step"] == 5
    assert kept["loss" if where == "loss" else "gradient"] in ("inf", "nan")
    for name, value in batches[2]._asdict().items():
        assert (
            torch.equal(kept["batch"][name], value) if isinstance(value, torch.Tensor) else kept["batch"][name] == value
        )
    assert "softmax_bias" in kept["gradients_not_finite"]
    (said,) = [message for message in trainer.observer.messages if "step 2:" in message]
    assert "the update is skipped, its batch is in" in said
    assert trainer.run.metrics()[-1]["skipped"] == 3
    assert progress.tokens == sum(tokens)


def test_a_skipped_update_changes_no_weight(data, tmp_path):
    before = []
    trainer = make_trainer(lm_recipe(data, clip=0.0, epochs=1), tmp_path / "run", lambda progress: next(iter(())))
    spoil(trainer, lambda step: before.append(weights(trainer)) or step == 0)
    with pytest.raises(StopIteration):
        trainer.train()
    assert_same(before[1], before[0])


def test_too_many_skipped_in_a_row_end_training(recipe, tmp_path):
    trainer = make_trainer(recipe.model_copy(update={"train": recipe.train.model_copy(update={"epochs": 3})}), tmp_path)
    before = weights(trainer)
    batches, _ = spoil(trainer, lambda step: True)
    with pytest.raises(
        G2Error,
        match=r"10 updates in a row were skipped .*skipped-batch.json\), and the gradient became (nan|inf) after step "
        "10; the last good state is .*step-000000",
    ):
        trainer.train()
    assert_same(weights(trainer), before)
    assert load_checkpoint(tmp_path / "skipped-batch.json")["step"] == 1
    assert len(batches) == 10


def test_a_scaler_of_the_loss_is_lowered_and_the_update_counted(data, tmp_path):
    """As with float16 on a GPU, where accelerate makes such a scaler."""
    trainer = make_trainer(lm_recipe(data, epochs=1), tmp_path / "run")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    accelerator = Accelerator(cpu=True)
    accelerator.scaler = scaler
    optimizer = AcceleratedOptimizer(trainer.optimizer.optimizer, scaler=scaler)
    accelerator._optimizers.append(optimizer)
    trainer.accelerator, trainer.optimizer = accelerator, optimizer
    before = weights(trainer)
    spoil(trainer, lambda step: step < 2)
    seen = []
    trainer.observer.after = lambda progress: seen.append((progress.step, scaler.get_scale()))
    assert trainer.train().skipped == 2
    assert seen[0] == (3, 256.0)
    state, scale = trainer.state_dict(), scaler.get_scale()
    scaler.update(8.0)
    trainer.load_state_dict(state)
    assert scaler.get_scale() == scale != 8.0
    assert not torch.equal(weights(trainer)["embedding.weight"], before["embedding.weight"])
    assert all_finite(weights(trainer))


def test_weights_that_are_not_finite_are_never_saved(data, tmp_path):
    trainer = make_trainer(lm_recipe(data, checkpoint_minutes=1e-9), tmp_path / "run")
    poison(trainer, 3, torch.inf)
    with pytest.raises(G2Error, match=r"model.softmax_bias is no longer finite after step 3; .*step-00000002.json"):
        trainer.train()
    saved = sorted((tmp_path / "run/checkpoints").glob("*.json"))
    assert [path.stem[-1] for path in saved] == ["1", "2"]
    assert all(all_finite(load_checkpoint(path)["model"]) for path in saved)


def test_weights_that_are_not_finite_are_never_the_best(data, tmp_path):
    """Those of a word that the validation text lacks would not show there."""
    trainer = make_trainer(lm_recipe(data, epochs=1), tmp_path / "run")
    validation = trainer.learner.validate()
    trainer.learner.validate = lambda: validation
    with torch.no_grad():
        trainer.learner.model.embedding.weight[0] = float("nan")
    with pytest.raises(G2Error, match=r"embedding.weight is no longer finite after step 0"):
        trainer.train()
    assert not trainer.run.model_file.exists()


def test_divergence_names_the_last_good_checkpoint_and_can_be_resumed(data, tmp_path):
    recipe = lm_recipe(data, epochs=1, bptt=4)
    trainer = make_trainer(recipe, tmp_path / "run")
    poison(trainer, 2)
    with pytest.raises(G2Error, match=r"loss became nan after step 12; the last good state is .*step-0000.*lower"):
        trainer.train()
    assert all_finite(weights(resumed(recipe, tmp_path / "run")))


def test_a_validation_that_is_not_finite_ends_training(data, tmp_path):
    trainer = make_trainer(mt_recipe(data), tmp_path / "run")

    def after(progress):
        if trainer.learner.epoch_progress >= 1 and progress.epoch == 1:
            with torch.no_grad():
                trainer.learner.model.softmax_bias.fill_(torch.nan)

    trainer.observer.after = after
    with pytest.raises(G2Error, match="validation loss became nan after step .*; the last good state is .*step-0"):
        trainer.train()
    assert all(all_finite(load_checkpoint(path)["model"]) for path in trainer.run.checkpoints.glob("*.json"))
    assert all_finite(load_file(trainer.run.model_file))
