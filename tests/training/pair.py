"""What two processes do in the tests of several: run as a module in each of them, with a folder that both share."""

import atexit
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from g2lstm.tasks.lm.task import LanguageModelLearner
from g2lstm.training import loop
from g2lstm.training.environment import Interrupted
from g2lstm.training.progress import Silent
from g2lstm.training.start import train_recipe
from tests.training.toys import Recorder, lm_recipe, mt_recipe, stop_at

QUIET = {
    "lm": lambda data: lm_recipe(data, quiet=True),
    "mt": lambda data: mt_recipe(data, quiet=True),
    "mt-tokens": lambda data: mt_recipe(data, quiet=True, batch_tokens=60),
}
NOISY = {"noisy": lm_recipe, "noisy-mt": mt_recipe}
CUT_AT = 11


def write(path, recorder):
    names = ("losses", "tokens", "messages")
    losses = [validation.loss for validation in recorder.validations]
    path.write_text(json.dumps({**{name: getattr(recorder, name) for name in names}, "validations": losses}))


def interrupt(recipe, out, step=CUT_AT):
    """Trains until a step; of several processes it is the last one that is interrupted."""
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    before, stop, reached = Silent.on_step, stop_at(step), []
    if size > 1 and rank == size - 1:  # all observers of all processes but the first are silent

        def on_step(self, progress, share, values):
            if progress.step == step and not reached:
                reached.append(step)
                stop(progress)

        Silent.on_step = on_step
    try:
        train_recipe(recipe, out, Recorder(stop if size == 1 else lambda progress: None))
    except Interrupted:
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
    """The same, after a minute at most in which those that were joined may vanish."""
    end = time.monotonic() + 60
    while any("gloo" in name for name in threads()) and time.monotonic() < end:
        time.sleep(0.05)
    return threads()


def main(folder):
    rank = int(os.environ["RANK"])
    data = folder / "data"
    at_end = folder / f"threads-at-end-{rank}.json"
    atexit.register(lambda: at_end.write_text(json.dumps(threads_that_stay())))  # after what training registers
    for name, make in (QUIET | NOISY).items():
        curve = Recorder()
        train_recipe(make(data), folder / name, curve)
        if rank == 0:
            write(folder / f"{name}.json", curve)

    for name, make in NOISY.items():
        interrupt(make(data), folder / f"{name}-cut")
        train_recipe(make(data), folder / f"{name}-cut", resume=True)

    interrupt(QUIET["lm"](data), folder / "two-to-one")
    interrupt(QUIET["mt-tokens"](data), folder / "two-to-one-mt", 7)
    for name, task in (("one-to-two", "lm"), ("one-to-two-mt", "mt")):
        curve = Recorder()
        train_recipe(QUIET[task](data), folder / name, curve, resume=True)
        if rank == 0:
            write(folder / f"{name}.json", curve)

    original = LanguageModelLearner.loss
    if rank == 1:  # the loss of this process alone is not finite

        def loss(task, module, batch):
            found = original(task, module, batch)
            return found._replace(total=found.total * float("nan"), nats=float("nan")) if task.position < 9 else found

        LanguageModelLearner.loss = loss
    progress = train_recipe(lm_recipe(data, epochs=1), folder / "skipped")
    LanguageModelLearner.loss = original
    (folder / f"skipped-{rank}.json").write_text(json.dumps([progress.step, progress.skipped]))

    if rank == 1:
        loop.time = FastClock
    by_the_clock = lm_recipe(data, epochs=None, minutes=0.06, checkpoint_minutes=0.001)
    progress = train_recipe(by_the_clock, folder / "minutes")
    (folder / f"minutes-{rank}.json").write_text(json.dumps([progress.step, progress.epochs, progress.finished]))
    (folder / f"threads-{rank}.json").write_text(json.dumps(threads()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
