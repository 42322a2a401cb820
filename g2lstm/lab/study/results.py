"""What a study knows about a run, all of it in the run's directory: how it was trained and what was measured."""

import functools
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from g2lstm.errors import G2Error
from g2lstm.files import write_atomically
from g2lstm.lab.study.plan import Measurement, PlannedRun
from g2lstm.lab.study.significance import Array
from g2lstm.recipes.files import differences
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.records import Record, RecordT, Score
from g2lstm.tasks.recipes import Recipe
from g2lstm.text.lines import sha256_of

FOLDER = "measured"  # inside a run directory: a file for each measurement, one about the training, one about its start
_TRAINING, _START = "training.json", "start.json"
_BUDGET = ("epochs", "minutes")
_MAY_DIFFER = ("minutes", "checkpoint_minutes")  # on another machine
_AS_LONG = 0.1  # the share of its epochs by which a run may be longer or shorter if a clock ended it
_ELSEWHERE = "move it away, or choose another folder with --out"


class Training(Record):
    """How a run was trained."""

    epochs: float
    seconds: float
    step: int  # the last one


class Origin(Record):
    """The weights that a training began with or that numbers were counted from, as `weights_of` identifies them."""

    weights: str | None = None


class Measured(Score):
    """A score, and what else it rests on.

    Attributes:
        by_sentence: what each sentence adds to the sums that the score is made of.
        weights: identifies the run's weights.
        trained_on_text: identifies the text that the run was trained on.
        tuned_on_text: identifies the text that the cache was tuned on.
    """

    by_sentence: list[list[float]]
    weights: str | None = None
    trained_on_text: str = ""
    tuned_on_text: str | None = None

    @property
    def score(self) -> float:
        """The perplexity or the BLEU."""
        score = self.perplexity if self.bleu is None else self.bleu
        assert score is not None
        return score

    @functools.cached_property
    def sums(self) -> Array:
        """(sentences, k): what each sentence adds to the sums that the score is made of."""
        return np.asarray(self.by_sentence, np.float64)


