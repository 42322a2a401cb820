"""The training loop: resumed training is uninterrupted training, to the bit; signals, budgets, divergence."""

import errno
import os
import signal

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer

from g2lstm import G2Error
from g2lstm.recipes.files import recipe_hash
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.lm.training import LanguageModelLearner
from g2lstm.tasks.recipes import parse_recipe
from g2lstm.tasks.registry import LM
from g2lstm.text.corpus import prepare_stream, prepare_tokenizer
from g2lstm.training.checkpoint import load_checkpoint
from g2lstm.training.environment import Interrupted
from g2lstm.training.loop import Trainer
from g2lstm.training.progress import fitted_epochs
from tests.training.observers import Silent

ADAMW = {"name": "adamw", "lr": 0.01}
NTASGD = {"name": "ntasgd", "lr": 30.0, "window": 1}


@pytest.fixture
def data(tmp_path):
    generator = torch.Generator().manual_seed(0)
    folder = tmp_path / "data"
    folder.mkdir()
    for split, lines in (("train", 60), ("valid", 12), ("test", 12)):
        words = torch.randint(20, (lines, 9), generator=generator).tolist()
        (folder / f"{split}.txt").write_text("\n".join(" ".join(f"w{w}" for w in line) for line in words) + "\n")
    return folder


def make_trainer(data, out, observer, optimizer=ADAMW, **train):
    train = {"epochs": 3, "batch_size": 4, "bptt": 8, "optimizer": optimizer, **train}
    recipe = parse_recipe({
        "task": "lm", "data": {"path": str(data)}, "train": train,
        "model": {"embedding": 8, "hidden": 12, "layers": 2}, "evaluate": {"batch_size": 2},
    })  # fmt: skip
    tokenizer = prepare_tokenizer(data / "train.txt", cache=data)
    streams = {split: prepare_stream(data / f"{split}.txt", tokenizer, cache=data) for split in ("train", "valid")}
    run = RunDirectory(out)
    if not run.recipe_file.exists():
        run = RunDirectory.create(out, recipe, {"tokenizer.json": tokenizer})
    torch.manual_seed(recipe.train.seed)
    model = LM.build(recipe, len(tokenizer))
    task = LanguageModelLearner(recipe, model, streams["train"], streams["valid"])
    return Trainer(task, recipe.train, run, Accelerator(cpu=True), observer)


def weights(trainer):
    return {name: value.clone() for name, value in trainer.task.model.state_dict().items()}


@pytest.mark.parametrize("optimizer", [ADAMW, NTASGD], ids=["adamw", "ntasgd"])
@pytest.mark.parametrize("cut", [1, 20, 45])
def test_resumed_training_is_uninterrupted_training(data, tmp_path, optimizer, cut):
    epochs = 3 if optimizer is ADAMW else 6
    whole = make_trainer(data, tmp_path / "whole", Silent(), optimizer, epochs=epochs)
    whole.train()

    def stop(progress):
        if progress.step == cut:
            os.kill(os.getpid(), signal.SIGINT)

    first = make_trainer(data, tmp_path / "cut", Silent(stop), optimizer, epochs=epochs)
    with pytest.raises(Interrupted, match="state is saved"):
        first.train()
    assert first.progress.step == cut
    torch.manual_seed(999)  # what a new process would have
    second = make_trainer(data, tmp_path / "cut", Silent(), optimizer, epochs=epochs)
    progress = second.train(resume=True)
    assert progress.step == whole.progress.step > cut
    assert progress.best == whole.progress.best
    for name, value in weights(whole).items():
        assert torch.equal(second.task.model.state_dict()[name], value), name
    ours, theirs = RunDirectory(tmp_path / "cut").load_weights(), RunDirectory(tmp_path / "whole").load_weights()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    if optimizer is NTASGD:
        assert whole.averaging.is_averaging  # else the test would not reach the averages
        for a, b in zip(second.averaging.means, whole.averaging.means, strict=True):
            assert torch.equal(a, b)


def test_a_finished_run_stays_finished(data, tmp_path):
    make_trainer(data, tmp_path / "run", Silent()).train()
    again = make_trainer(data, tmp_path / "run", Silent())
    steps = again.train(resume=True).step
    assert steps == again.progress.step
    assert again.observer.shares == []


