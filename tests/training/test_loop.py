"""The training loop: it learns, keeps the best weights, ends when it should, and heeds the recipe."""

import math

import pytest
import torch
from safetensors.torch import load_file

from g2lstm import G2Error
from g2lstm.recipes.sections import TrainSection
from g2lstm.training import loop
from g2lstm.training.progress import TrainingProgress, Turn
from tests.training.toys import NTASGD, lm_recipe, make_trainer


class Ticking:
    """A clock that goes on by a tenth of a second whenever it is looked at."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.advance(0.1)
        return self.now

    def advance(self, seconds):
        self.now += seconds


def test_training_learns_and_writes_what_it_promises(whole):
    trainer = whole["adamw"].trainer
    run, observer, progress = trainer.run, trainer.observer, trainer.progress
    assert observer.validations[-1].loss < observer.validations[0].loss
    assert observer.shares == sorted(observer.shares)
    assert observer.shares[-1] == 1.0
    assert progress.epoch == 3
    assert progress.tokens == 3 * trainer.learner.columns.predictions  # each token of an epoch is read once
    assert all(0 <= v <= 1 for k, v in observer.validations[-1].scores.items() if k.startswith("saturation/"))
    for path in (run.recipe_file, run.path / "tokenizer.json", run.model_file, run.events, run.checkpoints):
        assert path.exists()
    kinds = [line["kind"] for line in run.metrics()]
    assert kinds.count("valid") == 4
    assert "train" in kinds


def test_tensorboard_has_histograms_of_the_gates(whole):
    """The counts of metrics.jsonl, bin by bin, at every validation."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = whole["adamw"].trainer.run
    events = EventAccumulator(str(run.events), size_guidance={"histograms": 0})
    events.Reload()
    assert set(events.Tags()["histograms"]) == {"gates/input", "gates/forget"}
    lines = [line for line in run.metrics() if line["kind"] == "gates"]
    for gate in ("input", "forget"):
        found = events.Histograms(f"gates/{gate}")
        assert [one.step for one in found] == [line["step"] for line in lines]
        assert len(found) == 4
        for one, line in zip(found, lines, strict=True):
            counts = [line[f"{gate}/{k}"] for k in range(20)]
            shown = dict(zip(one.histogram_value.bucket_limit, one.histogram_value.bucket, strict=True))
            assert {round(edge, 2): count for edge, count in shown.items() if count} == {
                (k + 1) / 20: count for k, count in enumerate(counts) if count
            }
            assert (one.histogram_value.num, sum(counts) > 0) == (sum(counts), True)
            mean = one.histogram_value.sum / one.histogram_value.num
            assert abs(mean - sum(c * (k + 0.5) / 20 for k, c in enumerate(counts)) / sum(counts)) < 1e-9


@pytest.mark.parametrize("speeds", [(1.0, 1.0), (1.0, 5.0), (5.0, 1.0)], ids=["even", "slower", "faster"])
def test_minutes_are_kept_whatever_the_machine_does(data, tmp_path, monkeypatch, speeds):
    """The clock of a machine that changes its speed after the first ten updates."""
    clock = Ticking()
    monkeypatch.setattr(loop, "time", clock)
    trainer = make_trainer(lm_recipe(data, epochs=None, minutes=2.0), tmp_path / "run")
    first, later = speeds
    trainer.observer.after = lambda progress: clock.advance(first if progress.step < 10 else later)
    progress = trainer.train()
    assert 0.9 * 120 <= progress.seconds <= 120 + 3 * later + progress.validation_seconds
    assert progress.epochs == progress.epoch + trainer.learner.epoch_progress
    assert trainer.observer.epochs[-1] == progress.epochs  # known to the last validation
    assert trainer.observer.shares == sorted(trainer.observer.shares)


def test_a_budget_in_minutes_leaves_time_for_the_last_validation():
    settings = TrainSection(minutes=1)
    progress = TrainingProgress(seconds=30.0, validation_seconds=20.0)
    assert progress.share(settings, 0.5) == 0.75
    assert progress.share(TrainSection(minutes=1, average=3), 0.5) == 1.0  # of the mean, too
    assert TrainingProgress(seconds=30.0, epoch=4).share(TrainSection(minutes=1, epochs=5), 0.5) == 0.9


def test_training_in_turns_is_the_same_training(data, tmp_path):
    recipe = lm_recipe(data)
    alone = make_trainer(recipe, tmp_path / "alone")
    alone.train()
    for until in (1, 2, 3):
        trainer = make_trainer(recipe, tmp_path / "run", turn=Turn(3, until))
        progress = trainer.train(resume=until > 1)
        assert (progress.epoch, progress.finished) == (until, until == 3)
    assert progress.step == alone.progress.step
    assert all(map(torch.equal, trainer.learner.model.parameters(), alone.learner.model.parameters()))


