"""The training loop: resumed training is uninterrupted training, to the bit; signals, budgets, divergence."""

import os
import signal

import pytest
import torch
from accelerate import Accelerator

from g2lstm import G2Error
from g2lstm.config import parse_recipe
from g2lstm.data.corpus import prepare_stream, prepare_tokenizer
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.models import build_language_model
from g2lstm.train.budget import fitted_epochs
from g2lstm.train.checkpoint import load_checkpoint
from g2lstm.train.lm import LanguageModelTask
from g2lstm.train.loop import Interrupted, Trainer
from tests.train.observers import Silent

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
    model = build_language_model(recipe, len(tokenizer))
    task = LanguageModelTask(recipe, model, streams["train"], streams["valid"])
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
    if whole.averaging is not None:
        assert whole.averaging.is_averaging  # else the test would not reach the averages
        for a, b in zip(second.averaging.average.means, whole.averaging.average.means, strict=True):
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
        message = "no other is whole"
    else:
        text = data / "train.txt"
        text.write_text("".join(reversed(text.read_text().splitlines(keepends=True))))
        message = r"training data of .* have changed since its last checkpoint \(train_sha256\)"
    with pytest.raises(G2Error, match=message):
        make_trainer(data, tmp_path / "run", Silent()).train(resume=True)
    assert (tmp_path / "run/model.safetensors").read_bytes() == before


def test_a_gradient_that_is_not_finite_changes_nothing(data, tmp_path):
    trainer = make_trainer(data, tmp_path / "run", Silent(), clip=0.0)
    trainer.task.model.softmax_bias.register_hook(lambda grad: grad / 0)
    before = weights(trainer)
    with pytest.raises(G2Error, match=r"the gradient became (nan|inf) after step 0; there is no checkpoint yet"):
        trainer.train()
    assert all(torch.equal(value, before[name]) for name, value in weights(trainer).items())


def test_weights_that_are_not_finite_are_never_saved(data, tmp_path):
    trainer = make_trainer(data, tmp_path / "run", Silent(), {"name": "adamw", "lr": 1e38}, checkpoint_minutes=1e-9)
    with pytest.raises(G2Error, match="a weight is no longer finite|became"):
        trainer.train()
    for path in (tmp_path / "run/checkpoints").glob("*.json"):
        assert all(value.isfinite().all() for value in load_checkpoint(path)["model"].values())


def test_divergence_names_the_last_good_checkpoint(data, tmp_path):
    def poison(progress):
        if progress.step == 30:
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
    assert any("finetune phase ends" in message for message in observer.messages)