def test_training_learns_and_writes_what_it_promises(data, tmp_path):
    observer = Silent()
    trainer = make_trainer(data, tmp_path / "run", observer, epochs=4)
    progress = trainer.train()
    run = trainer.run
    assert observer.validations[-1].loss < observer.validations[0].loss
    assert observer.shares == sorted(observer.shares)
    assert observer.shares[-1] == 1.0
    assert progress.epoch == 4
    assert all(0 <= v <= 1 for k, v in observer.validations[-1].scores.items() if k.startswith("saturation/"))
    for path in (
        run.recipe_file,
        run.path / "tokenizer.json",
        run.model_file,
        run.metrics_file,
        run.events,
        run.checkpoints,
    ):
        assert path.exists()
    kinds = [line["kind"] for line in run.metrics()]
    assert kinds.count("valid") == 5
    assert "train" in kinds


def test_every_token_of_an_epoch_is_read_once(data, tmp_path):
    trainer = make_trainer(data, tmp_path / "run", Silent(), epochs=1)
    trainer.train()
    assert trainer.progress.tokens == trainer.task.columns.predictions


def test_minutes_are_turned_into_epochs(data, tmp_path):
    trainer = make_trainer(data, tmp_path / "run", Silent(), epochs=None, minutes=0.02)
    progress = trainer.train()
    assert progress.epochs is not None
    assert any("enough for" in message for message in trainer.observer.messages)
    assert progress.epoch + trainer.task.epoch_progress >= progress.epochs


# Of the first, five epochs with their validations take exactly 60 seconds; of the second, one minute is left after
# five: two seconds of training and two of validation.
@pytest.mark.parametrize(
    ("minutes", "epoch", "validation", "expected"),
    [(1, 10, 2, 5.0), (64 / 60, 10, 2, 5.2), (1, 60, 0, 1.0), (1, 120, 0, 0.5)],
)
def test_fitted_epochs_by_hand(minutes, epoch, validation, expected):
    assert fitted_epochs(minutes, epoch, validation) == pytest.approx(expected)


def test_epochs_end_training_before_the_minutes_do(data, tmp_path):
    trainer = make_trainer(data, tmp_path / "run", Silent(), epochs=2, minutes=60)
    assert trainer.train().epoch == 2
    assert trainer.observer.shares == sorted(trainer.observer.shares)
    assert trainer.observer.shares[-1] == 1.0


def test_the_best_weights_are_kept_not_the_last(data, tmp_path):
    trainer = make_trainer(data, tmp_path / "run", Silent(), {"name": "adamw", "lr": 0.3}, epochs=6)
    progress = trainer.train()
    losses = [validation.loss for validation in trainer.observer.validations]
    assert progress.best == min(losses) < losses[-1]  # else the test says nothing
    trainer.task.model.load_state_dict(trainer.run.load_weights())
    assert trainer.task.validate().loss == pytest.approx(min(losses), rel=1e-6)


def test_the_mean_of_the_weights_is_what_is_validated_and_kept(data, tmp_path):
    optimizer = {"name": "ntasgd", "lr": 5.0, "start": "asgd"}
    trainer = make_trainer(data, tmp_path / "run", Silent(), optimizer, epochs=1)
    trainer.train()
    own = trainer.task.validate().loss
    with trainer.averaging.evaluation_weights():
        mean = trainer.task.validate().loss
    assert mean != own
    assert trainer.observer.validations[-1].loss == pytest.approx(mean, rel=1e-6)


def test_checkpoints_come_with_the_clock(data, tmp_path):
    seen = []
    observer = Silent(lambda progress: seen.append(len(list((tmp_path / "run/checkpoints").glob("*.json")))))
    make_trainer(data, tmp_path / "run", observer, epochs=1, checkpoint_minutes=1e-9).train()
    assert max(seen) == 2  # before the end of the only epoch


def test_the_state_is_carried_from_window_to_window(data, tmp_path):
    task = make_trainer(data, tmp_path / "run", Silent()).task
    task.model.eval()
    first, second = task.next_batch(), task.next_batch()
    task.loss(task.module, first)
    carried = task.loss(task.module, second).nats
    task.start_epoch()
    assert task.loss(task.module, second).nats != carried


