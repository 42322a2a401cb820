"""What a study knows of a run, all of it in the run's directory: whether it is trained, and what was measured of it."""

import functools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from g2lstm.errors import G2Error
from g2lstm.files import read_json, write_atomically
from g2lstm.lab.study.plan import Measurement, Plan
from g2lstm.lab.study.significance import Array
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.recipes import Recipe
from g2lstm.text.lines import sha256_of

FOLDER = "measured"  # inside a run directory: a file for each measurement, one on the training, one on its start
_TRAINING, _START = "training.json", "start.json"
STRANGE = (KeyError, TypeError, ValueError, OverflowError)  # what comes of a file that says something else
_LONGEST = 2**28  # bytes of such a file
_BUDGET = ("epochs", "minutes")
_MAY_DIFFER = ("minutes", "checkpoint_minutes")  # of another machine
_AS_LONG = 0.1  # by so much of its epochs may a run be longer or shorter that a clock ended


@dataclass(frozen=True)
class Training:
    """How a run was trained.

    Attributes:
        epochs: of its data.
        seconds: of the clock.
        step: the last one.
    """

    epochs: float
    seconds: float
    step: int


def training_of(path: Path) -> Training | None:
    """How a run was trained; None if it has not been, or not to its end."""
    saved = path / FOLDER / _TRAINING
    if saved.is_file():
        values = read(saved)
        try:
            return Training(float(values["epochs"]), float(values["seconds"]), int(values["step"]))
        except STRANGE:
            raise damaged(saved) from None
    for file in sorted((path / "checkpoints").glob("step-*.json"), reverse=True):
        try:
            progress = json.loads(file.read_text(encoding="utf-8"))["state"]["progress"]
            if not progress["finished"]:
                return None
            # A budget in minutes that was not used up was never turned into a number of epochs.
            epochs = progress["epoch"] if progress["epochs"] is None else progress["epochs"]
            training = Training(float(epochs), float(progress["seconds"]), int(progress["step"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # resuming tells what is wrong with it
        return training if (path / "model.safetensors").is_file() else None
    return None


def keep_training(path: Path) -> Training | None:
    """Writes how a run was trained, which then can be told without its checkpoints; None as of `training_of`."""
    training = training_of(path)
    if training is not None and not (path / FOLDER / _TRAINING).is_file():
        write(path, _TRAINING, vars(training))
    return training


def keep_start(path: Path, weights: str) -> None:
    """Writes which weights, as of `weights_of`, the training of the run in `path` began with."""
    write(path, _START, {"weights": weights})


def weights_of(path: Path) -> str | None:
    """What tells a run's weights from others, sixteen hexadecimal digits; None if it has none."""
    file = path / "model.safetensors"
    try:
        status = file.stat()
    except OSError:
        return None
    return _hash(file, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=1000)
def _hash(file: Path, modified: int, size: int) -> str:
    return sha256_of(file)[:16]


def check_start(path: Path, start: Path) -> None:
    """Raises if the run in `path` was started from other weights than those that are in `start` now."""
    kept = path / FOLDER / _START
    if kept.is_file() and weights_of(start) not in (None, read(kept).get("weights")):
        raise G2Error(
            f"{path} was trained from another {start.name} than the one in {start.parent}; move it away, or choose "
            "another folder with --out"
        )


def check_text(path: Path, recipe: Recipe, measurements: Sequence[Measurement]) -> None:
    """Raises if a text of the user's has changed since the run was scored, or its cache tuned, on it.

    One that is gone is not missed.
    """
    data = recipe.data
    if data.path is None:
        return
    for one in measurements:
        files = [Path(data.path) / f"{one.split}.{ending}" for ending in data.endings]
        valid = Path(data.path) / "valid.txt"
        result = measured(path, one)
        if result is None:
            continue
        if all(file.is_file() for file in files):
            data_now = "+".join(sha256_of(file)[:8] for file in files)
            if scored_data(result) != f"own/{data_now}":
                raise _of_another_text(path, "scored", " or ".join(file.name for file in files), data.path)
        if "tuned_on_text" in result and valid.is_file() and sha256_of(valid) != result["tuned_on_text"]:
            raise _of_another_text(path, "given a cache that was tuned", valid.name, data.path)


def scored_data(result: Mapping[str, Any]) -> str:
    """The data that a score is of; only in the signature of those that earlier versions have made."""
    if "data" in result:
        return str(result["data"])
    parts = str(result["signature"]).split("|")
    return next((part.removeprefix("data:") for part in parts if part.startswith("data:")), "")


def _of_another_text(path: Path, what: str, names: str, folder: str) -> G2Error:
    return G2Error(
        f"{path} was {what} on another text than {names} in {folder} is now; move it away, or choose another folder "
        "with --out"
    )


def check_recipe(path: Path, planned: Recipe) -> list[str]:
    """Raises unless the run in `path` is one of this recipe; what differs without mattering, as notes.

    Args:
        path: an existing run.
        planned: what the study would train.
    """
    found = RunDirectory.open(path).recipe
    if found == planned:
        return []
    fitted = found.train.minutes is not None or planned.train.minutes is not None
    both_start = None not in (found.train.finetune_from, planned.train.finetune_from)
    names = (*_MAY_DIFFER, *(["epochs"] if fitted else []), *(["finetune_from"] if both_start else []))
    same = dict.fromkeys(names)
    before, now = (one.model_copy(update={"train": one.train.model_copy(update=same)}) for one in (found, planned))
    if before != now:
        raise G2Error(
            f"{path} holds a run of another recipe than this study's ({_difference(before, now)}); move it away, or "
            "choose another folder with --out"
        )
    if fitted and planned.train.minutes is None:
        training = training_of(path)
        if training is None:
            raise G2Error(
                f"{path} holds an unfinished run of which a clock decides how long it is, by its train.minutes, and "
                "this study counts epochs; move it away, or choose another folder with --out"
            )
        if abs(training.epochs / (planned.train.epochs or 1) - 1) > _AS_LONG:
            raise G2Error(
                f"{path} holds a run of {training.epochs:.1f} epochs, by its train.minutes, and this study has "
                f"{planned.train.epochs:g}; move it away, or choose another folder with --out"
            )
    changed = [name for name in _BUDGET if getattr(found.train, name) != getattr(planned.train, name)]
    if changed:
        return [f"{path.name} was trained with {_budget(found, changed)}; the study has {_budget(planned, changed)}"]
    return []


def _budget(recipe: Recipe, names: Sequence[str]) -> str:
    values = {f"train.{name}": getattr(recipe.train, name) for name in names}
    return " and ".join(f"no {name}" if value is None else f"{name}={value:g}" for name, value in values.items())


def measured(path: Path, measurement: Measurement) -> dict[str, Any] | None:
    """What was measured, or None if it has not been, or of other weights than the run has now."""
    file = path / FOLDER / f"{measurement.name}.json"
    if not file.is_file():
        return None
    result = read(file)
    try:
        score_of(result), sentences_of(result), result["signature"]
    except STRANGE:
        raise damaged(file) from None
    return result if weights_of(path) in (None, result.get("weights", weights_of(path))) else None


def keep(path: Path, measurement: Measurement, result: Mapping[str, Any]) -> None:
    """Writes what was measured."""
    write(path, f"{measurement.name}.json", result)


def score_of(result: Mapping[str, Any]) -> float:
    """The perplexity or the BLEU."""
    return float(result["perplexity"] if "perplexity" in result else result["bleu"])


def sentences_of(result: Mapping[str, Any]) -> Array:
    """(sentences, k): what each sentence adds to the sums that its score is made of."""
    return np.asarray(result["by_sentence"], np.float64)


def saturation_of(path: Path) -> float | None:
    """The share of input and forget gates beyond 0.1 or 0.9 when the weights were validated, a mean over layers."""
    run = RunDirectory(path)
    lines = [line for line in run.metrics() if line.get("kind") == "valid"]
    if not lines:
        return None
    best = min(lines, key=lambda line: -line["bleu"] if "bleu" in line else line["loss"])
    if run.model_file.is_file():  # which knows the step of its weights; a table can be made without
        step = run.training_facts().get("steps")
        best = next((line for line in reversed(lines) if str(line["step"]) == step), best)
    shares = [value for name, value in best.items() if name.startswith("saturation/")]
    return statistics.fmean(shares) if shares else None


def missing(plan: Plan, out: Path) -> list[Measurement]:
    """What is still to be measured of a run."""
    return [one for one in plan.measurements if measured(out / plan.name, one) is None]


def write(path: Path, name: str, values: Mapping[str, Any]) -> None:
    """Writes a file of the run in `path` as JSON; what stands in a list is on one line."""
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    with write_atomically(RunDirectory(path).own(FOLDER) / name) as file:
        file.write(f"{{\n{lines}\n}}\n".encode())


def read(file: Path) -> dict[str, Any]:
    """What `write` wrote."""
    try:
        values = read_json(file, _LONGEST)
    except G2Error as error:
        raise G2Error(f"{error}; delete it, and run the study again") from None
    if not isinstance(values, dict):
        raise damaged(file)
    return values


def damaged(file: Path) -> G2Error:
    """What to tell of a file that says something else."""
    return G2Error(f"{file} does not hold what a study measures; delete it, and run the study again")


def _difference(found: Recipe, planned: Recipe) -> str:
    before, now = found.model_dump(), planned.model_dump()
    wrong = [
        f"{section}.{name} is {before[section].get(name)!r} there, {value!r} here"
        for section in ("data", "model", "train", "evaluate")
        for name, value in now.get(section, {}).items()
        if before.get(section, {}).get(name) != value
    ]
    return "; ".join(wrong) or "its task"