def training_of(path: Path) -> Training | None:
    """How a run was trained; None if it was not, or not to its end."""
    saved = path / FOLDER / _TRAINING
    if saved.is_file():
        return read(saved, Training)
    for file in sorted((path / "checkpoints").glob("step-*.json"), reverse=True):
        try:
            progress = json.loads(file.read_text(encoding="utf-8"))["state"]["progress"]
            if not progress["finished"]:
                return None
            # A budget in minutes that was not used up was never turned into a number of epochs.
            epochs = progress["epoch"] if progress["epochs"] is None else progress["epochs"]
            training = Training(epochs=epochs, seconds=progress["seconds"], step=progress["step"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # resuming says what is wrong with it
        return training if (path / "model.safetensors").is_file() else None
    return None


def keep_training(path: Path) -> Training | None:
    """Saves how a run was trained, so that its checkpoints may be deleted; returns it, as `training_of` does."""
    training = training_of(path)
    if training is not None and not (path / FOLDER / _TRAINING).is_file():
        write(path, _TRAINING, training.model_dump())
    return training


def keep_start(path: Path, weights: str) -> None:
    """Saves which weights the training of the run in `path` began with."""
    write(path, _START, {"weights": weights})


def weights_of(path: Path) -> str | None:
    """Identifies a run's weights by sixteen hexadecimal digits; None if it has none."""
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
    """Raises if the run in `path` was started from other weights than `start` has now."""
    kept = path / FOLDER / _START
    if kept.is_file() and weights_of(start) not in (None, read(kept, Origin).weights):
        raise G2Error(f"{path} was trained from another {start.name} than the one now in {start.parent}; {_ELSEWHERE}")


def check_text(path: Path, recipe: Recipe, measurements: Sequence[Measurement]) -> None:
    """Raises if a text of the user's has changed since the run was scored, or its cache tuned, on it.

    A text that is gone is not missed.
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
            hashes = "+".join(sha256_of(file)[:8] for file in files)
            if result.data != f"own/{hashes}":
                raise _of_another_text(path, "scored", " or ".join(file.name for file in files), data.path)
        if result.tuned_on_text is not None and valid.is_file() and sha256_of(valid) != result.tuned_on_text:
            raise _of_another_text(path, "given a cache that was tuned", valid.name, data.path)


def _of_another_text(path: Path, what: str, names: str, folder: str) -> G2Error:
    return G2Error(f"{path} was {what} on another text than the {names} now in {folder}; {_ELSEWHERE}")


def check_recipe(path: Path, planned: Recipe) -> list[str]:
    """Raises unless the run in `path` follows this recipe; returns notes on differences that don't matter.

    Args:
        path: an existing run.
        planned: the recipe that the study would train.
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
            f"{path} holds a run of another recipe than this study's ({'; '.join(differences(before, now))}); "
            f"{_ELSEWHERE}"
        )
    if fitted and planned.train.minutes is None:
        training = training_of(path)
        if training is None:
            raise G2Error(
                f"{path} holds an unfinished run whose length depends on the clock, by its train.minutes, but this "
                f"study counts epochs; {_ELSEWHERE}"
            )
        if abs(training.epochs / (planned.train.epochs or 1) - 1) > _AS_LONG:
            raise G2Error(
                f"{path} holds a run of {training.epochs:.1f} epochs, by its train.minutes, but this study has "
                f"{planned.train.epochs:g}; {_ELSEWHERE}"
            )
    changed = [name for name in _BUDGET if getattr(found.train, name) != getattr(planned.train, name)]
    if changed:
        return [f"{path.name} was trained with {_budget(found, changed)}; the study has {_budget(planned, changed)}"]
    return []


def _budget(recipe: Recipe, names: Sequence[str]) -> str:
    values = {f"train.{name}": getattr(recipe.train, name) for name in names}
    return " and ".join(f"no {name}" if value is None else f"{name}={value:g}" for name, value in values.items())


def measured(path: Path, measurement: Measurement) -> Measured | None:
    """What was measured; None if nothing was, or of other weights than the run has now, or by an earlier version."""
    file = path / FOLDER / f"{measurement.name}.json"
    if not file.is_file():
        return None
    result, weights = read(file, Measured), weights_of(path)
    if result.data is None or (weights is not None and result.weights not in (None, weights)):
        return None
    return result


def keep(path: Path, measurement: Measurement, result: Mapping[str, Any]) -> None:
    """Saves what was measured."""
    write(path, f"{measurement.name}.json", result)


def saturation_of(path: Path) -> float | None:
    """The share of input and forget gates beyond 0.1 or 0.9 when the weights were validated: a mean over layers."""
    run = RunDirectory(path)
    lines = [line for line in run.metrics() if line.get("kind") == "valid"]
    if not lines:
        return None
    best = min(lines, key=lambda line: -line["bleu"] if "bleu" in line else line["loss"])
    if run.model_file.is_file():  # it knows the step of its weights; a table can be made without it
        step = run.training_facts().get("steps")
        best = next((line for line in reversed(lines) if str(line["step"]) == step), best)
    shares = [value for name, value in best.items() if name.startswith("saturation/")]
    return statistics.fmean(shares) if shares else None


def missing(run: PlannedRun, out: Path) -> list[Measurement]:
    """What remains to be measured."""
    return [one for one in run.measurements if measured(out / run.name, one) is None]


def write(path: Path, name: str, values: Mapping[str, Any]) -> None:
    """Writes a JSON file of the run in `path`, with a line for each key."""
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    with write_atomically(RunDirectory(path).own(FOLDER) / name) as file:
        file.write(f"{{\n{lines}\n}}\n".encode())


def read(file: Path, kind: type[RecordT]) -> RecordT:
    """Reads what `write` wrote."""
    return kind.read(file, "delete it and run the study again")