@pytest.mark.parametrize("damage", ["all", "text"])
def test_what_cannot_be_resumed_is_refused_and_left_alone(data, tmp_path, damage):
    def stop(progress):
        if progress.step == 20:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        make_trainer(data, tmp_path / "run", Silent(stop)).train()
    before = (tmp_path / "run/model.safetensors").read_bytes()
    if damage == "all":
        for path in (tmp_path / "run/checkpoints").glob("*.safetensors"):
            path.write_bytes(path.read_bytes()[:-10])
        message = "no earlier checkpoint is intact"
    else:
        text = data / "train.txt"
        text.write_text("".join(reversed(text.read_text().splitlines(keepends=True))))
        message = r"the data of .* has changed since its last checkpoint \(train_sha256\)"
    with pytest.raises(G2Error, match=message):
        make_trainer(data, tmp_path / "run", Silent()).train(resume=True)
    assert (tmp_path / "run/model.safetensors").read_bytes() == before


def spoil(trainer, is_bad, *, where="gradient"):
    """Makes the gradient or the loss of some steps infinite, and notes the batches of these."""
    batches, original = [], trainer.task.loss

    def loss(module, batch):
        found = original(module, batch)
        if not is_bad(trainer.progress.step):
            return found
        batches.append(batch)
        factor = float("inf")
        if where == "gradient":  # the value as it was, the gradient not
            return found._replace(total=found.total.detach() + (found.total - found.total.detach()) * factor)
        return found._replace(total=found.total * factor, nats=factor)

    trainer.task.loss = loss
    return batches


@pytest.mark.parametrize("where", ["gradient", "loss"])
def test_an_update_that_is_not_finite_is_left_out_and_counted(data, tmp_path, where):
    seen = {}
    observer = Silent(lambda progress: seen.update({progress.step: weights(trainer)}))
    trainer = make_trainer(data, tmp_path / "run", observer, epochs=1)
    batches = spoil(trainer, lambda step: step in (4, 5, 9), where=where)
    progress = trainer.train()
    assert (progress.skipped, progress.skipped_in_a_row, progress.finished) == (3, 0, True)
    assert sorted(set(range(1, progress.step + 1)) - set(seen)) == [5, 6, 10]
    assert all(value.isfinite().all() for value in weights(trainer).values())
    assert progress.tokens < trainer.task.columns.predictions
    # The batch of the newest row is kept, and its first one.
    kept = load_checkpoint(tmp_path / "run/skipped-batch.json")
    assert kept["step"] == 10
    assert kept["loss" if where == "loss" else "gradient"] in ("inf", "nan")
    assert torch.equal(kept["batch"]["tokens"], batches[2].tokens)
    assert torch.equal(kept["batch"]["targets"], batches[2].targets)
    assert "embedding.weight" in kept["gradients_not_finite"]
    assert [m for m in observer.messages if "the update is skipped, its batch is in" in m and "step 5:" in m]
    assert trainer.run.metrics()[-1]["skipped"] == 3


def test_a_left_out_update_changes_no_weight(data, tmp_path):
    before = []
    trainer = make_trainer(data, tmp_path / "run", Silent(), clip=0.0, epochs=1)
    spoil(trainer, lambda step: before.append(weights(trainer)) or step == 0)
    trainer.observer.after = lambda progress: next(iter(()))
    with pytest.raises(StopIteration):
        trainer.train()
    assert all(torch.equal(value, before[1][name]) for name, value in before[0].items())


def test_too_many_left_out_in_a_row_end_training(data, tmp_path):
    trainer = make_trainer(data, tmp_path / "run", Silent())
    before = weights(trainer)
    batches = spoil(trainer, lambda step: True)
    with pytest.raises(
        G2Error,
        match=r"10 updates in a row .*skipped-batch.json\), and the gradient became (nan|inf) after step 10; "
        "the last good state is .*step-00000000.json",
    ):
        trainer.train()
    assert all(torch.equal(value, before[name]) for name, value in weights(trainer).items())
    kept = load_checkpoint(tmp_path / "run/skipped-batch.json")
    assert torch.equal(kept["batch"]["tokens"], batches[0].tokens)


def test_the_carried_state_stays_finite(data, tmp_path):
    task = make_trainer(data, tmp_path / "run", Silent()).task
    task.loss(task.module, task.next_batch())
    before = [h.clone() for h, _ in task.state]
    bias = task.model.softmax_bias.detach().clone()
    with torch.no_grad():
        task.model.softmax_bias.fill_(float("nan"))
    task.loss(task.module, task.next_batch())
    assert all(torch.equal(h, old) for (h, _), old in zip(task.state, before, strict=True))
    with torch.no_grad():
        task.model.softmax_bias.copy_(bias)
    task.loss(task.module, task.next_batch())
    assert not any(torch.equal(h, old) for (h, _), old in zip(task.state, before, strict=True))


