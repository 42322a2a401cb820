"""Injects faults into training and checks that nothing is lost: `python benchmarks/faults.py`.

Small language models and translation models are trained on the embedded texts, in processes of their own, and are hit
by faults: SIGKILL at random moments, SIGKILL in the midst of writing, a full disk, and damage to the newest checkpoint.
After each fault the training is resumed. It is survived if the resumed training ends with exactly the weights of one
that nothing happened to. What may be lost is the work since the last checkpoint; the table says how much that was.
Where `unshare` may mount a small file system, that one is filled; else files may not grow beyond a size.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from faulty_training import RECIPES, train

KINDS = (
    "killed at a random moment",
    "killed while writing a file",
    "disk full",
    "newest checkpoint: a bit flipped",
    "newest checkpoint: truncated",
)
TASKS = ("lm", "mt")
# Imported once, by the process that the others are forked from, so that these spend their time on training.
PRELOADED = ["g2lstm.training.start", "g2lstm.tasks.lm.task", "g2lstm.tasks.mt.task", "torch.utils.tensorboard"]
PRELOADED += ["torch._dynamo", "torch.profiler", "numpy.ctypeslib", "sacrebleu"]
UNSHARED = ["unshare", "--map-root-user", "--mount", "--propagation", "private"]
MAY_MOUNT = "G2LSTM_FAULTS_MAY_MOUNT"
LINES = {"lm": {"train": 400, "valid": 40, "test": 40}, "mt": {"train": 500, "valid": 10, "test": 10}}


@dataclass
class Row:
    """The faults of one kind in one task."""

    task: str
    fault: str
    tried: int = 0
    survived: int = 0
    resumed: int = 0  # from a checkpoint; the others had none yet, or had finished
    passed_over: int = 0  # checkpoints that were there and could not be used
    updates_again: int = 0  # that were done a second time, in the worst case
    bytes_lost: int = 0  # of the last and the best weights, where they are not those of a training without faults
    problems: list[str] = field(default_factory=list)


class Harness:
    """Runs trainings and faults in a folder.

    Args:
        folder: for all files.
        seed: of the faults.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.small = folder / "small"
        self.small.mkdir()
        if MAY_MOUNT in os.environ:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", self.small], check=True)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)
        for task in TASKS:
            write_data(task, folder / "data" / task)
        self.references = {task: self._reference(task) for task in TASKS}

    def _reference(self, task: str) -> dict[str, Any]:
        folder = self.folder / f"reference-{task}"
        self._run(task, folder)  # the first one also starts the server that the others are forked from
        shutil.rmtree(folder)
        start = time.monotonic()
        code, (_, steps, writes) = self._run(task, folder)
        weights = final_weights(folder / "run")
        if code != 0 or not weights:
            raise SystemExit(f"training without faults failed; see {folder}.log")
        newest = max((folder / "run/checkpoints").glob("*.safetensors"))
        seconds, size = time.monotonic() - start, newest.stat().st_size
        return {"seconds": seconds, "steps": steps, "writes": writes, "bytes": size, "weights": weights}

    def _run(
        self, task: str, folder: Path, fault: dict[str, Any] | None = None, *, kill_after: float | None = None
    ) -> tuple[int | None, list[int]]:
        """Trains in a process until it ends or is killed: its exit code, and what its `Watch` has seen."""
        folder.mkdir(parents=True, exist_ok=True)
        seen = self.context.Array("q", [0, 0, 0], lock=False)
        process = self.context.Process(target=train, args=(task, self.folder, folder, seen, fault or {}))
        process.start()
        process.join(kill_after)
        if process.is_alive():
            process.kill()
            process.join()
        return process.exitcode, list(seen)

    def try_fault(self, number: int, row: Row) -> None:
        """Brings one fault about, resumes, and compares."""
        folder = (self.small if row.fault == KINDS[2] else self.folder) / f"fault-{number}"
        reference = self.references[row.task]
        reached = self._hit(row, folder, reference)
        row.tried += 1
        checkpoints = [int(path.stem[5:]) for path in folder.glob("run/checkpoints/step-*.json")]
        code, seen = self._run(row.task, folder)
        found, expected = final_weights(folder / "run") if code == 0 else {}, reference["weights"]
        lost = sum(same.nbytes for name, same in expected.items() if name not in found or not same.equal(found[name]))
        row.bytes_lost += lost
        if not lost:
            row.survived += 1
            row.resumed += 0 < seen[0] < reference["steps"]
            row.passed_over += seen[0] < max(checkpoints, default=0)
            row.updates_again = max(row.updates_again, reached - seen[0])
            shutil.rmtree(folder)
        else:
            what = f"exit code {code}" if code else "other weights"
            row.problems.append(f"{row.task}, {row.fault}: {what} after a fault at step {reached}; see {folder}")

    def _hit(self, row: Row, folder: Path, reference: dict[str, Any]) -> int:
        """Brings the fault about; the step that training had got to."""
        steps = reference["steps"]
        if row.fault == KINDS[0]:
            moment = self.random.uniform(0, reference["seconds"])
            code, seen = self._run(row.task, folder, kill_after=moment)
        elif row.fault == KINDS[1]:
            how = self.random.choice(["half written", "before the rename", "after the rename"])
            # The first writes are texts and tokens, the tokenizers, the recipe; each checkpoint is two more.
            write = self.random.randint(1, reference["writes"])
            code, seen = self._run(row.task, folder, {"writes": write, "how": how})
        elif row.fault == KINDS[2]:
            room = self.random.randrange(reference["bytes"])
            code, seen = self._run(row.task, folder, {"step": self.random.randint(1, steps - 1), "room": room})
            (folder / "filler").unlink(missing_ok=True)
        else:
            code, seen = self._run_to_two_checkpoints(row.task, folder, reference)
            self._damage(folder / "run/checkpoints", is_flip=row.fault == KINDS[3])
        if row.fault == KINDS[2] and code not in (0, 2):  # it must end with a message
            row.problems.append(f"{row.task}, {row.fault}: exit code {code}; see {folder}")
        return seen[1]

    def _run_to_two_checkpoints(self, task: str, folder: Path, reference: dict[str, Any]) -> tuple[int | None, Any]:
        for attempt in range(1, 100):  # each goes on from where the one before was killed
            outcome = self._run(task, folder, kill_after=reference["seconds"] * self.random.uniform(0.3, 1) * attempt)
            if len(list((folder / "run/checkpoints").glob("step-*.json"))) >= 2:
                return outcome
        raise SystemExit(f"{folder} never got two checkpoints")

    def _damage(self, checkpoints: Path, *, is_flip: bool) -> None:
        newest = max(checkpoints.glob("step-*.json"))
        path = self.random.choice([newest, newest.with_suffix(".safetensors")])
        content = bytearray(path.read_bytes())
        if is_flip:
            content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
        else:
            del content[self.random.randrange(len(content)) :]
        path.write_bytes(content)