def test_training_that_diverges_is_an_error(data, tmp_path):
    recipe = lm_recipe(data, optimizer={"name": "adamw", "lr": 100.0, "final_lr": 1.0}, epochs=1, clip=0.0)
    with pytest.raises(G2Error, match=r"training has diverged: validation loss was .* at first and is .* lower train"):
        make_trainer(recipe, tmp_path / "run").train()
    with pytest.raises(G2Error, match="training has diverged"):  # it stays one
        make_trainer(recipe, tmp_path / "run").train(resume=True)


def test_a_budget_that_the_first_validation_uses_up_is_an_error(data, tmp_path):
    trainer = make_trainer(lm_recipe(data, epochs=None, minutes=1e-9), tmp_path / "run")
    with pytest.raises(G2Error, match="no time was left for an update; start a new run with more train.minutes"):
        trainer.train()


def test_epochs_end_training_before_the_minutes_do(data, tmp_path):
    trainer = make_trainer(lm_recipe(data, epochs=2, minutes=60), tmp_path / "run")
    assert trainer.train().epoch == 2
    assert trainer.observer.shares == sorted(trainer.observer.shares)
    assert trainer.observer.shares[-1] == 1.0


def test_the_best_weights_are_kept_not_the_last(data, tmp_path):
    trainer = make_trainer(
        lm_recipe(data, optimizer={"name": "adamw", "lr": 0.05, "final_lr": 1.0}, epochs=4), tmp_path / "run"
    )
    progress = trainer.train()
    losses = [validation.loss for validation in trainer.observer.validations]
    best = losses.index(min(losses))
    assert 0 < best < 4  # or the test says nothing
    assert progress.best == min(losses)
    trainer.learner.model.load_state_dict(load_file(trainer.run.model_file))
    assert trainer.learner.validate().loss == pytest.approx(min(losses), rel=1e-6)
    facts = trainer.run.training_facts()
    steps = [line["step"] for line in trainer.run.metrics() if line["kind"] == "valid"]
    assert int(facts["steps"]) == steps[best]
    assert f"|steps:{facts['steps']}|" in trainer.run.signature()
    assert "epochs" not in facts


def test_the_mean_of_the_weights_is_what_is_validated_and_kept(whole):
    trainer = whole["asgd"].trainer
    own = trainer.learner.validate().loss
    with trainer.averaging.evaluation_weights():
        mean = trainer.learner.validate().loss
    assert mean != own
    assert trainer.observer.validations[-1].loss == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize(("last", "kept"), [(1.0, 5), (3.0, 3)], ids=["better", "worse"])
def test_the_mean_of_the_last_epochs_is_kept_if_it_is_better(data, tmp_path, monkeypatch, last, kept):
    """Whatever is really learnt: the losses are made up."""
    trainer = make_trainer(lm_recipe(data, epochs=4, average=3), tmp_path / "run")
    model, validate, losses, seen = trainer.learner.model, trainer.learner.validate, [6.0, 4.0, 3.5, 2.0, 2.5, last], []

    def made_up():
        loss = losses[len(seen)]
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return validate()._replace(loss=loss, criterion=loss)

    monkeypatch.setattr(trainer.learner, "validate", made_up)
    assert trainer.train().best == min(losses)
    assert "the mean of the weights of the last 3 validations:" in trainer.observer.messages
    assert len(seen) == 6  # before, four epochs, and the mean
    means = {name: torch.stack([one[name] for one in seen[2:5]]).mean(0) for name in seen[0]}
    torch.testing.assert_close(seen[5], means)
    torch.testing.assert_close(load_file(trainer.run.model_file), seen[kept])


def test_finetuning_stops_by_the_trigger(data, tmp_path):
    optimizer = {"name": "ntasgd", "lr": 20.0, "window": 1, "start": "asgd"}
    trainer = make_trainer(lm_recipe(data, optimizer=optimizer, epochs=60), tmp_path / "run")
    assert trainer.train().epoch < 60
    assert any("finetuning ends" in message for message in trainer.observer.messages)


def test_the_state_is_carried_from_window_to_window(data, tmp_path):
    learner = make_trainer(lm_recipe(data), tmp_path / "run").learner
    learner.model.eval()
    first, second = learner.next_batch(), learner.next_batch()
    learner.loss(learner.module, first)
    carried = learner.loss(learner.module, second).nats
    learner.start_epoch()
    assert learner.loss(learner.module, second).nats != carried