def test_a_scaler_of_the_loss_is_lowered_and_the_update_counted(data, tmp_path):
    """As with float16 on a GPU, where accelerate makes such a scaler."""
    trainer = make_trainer(data, tmp_path / "run", Silent(), epochs=1)
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
    state, scale = trainer.state.take(), scaler.get_scale()
    scaler.update(8.0)
    assert trainer.state.put_back(state, seed=1, step=trainer.progress.step)
    assert scaler.get_scale() == scale != 8.0
    assert not torch.equal(weights(trainer)["embedding.weight"], before["embedding.weight"])
    assert all(value.isfinite().all() for value in weights(trainer).values())


def test_weights_that_are_not_finite_are_never_saved(data, tmp_path):
    def poison(progress):
        if progress.step == 3:
            with torch.no_grad():
                trainer.task.model.softmax_bias[0] = float("inf")

    trainer = make_trainer(data, tmp_path / "run", Silent(poison), checkpoint_minutes=1e-9)
    with pytest.raises(G2Error, match=r"model.softmax_bias is no longer finite after step 3; .*step-00000002.json"):
        trainer.train()
    assert sorted(path.stem[-1] for path in (tmp_path / "run/checkpoints").glob("*.json")) == ["1", "2"]
    for path in (tmp_path / "run/checkpoints").glob("*.json"):
        assert all(value.isfinite().all() for value in load_checkpoint(path)["model"].values())


def test_weights_that_are_not_finite_are_never_the_best(data, tmp_path):
    """Those of a word that the validation text lacks would not show there."""
    trainer = make_trainer(data, tmp_path / "run", Silent(), epochs=1)
    validation = trainer.task.validate()
    trainer.task.validate = lambda: validation
    with torch.no_grad():
        trainer.task.model.embedding.weight[0] = float("nan")
    with pytest.raises(G2Error, match=r"embedding.weight is no longer finite after step 0"):
        trainer.train()
    assert not trainer.run.model_file.exists()


def test_divergence_names_the_last_good_checkpoint(data, tmp_path):
    def poison(progress):
        if progress.step == 20:
            with torch.no_grad():
                trainer.task.model.softmax_bias.fill_(float("nan"))

    trainer = make_trainer(data, tmp_path / "run", Silent(poison))
    with pytest.raises(G2Error, match=r"loss became nan after step 30; the last good state is .*step-0000.*lower"):
        trainer.train()
    trainer = make_trainer(data, tmp_path / "run", Silent())
    trainer.train(resume=True)
    assert all(value.isfinite().all() for value in weights(trainer).values())


def test_finetuning_stops_by_the_trigger(data, tmp_path):
    settings = {"name": "ntasgd", "lr": 20.0, "window": 1, "start": "asgd"}
    observer = Silent()
    trainer = make_trainer(data, tmp_path / "run", observer, settings, epochs=60)
    progress = trainer.train()
    assert progress.epoch < 60
    assert any("finetuning ends" in message for message in observer.messages)


@pytest.mark.parametrize("optimizer", [ADAMW, {"name": "ntasgd", "lr": 5.0, "start": "asgd", "window": 9}])
def test_a_lost_model_is_made_anew_from_the_checkpoint(data, tmp_path, optimizer):
    first = make_trainer(data, tmp_path / "run", Silent(), optimizer)
    first.train()
    (tmp_path / "run/model.safetensors").unlink()
    second = make_trainer(data, tmp_path / "run", Silent(), optimizer)
    progress = second.train(resume=True)
    assert progress.finished
    assert "model.safetensors was missing" in second.observer.messages[-1]
    with first.averaging.evaluation_weights():
        expected = weights(first)
    found = second.run.load_weights()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    second.task.model.load_state_dict(found)
    assert progress.best == pytest.approx(second.task.validate().loss, rel=1e-6)


