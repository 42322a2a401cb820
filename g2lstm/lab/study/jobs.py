"""What a run directory tells us about each run of a study, and what is left to do for it."""

import functools
import json
import statistics
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from g2lstm.errors import G2Error
from g2lstm.files import write_whole
from g2lstm.lab.study.plan import Measurement, PlannedRun, Study
from g2lstm.recipes.files import differences
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.records import Record, RecordT, Score
from g2lstm.tasks.recipes import Recipe, task_of
from g2lstm.text.lines import sha256_of

FOLDER = "measured"  # inside a run directory: a file for each measurement, and one about the training
TRAINING = "training"
_ELSEWHERE = "move it away, or choose another folder with --out"


class Training(Record):
    """How a run was trained, once it was trained to its end."""

    epochs: float
    seconds: float
    start: str | None = None  # identifies the weights that it started from, if they are another run's


class Measured(Score):
    """A score, and what it was computed from."""

    by_sentence: list[list[float]]  # what each sentence adds to the sums that the score is made of
    trained_on_text: str = ""
    tuned_on_text: str | None = None  # identifies the text that the cache was tuned on

    @property
    def score(self) -> float:
        """The perplexity or the BLEU."""
        score = self.perplexity if self.bleu is None else self.bleu
        assert score is not None
        return score

    @functools.cached_property
    def sums(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """(sentences, k): what each sentence adds to the sums that the score is made of."""
        return np.asarray(self.by_sentence, np.float64)


@dataclass(frozen=True)
class Job:
    """One run of a study: what is done, and what is left to do."""

    run: PlannedRun
    path: Path
    recipe: Recipe
    training: Training | None = None
    measured: Mapping[Measurement, Measured] = field(default_factory=dict)
    problem: str = ""  # why the study can't use what the directory holds

    @property
    def missing(self) -> list[Measurement]:
        """What remains to be measured."""
        return [one for one in self.run.measurements if one not in self.measured]

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.training is not None and not self.missing and not self.problem

    @property
    def stages(self) -> dict[str, float]:
        """What is left to do, with an estimate in seconds; 0 if the size of the text is unknown."""
        train, measure = estimate(self.recipe) or (0.0, 0.0)
        training = {} if self.training else {TRAINING: train}
        return training | {measurement.name(self.recipe): measure for measurement in self.missing}

    @property
    def saturation(self) -> float | None:
        """The share of input and forget gates beyond 0.1 or 0.9 at the best validation: a mean over layers."""
        run = RunDirectory(self.path)
        lines = [line for line in run.metrics() if line.get("kind") == "valid"]
        steps = run.training_facts().get("steps") if run.model_file.is_file() else None
        kept = [line for line in lines if str(line["step"]) == steps] or lines  # earlier versions did not write steps
        best = min(kept, key=lambda line: -line["bleu"] if "bleu" in line else line["loss"], default={})
        shares = [value for name, value in best.items() if name.startswith("saturation/")]
        return statistics.fmean(shares) if shares else None


def jobs_of(study: Study, out: Path) -> list[Job]:
    """Every run of a study, in the folder for all runs."""
    if out.exists() and not out.is_dir():
        raise G2Error(f"{out} is not a folder; choose one for the runs with --out")
    return [_job(run, out) for run in study.runs]


def _job(run: PlannedRun, out: Path) -> Job:
    path, recipe = out / run.name, run.load(out)
    try:
        if (path / "recipe.toml").exists():
            recipe = _checked_recipe(path, recipe)  # a run continues as it began
        training, weights = training_of(path), weights_of(path)
        start = None if run.starts_from is None else weights_of(out / run.starts_from)
        if training is not None and None not in (start, training.start) and start != training.start:
            raise G2Error(f"{path} was not trained from the {run.starts_from} that is now in {out}; {_ELSEWHERE}")
        found = {one: measured(path, one, recipe, weights) for one in run.measurements}
    except G2Error as error:
        return Job(run, path, recipe, problem=str(error))
    return Job(run, path, recipe, training, {one: result for one, result in found.items() if result is not None})


def _checked_recipe(path: Path, planned: Recipe) -> Recipe:
    """The recipe of an existing run; raises unless it is the planned one, wherever the run it starts from lies."""
    found = RunDirectory.open(path).recipe
    names = ["checkpoint_minutes"]
    if None not in (found.train.finetune_from, planned.train.finetune_from):
        names.append("finetune_from")
    same = {name: getattr(found.train, name) for name in names}
    planned = planned.model_copy(update={"train": planned.train.model_copy(update=same)})
    if found != planned:
        changes = "; ".join(differences(found, planned))
        raise G2Error(f"{path} holds a run with a different recipe from this study's ({changes}); {_ELSEWHERE}")
    return found


def training_of(path: Path) -> Training | None:
    """How a run was trained; None if that is unknown, or training has not finished."""
    file = path / FOLDER / f"{TRAINING}.json"
    return read(file, Training) if file.is_file() else None


def measured(path: Path, measurement: Measurement, recipe: Recipe, weights: str | None) -> Measured | None:
    """What was measured; None if nothing was, or if the weights or the text have changed since."""
    file = path / FOLDER / f"{measurement.name(recipe)}.json"
    if not file.is_file():
        return None
    result = read(file, Measured)
    if result.data is None or (weights is not None and result.weights not in (None, weights)):
        return None
    if recipe.data.path is not None:
        with suppress(G2Error):  # a text that is gone can't be compared
            own = recipe.data.files()
            files = [own[measurement.split]] if isinstance(own["valid"], Path) else own[measurement.split]
            if result.data != f"own/{'+'.join(sha256_of(each)[:8] for each in files)}":
                return None
            if result.tuned_on_text not in (None, *([sha256_of(own["valid"])] if len(files) == 1 else [])):
                return None
    return result


def weights_of(path: Path) -> str | None:
    """Identifies a run's weights by sixteen hexadecimal digits; None if it has none."""
    return RunDirectory(path).weights_id


def keep(path: Path, name: str, values: Mapping[str, Any]) -> None:
    """Writes a JSON file about the run in `path`, with a line for each key."""
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    write_whole(RunDirectory(path).own(FOLDER) / f"{name}.json", f"{{\n{lines}\n}}\n".encode())


def read(file: Path, kind: type[RecordT]) -> RecordT:
    """Reads what `keep` wrote."""
    return kind.read(file, "delete it and run the study again")


ESTIMATE = (
    "Times are for all epochs on the whole data set, at 6 operations per weight and token and 75 GFLOP/s per thread "
    "(ptb-small on two cores of a Xeon with AVX-512), or train.minutes if that is shorter. Runs that have begun count "
    "in full; a GPU is far faster."
)
_SIZES = {  # tokens to train on (both sides of a pair together), tokens to test on, words
    "embedded": (44_000, 4_400, 2_500),
    "ptb": (929_589, 82_430, 10_000),
    "wikitext-2": (2_088_628, 245_569, 33_278),
    "embedded-mt": (400_000, 20_000, 500),
    "multi30k-de-en": (800_000, 27_000, 6_000),
    "iwslt14-de-en": (7_000_000, 310_000, 25_000),
    "wmt14-en-de": (260_000_000, 160_000, 30_000),
}


def estimate(recipe: Recipe) -> tuple[float, float] | None:
    """The seconds of a run's training, and of each measurement; None for data of unknown size."""
    if recipe.data.name not in _SIZES:
        return None
    train_tokens, test_tokens, words = _SIZES[recipe.data.name]
    weights, train = task_of(recipe).weights_per_token(recipe, recipe.data.vocabulary or words), recipe.train
    # A multiplication and an addition per weight, once forward and twice backward.
    speed = 75e9 * torch.get_num_threads() / (6 * weights)  # tokens per second
    by_epochs = None if train.epochs is None else train.epochs * train_tokens / speed
    by_minutes = None if train.minutes is None else 60.0 * train.minutes
    return min(value for value in (by_epochs, by_minutes) if value is not None), test_tokens / speed