def test_the_carried_state_stays_finite(data, tmp_path):
    learner = make_trainer(lm_recipe(data), tmp_path / "run").learner
    learner.loss(learner.module, learner.next_batch())
    before = [h.clone() for h, _ in learner.state]
    bias = learner.model.softmax_bias.detach().clone()
    with torch.no_grad():
        learner.model.softmax_bias.fill_(float("nan"))
    learner.loss(learner.module, learner.next_batch())
    assert all(torch.equal(h, old) for (h, _), old in zip(learner.state, before, strict=True))
    with torch.no_grad():
        learner.model.softmax_bias.copy_(bias)
    learner.loss(learner.module, learner.next_batch())
    assert not any(torch.equal(h, old) for (h, _), old in zip(learner.state, before, strict=True))


def test_settings_of_the_recipe_reach_what_they_are_for(data, tmp_path):
    odd = {"activation_regularisation": 2.5, "temporal_regularisation": 1.5, "bptt": 7, "clip": 0.125, "epochs": 1}
    recipe = lm_recipe(data, optimizer={**NTASGD, "window": 3, "weight_decay": 3e-5}, **odd)
    trainer = make_trainer(recipe, tmp_path / "run")
    assert (trainer.learner.module.alpha, trainer.learner.module.beta) == (2.5, 1.5)
    assert trainer.optimizer.param_groups[0]["weight_decay"] == 3e-5
    assert trainer.averaging.window == 3
    rates, norms, lengths = [], [], []
    trainer.observer.on_step = lambda progress, share, values: rates.append(values["learning_rate"])
    clip, next_batch = trainer.accelerator.clip_grad_norm_, trainer.learner.next_batch
    trainer.accelerator.clip_grad_norm_ = lambda parameters, most: norms.append(most) or clip(parameters, most)

    def noting():
        batch = next_batch()
        lengths.extend([] if batch is None else [len(batch.tokens)])
        return batch

    trainer.learner.next_batch = noting
    trainer.train()
    assert rates == pytest.approx([30.0 * length / 7 for length in lengths])
    assert set(norms) == {0.125}


def test_a_text_shorter_than_the_batch(data, tmp_path):
    with pytest.raises(G2Error, match="a text of 310 tokens is too short for a batch of 310, which needs at least 311"):
        make_trainer(lm_recipe(data, batch_size=310), tmp_path / "run")
    trainer = make_trainer(lm_recipe(data, batch_size=4), tmp_path / "one")
    many = make_trainer(lm_recipe(data, batch_size=4, evaluate=200), tmp_path / "many")  # more columns than tokens
    assert many.learner.valid.predictions == trainer.learner.valid.predictions < 200
    assert math.isfinite(many.learner.validate().loss)


def test_gates_change_over_the_course_and_the_best_weights_are_chosen_anew(data, tmp_path):
    seen, optimizer = [], {"name": "adamw", "lr": 0.05}
    course = {"start": 0.5, "noise_rate": 0.4, "tau": 1.0}
    recipe = lm_recipe(data, gates=course, optimizer=optimizer, epochs=4)
    model = recipe.model.model_copy(update={"method": "binary", "tau": 0.5, "noise_rate": 0.0, "eval_gate": "hard"})
    trainer = make_trainer(recipe.model_copy(update={"model": model}), tmp_path / "run")
    layers = trainer.learner.model.layers

    trainer.observer.after = lambda progress: seen.append((layers[0].method, layers[0].noise_rate, layers[0].tau))
    progress = trainer.train()
    half = [share > 0.5 for share in trainer.observer.shares].index(True)
    assert {method for method, _, _ in seen[:half]} == {"sigmoid"}
    assert {method for method, _, _ in seen[half:]} == {"binary"}
    rates, taus = [rate for _, rate, _ in seen[half:]], [tau for _, _, tau in seen[half:]]
    assert 0.36 < rates[0] < 0.4
    assert rates == sorted(rates, reverse=True)
    assert (rates[-1], taus[-1]) == (0.0, 0.5)
    assert taus == sorted(taus, reverse=True)
    assert any("binary gates from here on" in message for message in trainer.observer.messages)
    binary = [validation.loss for validation in trainer.observer.validations[3:]]  # the third is before the change
    assert not progress.best_is_plain
    assert progress.best == min(binary)


def test_patience_waits_for_the_gates_to_begin(data, tmp_path):
    still = {"name": "adamw", "lr": 1e-30}  # no validation improves
    recipe = lm_recipe(data, gates={"start": 0.5}, optimizer=still, epochs=8, patience=1)
    assert make_trainer(recipe, tmp_path / "run").train().epoch == 6