def test_weights_say_how_long_they_were_trained_and_scores_too(data, tmp_path):
    trainer = make_trainer(data, tmp_path / "run", Silent(), {"name": "adamw", "lr": 0.3}, epochs=6)
    trainer.train()
    losses = [validation.loss for validation in trainer.observer.validations]
    best = losses.index(min(losses))
    assert 0 < best < 6  # else the test says nothing
    steps = trainer.run.training_facts()["steps"]
    assert int(steps) == trainer.progress.step // 6 * best
    assert f"|steps:{steps}|" in trainer.run.signature()
    assert "epochs" not in trainer.run.training_facts()
    fitted = make_trainer(data, tmp_path / "minutes", Silent(), epochs=None, minutes=0.02)
    fitted.train()
    facts = fitted.run.training_facts()
    if int(facts["steps"]):  # the best may be the first
        assert float(facts["epochs"]) == fitted.progress.epochs
        assert f"|epochs:{facts['epochs']}|" in fitted.run.signature()


def test_a_full_disk_ends_training_and_it_can_be_taken_up(data, tmp_path, monkeypatch):
    whole = make_trainer(data, tmp_path / "whole", Silent())
    whole.train()
    first = make_trainer(data, tmp_path / "run", Silent())

    def full(handle):
        if first.progress.step > 20 and not os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(G2Error, match=r"disk is full.*Make room"):
            first.train()
    second = make_trainer(data, tmp_path / "run", Silent())
    second.train(resume=True)
    assert "continuing from step 16" in second.observer.messages
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(second).items())


@pytest.mark.parametrize("step", [0, 20])
def test_a_checkpoint_that_finds_no_room_names_the_one_before(data, tmp_path, monkeypatch, step):
    trainer = make_trainer(data, tmp_path / "run", Silent())

    def stop(progress):
        if progress.step == step:
            monkeypatch.setattr(os, "fsync", full)
            os.kill(os.getpid(), signal.SIGINT)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    trainer.observer.after = stop
    trainer.observer.on_validation = lambda progress, *_: stop(progress)
    told = "the last good state is .*step-00000016.json" if step else "there is no checkpoint yet"
    with pytest.raises(G2Error, match=rf"No space left.*; {told}; then continue with --resume"):
        trainer.train()


def interrupted(data, out, step=5, **train):
    def stop(progress):
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    trainer = make_trainer(data, out, Silent(stop), **train)
    with pytest.raises(Interrupted):
        trainer.train()
    return trainer


def test_a_validation_text_that_has_changed_is_noticed(data, tmp_path):
    interrupted(data, tmp_path / "run")
    with (data / "valid.txt").open("a") as file:
        file.write("w1 w2\n")
    with pytest.raises(G2Error, match=r"has changed since its last checkpoint \(valid_sha256\)"):
        make_trainer(data, tmp_path / "run", Silent()).train(resume=True)


def test_a_recipe_that_was_edited_is_noticed(data, tmp_path):
    interrupted(data, tmp_path / "run")
    file = tmp_path / "run" / "recipe.toml"
    file.write_text(file.read_text().replace("epochs = 3", "epochs = 2"))
    with pytest.raises(G2Error, match=r"recipe.toml has changed since its last checkpoint"):
        make_trainer(data, tmp_path / "run", Silent(), epochs=2).train(resume=True)


@pytest.mark.parametrize("size", [0, 3000])
def test_broken_weights_are_replaced_and_said_to_be(data, tmp_path, size):
    trainer = make_trainer(data, tmp_path / "run", Silent())
    trainer.train()
    file = tmp_path / "run" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    observer = Silent()
    progress = make_trainer(data, tmp_path / "run", observer).train(resume=True)
    assert RunDirectory(tmp_path / "run").load_weights().keys() == weights(trainer).keys()
    said = [message for message in observer.messages if "was missing or damaged" in message]
    assert len(said) == 1
    assert f"criterion is {progress.best}; the best was {trainer.progress.best}" in said[0]


def test_the_first_signal_is_answered(data, tmp_path):
    trainer = interrupted(data, tmp_path / "run")
    assert sum("stopping after saving the state" in message for message in trainer.observer.messages) == 1


def test_there_is_a_checkpoint_before_the_first_update(data, tmp_path):
    seen = []
    trainer = make_trainer(
        data, tmp_path / "run", Silent(lambda _: seen.append(list((tmp_path / "run" / "checkpoints").glob("*.json"))))
    )
    trainer.train()
    assert [file.name for file in seen[0]] == ["step-00000000.json"]


