"""What two processes do in the tests of several: run as a module in each of them, with a folder that both share."""

import atexit
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from g2lstm.tasks.lm.training import LanguageModelLearner
from g2lstm.tasks.recipes import parse_recipe
from g2lstm.training import environment, loop
from g2lstm.training.observe import Silent
from g2lstm.training.start import train_recipe as train

QUIET = {"method": "sigmoid", "weight_dropout": 0.0}
DROPOUT = {"input": 0.0, "between": 0.0, "output": 0.0}


def write_text(folder):
    """Random text, and random pairs of it, for both tasks."""
    import torch

    generator = torch.Generator().manual_seed(0)
    folder.mkdir()
    for split, lines in (("train", 61), ("valid", 9), ("test", 9)):
        words = torch.randint(20, (lines, 9), generator=generator).tolist()
        lengths = torch.randint(2, 9, (lines,), generator=generator).tolist()
        for ending, mark in (("txt", "w"), ("de", "d"), ("en", "e")):
            cut = [line if ending == "txt" else line[:length] for line, length in zip(words, lengths, strict=True)]
            text = "\n".join(" ".join(f"{mark}{word}" for word in line) for line in cut)
            (folder / f"{split}.{ending}").write_text(text + "\n")


def lm_recipe(data, *, quiet=True, **options):
    model = {"embedding": 8, "hidden": 12, "layers": 2}
    if quiet:
        model |= QUIET | {"dropout": {**DROPOUT, "words": 0.0}}
    options = {"epochs": 3, "batch_size": 4, "bptt": 8, "optimizer": {"name": "adamw", "lr": 0.01}, **options}
    tables = {"task": "lm", "data": {"path": str(data)}, "model": model, "evaluate": {"batch_size": 2}}
    return parse_recipe({**tables, "train": options})


def mt_recipe(data, *, quiet=True, **options):
    model = {"embedding": 8, "hidden": 12, "layers": 2}
    if quiet:
        model |= QUIET | {"dropout": DROPOUT}
    size = {} if "batch_tokens" in options else {"batch_size": 8}
    options = {"epochs": 2, "optimizer": {"name": "adamw", "lr": 0.01}, **size, **options}
    source = {"path": str(data), "source": "de", "target": "en", "tokenizer": "word"}
    return parse_recipe({"task": "mt", "data": source, "model": model, "train": options})


class Curve(Silent):
    """Notes the losses and messages of the first process, and acts after some steps."""

    def __init__(self, after=lambda step: None):
        self.losses, self.tokens, self.validations, self.messages, self.after = [], [], [], [], after

    def on_step(self, progress, share, values):
        self.losses.append(values["loss"])
        self.tokens.append(progress.tokens)
        self.after(progress.step)

    def on_validation(self, progress, validation, is_best):
        self.validations.append(validation.loss)

    def on_message(self, message):
        self.messages.append(message)

    def write(self, path, **more):
        names = ("losses", "tokens", "validations", "messages")
        Path(path).write_text(json.dumps({**{name: getattr(self, name) for name in names}, **more}))


def stop_at(step):
    """Interrupts this process after a step, once: in all processes but the first, several observers are silent."""
    reached = []

    def stop(now):
        if now == step and not reached:
            reached.append(now)
            os.kill(os.getpid(), signal.SIGINT)

    return stop


def interrupted(recipe, out, step, **options):
    """Trains until a step; of several processes it is the last one that is asked to stop."""
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    before = Silent.on_step
    if size > 1 and rank == size - 1:  # the observer of all but the first
        stop = stop_at(step)
        Silent.on_step = lambda self, progress, share, values: stop(progress.step)
    try:
        train(recipe, out, Curve(stop_at(step) if size == 1 else lambda step: None), **options)
    except environment.Interrupted:
        return
    finally:
        Silent.on_step = before
    raise AssertionError("it was not interrupted")


class FastClock:
    monotonic = staticmethod(lambda: 3 * time.monotonic())


def threads():
    """The names of this process's threads, which Linux knows, Python's and all others."""
    names = []
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):  # one that has just ended
            names.append((task / "comm").read_text().strip())
    return names


def threads_that_stay():
    """The same, after a second at most in which those that were joined may vanish."""
    end = time.monotonic() + 1
    while any("gloo" in name for name in threads()) and time.monotonic() < end:
        time.sleep(0.05)
    return threads()


def main(folder):
    rank = int(os.environ["RANK"])
    data = folder / "data"
    at_end = folder / f"threads-at-end-{rank}.json"
    atexit.register(lambda: at_end.write_text(json.dumps(threads_that_stay())))  # after what training registers
    for name, recipe in (
        ("lm", lm_recipe(data)),
        ("mt", mt_recipe(data)),
        ("mt-tokens", mt_recipe(data, batch_tokens=120)),
        ("noisy", lm_recipe(data, quiet=False)),
        ("noisy-mt", mt_recipe(data, quiet=False)),
    ):
        curve = Curve()
        train(recipe, folder / name, curve)
        if rank == 0:
            curve.write(folder / f"{name}.json")

    for name, recipe, step in (
        ("noisy", lm_recipe(data, quiet=False), 20),
        ("noisy-mt", mt_recipe(data, quiet=False), 11),
    ):
        interrupted(recipe, folder / f"{name}-cut", step)
        train(recipe, folder / f"{name}-cut", Silent(), resume=True)

    interrupted(lm_recipe(data), folder / "two-to-one", 20)
    interrupted(mt_recipe(data, batch_tokens=120), folder / "two-to-one-mt", 7)
    for name, recipe in (("one-to-two", lm_recipe(data)), ("one-to-two-mt", mt_recipe(data))):
        curve = Curve()
        train(recipe, folder / name, curve, resume=True)
        if rank == 0:
            curve.write(folder / f"{name}.json")

    original = LanguageModelLearner.loss
    if rank == 1:  # the loss of this process alone is not finite

        def loss(task, module, batch):
            found = original(task, module, batch)
            return found._replace(total=found.total * float("nan"), nats=float("nan")) if task.position < 9 else found

        LanguageModelLearner.loss = loss
    progress = train(lm_recipe(data, epochs=1), folder / "skipped", Silent())
    LanguageModelLearner.loss = original
    (folder / f"skipped-{rank}.json").write_text(json.dumps([progress.step, progress.skipped]))

    if rank == 1:
        loop.time = FastClock
    progress = train(lm_recipe(data, epochs=None, minutes=0.02, checkpoint_minutes=0.001), folder / "minutes", Silent())
    (folder / f"minutes-{rank}.json").write_text(json.dumps([progress.step, progress.epochs, progress.finished]))
    (folder / f"threads-{rank}.json").write_text(json.dumps(threads()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
