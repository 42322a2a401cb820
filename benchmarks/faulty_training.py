"""A training on embedded texts that tells how far it is and is hit by a fault; `faults.py` runs it in a process."""

import os
import resource
import signal
from functools import partial
from pathlib import Path
from typing import Any

SIZE = ["model.embedding=16", "model.hidden=16", "model.layers=1", "train.minutes=", "train.checkpoint_minutes=2e-3"]
RECIPES = {
    "lm": ("embedded", [*SIZE, "train.epochs=3", "train.batch_size=16", "evaluate.batch_size=8"]),
    "mt": ("embedded-mt", [*SIZE, "train.epochs=3", "train.batch_size=16", "train.best_by=loss"]),
}


class Watch:
    """Tells the parent how far training is, and brings a fault about at a step.

    Args:
        seen: [the step that training started from, the last step, files written].
        at_step: what to do after which step.
    """

    def __init__(self, seen: Any, at_step: tuple[int, Any] | None = None) -> None:
        self.seen, self.at_step = seen, at_step

    def on_step(self, progress: Any, share: float, values: dict[str, float]) -> None:
        """Notes the step."""
        self.seen[1] = progress.step
        if self.at_step is not None and progress.step == self.at_step[0]:
            self.at_step[1]()

    def on_validation(self, progress: Any, validation: Any, is_best: bool) -> None:
        """Nothing."""

    def on_message(self, message: str) -> None:
        """Notes where training goes on."""
        print(message, flush=True)
        if message.startswith("continuing from step "):
            self.seen[0] = self.seen[1] = int(message.split()[-1])


def train(task: str, root: Path, folder: Path, seen: Any, fault: dict[str, Any]) -> None:
    """Trains, or goes on with training, in this process; what it prints goes to a file."""
    log = os.open(root / f"{folder.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["G2LSTM_CACHE"] = str(folder / "cache")
    import torch

    import g2lstm

    torch.set_num_threads(1)
    die_while_writing(fault.get("writes"), fault.get("how"), seen)
    at_step = (fault["step"], partial(fill_disk, folder, fault["room"])) if "step" in fault else None
    name, overrides = RECIPES[task]
    data = f"data.path={root / 'data' / task}"
    try:
        g2lstm.train(name, folder / "run", [*overrides, data], resume=True, observer=Watch(seen, at_step))
    except g2lstm.G2Error as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(f"g2lstm: {error}", flush=True)
        os._exit(2)


def fill_disk(folder: Path, room: int) -> None:
    """Leaves so many bytes free where the folder is or, if that is no file system of its own, to every file."""
    if os.path.ismount(folder.parent):
        disk = os.statvfs(folder)
        (folder / "filler").write_bytes(bytes(max(disk.f_bavail * disk.f_frsize - room, 0)))
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))


def die_while_writing(count: int | None, how: str | None, seen: Any) -> None:
    """Kills this process at one of its writes: with the file half written, before it gets its name, or after.

    Args:
        count: which one; None to let it live.
        how: one of these.
        seen: whose last number counts the writes.
    """
    fsync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        if not Path(f"/proc/self/fd/{handle}").is_dir():
            seen[2] += 1
            if seen[2] == count and how == "half written":
                os.ftruncate(handle, os.fstat(handle).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
        fsync(handle)

    def replaced(source: Any, target: Any) -> None:
        if seen[2] == count and how == "before the rename":
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
        if seen[2] == count:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync, os.replace = synced, replaced