def test_resumed_from_the_first_checkpoint_it_is_validated_once(data, tmp_path):
    def die(progress):
        raise MemoryError

    with pytest.raises(MemoryError):
        make_trainer(data, tmp_path / "run", Silent(die)).train()
    resumed = make_trainer(data, tmp_path / "run", Silent())
    resumed.train(resume=True)
    steps = [line["step"] for line in resumed.run.metrics() if line["kind"] == "valid"]
    assert steps == sorted(set(steps))
    assert steps[0] == 0
    assert len(resumed.observer.validations) == 3
    whole = make_trainer(data, tmp_path / "whole", Silent())
    whole.train()
    assert resumed.progress.stale == whole.progress.stale


@pytest.mark.parametrize("when", [0, 2])
def test_an_edit_while_it_trains_neither_ends_training_nor_goes_unnoticed(data, tmp_path, when):
    file = tmp_path / "run" / "recipe.toml"

    def edit(progress):
        if progress.step == when:
            file.write_text(file.read_text().replace("epochs = 3", "epochs = "))  # no TOML any more
        if progress.step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    trainer = make_trainer(data, tmp_path / "run", Silent(edit))
    validate = trainer.task.validate
    trainer.task.validate = lambda: (edit(trainer.progress), validate())[1]  # the first comes before the first save
    with pytest.raises(Interrupted, match="state is saved"):
        trainer.train()
    file.write_text(file.read_text().replace("epochs = ", "epochs = 2"))
    with pytest.raises(G2Error, match=r"recipe.toml has changed since its last checkpoint"):
        make_trainer(data, tmp_path / "run", Silent(), epochs=2).train(resume=True)


def test_settings_that_a_later_version_adds_do_not_keep_a_run_from_going_on(data, tmp_path):
    run = make_trainer(data, tmp_path / "run", Silent()).run
    lines = run.recipe_file.read_text().splitlines()
    # As if it had been written before that setting was there, whose default then is in the recipe, but not in the file.
    run.recipe_file.write_text("\n".join(line for line in lines if not line.startswith(("#", "tied ="))) + "\n")
    interrupted(data, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    assert run.recipe.model.tied
    assert run.recipe_hash != recipe_hash(run.recipe)
    assert f"recipe:{run.recipe_hash}|" in run.signature()
    make_trainer(data, tmp_path / "run", Silent()).train(resume=True)


def test_settings_of_the_recipe_reach_what_they_are_for(data, tmp_path):
    odd = {"activation_regularisation": 2.5, "temporal_regularisation": 1.5, "bptt": 7, "clip": 0.125}
    trainer = make_trainer(data, tmp_path / "run", Silent(), {**NTASGD, "window": 3, "weight_decay": 3e-5}, **odd)
    assert (trainer.task.module.alpha, trainer.task.module.beta) == (2.5, 1.5)
    assert trainer.optimizer.param_groups[0]["weight_decay"] == 3e-5
    assert trainer.averaging.window == 3
    rates, norms = [], []
    trainer.observer.on_step = lambda progress, share, values: rates.append(values["learning_rate"])
    clip = trainer.accelerator.clip_grad_norm_
    trainer.accelerator.clip_grad_norm_ = lambda parameters, most: norms.append(most) or clip(parameters, most)
    lengths = []
    next_batch = trainer.task.next_batch

    def noting():
        batch = next_batch()
        if batch is not None:
            lengths.append(len(batch.tokens))
        return batch

    trainer.task.next_batch = noting
    trainer.train()
    assert rates == pytest.approx([30.0 * length / 7 for length in lengths])
    assert set(norms) == {0.125}


@pytest.mark.parametrize(
    ("batch_size", "evaluate", "told"),
    [
        (600, 2, "the training text has 600 tokens, and train.batch_size = 600 needs 601 at least"),
        (4, 120, "the validation text has 120 tokens, and evaluate.batch_size = 120 needs 121 at least"),
    ],
)
def test_a_text_shorter_than_the_batch(data, batch_size, evaluate, told):
    tokenizer = prepare_tokenizer(data / "train.txt", cache=data)
    train, valid = (prepare_stream(data / f"{split}.txt", tokenizer, cache=data) for split in ("train", "valid"))
    recipe = parse_recipe({
        "task": "lm", "data": {"path": str(data)}, "train": {"epochs": 1, "batch_size": batch_size},
        "model": {"embedding": 8, "hidden": 12}, "evaluate": {"batch_size": evaluate},
    })  # fmt: skip
    with pytest.raises(G2Error, match=told):
        LanguageModelLearner(recipe, LM.build(recipe, len(tokenizer)), train, valid)