def write_data(task: str, folder: Path) -> None:
    """The first lines of an embedded data set."""
    from g2lstm.text.datasets import fetch

    whole = fetch(RECIPES[task][0])
    folder.mkdir(parents=True)
    for path in whole.iterdir():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / path.name).write_text("".join(lines[: LINES[task][path.stem]]), encoding="utf-8")


def final_weights(run: Path) -> dict[str, Any]:
    """The last weights and the best ones."""
    from safetensors.torch import load_file

    from g2lstm.training.checkpoint import latest_checkpoint

    state, problems = latest_checkpoint(run / "checkpoints")
    if state is None or problems or not state["progress"]["finished"]:
        return {}
    best = {f"best.{name}": value for name, value in load_file(run / "model.safetensors").items()}
    return {**state["model"], **best}


def report(rows: list[Row], *, as_json: bool) -> None:
    """Prints the table, in Markdown, and what went wrong."""
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    names = ("task", "fault", "tried", "survived", "resumed", "checkpoints skipped")
    names += ("most updates repeated", "bytes lost")
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for row in rows:
        print(f"| {' | '.join(str(value) for name, value in asdict(row).items() if name != 'problems')} |")
    tried, survived = sum(row.tried for row in rows), sum(row.survived for row in rows)
    print(f"\n{tried} faults, {survived} survived.")
    for problem in (problem for row in rows for problem in row.problems):
        print(problem)


def start_where_mounts_are_allowed() -> None:
    """Runs this script anew where it may mount a file system that nobody else sees, if the system lets it."""
    if MAY_MOUNT in os.environ or shutil.which(UNSHARED[0]) is None:
        return
    trial = subprocess.run([*UNSHARED, "mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True, check=False)
    if trial.returncode == 0:
        os.execvpe(UNSHARED[0], [*UNSHARED, sys.executable, *sys.argv], {**os.environ, MAY_MOUNT: "1"})


def main() -> None:
    """Tries the faults, prints the table, and exits with 1 if one was not survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=250, help="how many, of all kinds and both tasks in turn")
    parser.add_argument("--only", default="", metavar="WORD", help="only the kinds with this word, such as killed")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    start_where_mounts_are_allowed()
    kinds = [kind for kind in KINDS if options.only in kind]
    rows = {(task, kind): Row(task, kind) for kind in kinds for task in TASKS}
    turns = [(TASKS[(k + turn) % 2], kind) for turn in range(2) for k, kind in enumerate(kinds)]
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    os.environ["G2LSTM_CACHE"] = str(folder / "cache")
    harness = Harness(folder, options.seed)
    start = time.monotonic()
    for number in range(options.faults):
        row = rows[turns[number % len(turns)]]
        harness.try_fault(number, row)
        left = (time.monotonic() - start) / (number + 1) * (options.faults - number - 1)
        print(f"{number + 1}/{options.faults}: {row.task}, {row.fault}; {left:.0f} s left", file=sys.stderr)
    report([row for row in rows.values() if row.tried], as_json=options.json)
    if any(row.problems for row in rows.values()):
        sys.exit(1)
    if os.path.ismount(harness.small):
        subprocess.run(["umount", harness.small], check=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
