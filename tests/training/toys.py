"""Tiny texts, recipes and training runs: an epoch takes ten updates, a few milliseconds each."""

import os
import signal

import pytest
import torch
from accelerate import Accelerator

from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.recipes import parse_recipe
from g2lstm.training.environment import Interrupted
from g2lstm.training.loop import Trainer
from g2lstm.training.progress import Observer
from g2lstm.training.start import prepare

ADAMW = {"name": "adamw", "lr": 0.01}
NTASGD = {"name": "ntasgd", "lr": 30.0, "window": 1}
ASGD = {"name": "ntasgd", "lr": 5.0, "start": "asgd", "window": 9}
ADADELTA = {"name": "adadelta"}
QUIET = {"method": "sigmoid", "weight_dropout": 0.0}
DROPOUT = {"input": 0.0, "between": 0.0, "output": 0.0}


def write_text(folder, lines=31):
    """Random text, and random pairs of sentences, for both tasks."""
    generator = torch.Generator().manual_seed(0)
    folder.mkdir(parents=True)
    for split, count in (("train", lines), ("valid", 9), ("test", 9)):
        words = (20 * torch.rand(count, 9, generator=generator) ** 2).long().tolist()  # some occur more often: to learn
        lengths = torch.randint(2, 9, (count,), generator=generator).tolist()
        for ending, mark in (("txt", "w"), ("de", "d"), ("en", "e")):
            cut = [line if ending == "txt" else line[:length] for line, length in zip(words, lengths, strict=True)]
            text = "\n".join(" ".join(f"{mark}{word}" for word in line) for line in cut)
            (folder / f"{split}.{ending}").write_text(text + "\n")
    return folder


def lm_recipe(data, *, quiet=False, evaluate=2, **train):
    """A language model of two layers; quiet, it draws no random numbers while it trains."""
    dropout = {"words": 0.1, "input": 0.4, "between": 0.25, "output": 0.4}
    model = {"embedding": 8, "hidden": 12, "layers": 2, "weight_dropout": 0.5, "dropout": dropout}
    if quiet:
        model |= QUIET | {"dropout": {**DROPOUT, "words": 0.0}}
    regularised = {"activation_regularisation": 2.0, "temporal_regularisation": 1.0}
    train = {"optimizer": ADAMW, **regularised, **train}
    train = {"epochs": 3, "batch_size": 4, "bptt": 8, "clip": 0.25, "frequency_bias": False, **train}
    words = {"path": str(data), "tokenizer": "word", "min_frequency": 1}
    tables = {"task": "lm", "data": words, "model": model, "evaluate": {"batch_size": evaluate}}
    return parse_recipe({**tables, "train": train})


def mt_recipe(data, *, quiet=False, **train):
    """A translation model of two layers on each side."""
    model = {"embedding": 8, "hidden": 12, "layers": 2}
    if quiet:
        model |= QUIET | {"dropout": DROPOUT}
    size = {} if "batch_tokens" in train else {"batch_size": 4}
    train = {"epochs": 2, "optimizer": ADAMW, **size, **train}
    source = {"path": str(data), "source": "de", "target": "en", "tokenizer": "word"}
    return parse_recipe({"task": "mt", "data": source, "model": model, "train": train})


class Recorder(Observer):
    """Keeps what it hears, and does something after each step."""

    def __init__(self, after=lambda progress: None):
        self.after = after
        self.messages, self.validations, self.shares, self.losses, self.tokens = [], [], [], [], []
        self.epochs = []

    def on_step(self, progress, share, values):
        self.shares.append(share)
        self.losses.append(values["loss"])
        self.tokens.append(progress.tokens)
        self.after(progress)

    def on_validation(self, progress, validation, is_best):
        self.validations.append(validation)
        self.epochs.append(progress.epochs)

    def on_message(self, message):
        self.messages.append(message)


def make_trainer(recipe, out, after=lambda progress: None, turn=None):
    """A trainer into a new or an existing run directory; its observer is a `Recorder`."""
    accelerator = Accelerator(cpu=True)
    learner, tokenizers = prepare(recipe, accelerator)
    run = RunDirectory(out)
    if not run.recipe_file.exists():
        run = RunDirectory.create(out, recipe, tokenizers)
    return Trainer(learner, recipe.train, run, accelerator, Recorder(after), turn)


def resumed(recipe, out):
    """A trainer that has continued the run to its end."""
    torch.manual_seed(999)  # as a new process would have
    trainer = make_trainer(recipe, out)
    trainer.train(resume=True)
    return trainer


def stop_at(step):
    """For a `Recorder`: interrupts this process after a step."""
    return lambda progress: os.kill(os.getpid(), signal.SIGINT) if progress.step == step else None


def interrupted(recipe, out, step):
    """A trainer that was interrupted after a step."""
    trainer = make_trainer(recipe, out, stop_at(step))
    with pytest.raises(Interrupted, match=r"interrupted; its state is saved in .*step-0"):
        trainer.train()
    assert trainer.progress.step == step
    return trainer


def weights(trainer):
    """A copy of the weights."""
    return {name: value.clone() for name, value in trainer.learner.model.state_dict().items()}


def assert_same(found, expected):
    """Raises unless two sets of weights are equal to the bit."""
    assert found.keys() == expected.keys()
    assert [name for name, value in expected.items() if not torch.equal(found[name], value)] == []
