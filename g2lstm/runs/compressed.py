"""Compressed runs: `compress_run` makes a run directory with compressed weights, and reports what that changes."""

import json
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from g2lstm.compression.curve import Found
from g2lstm.compression.model import compress, group_sizes
from g2lstm.compression.search import Search, Show
from g2lstm.compression.spec import PRESETS, Spec
from g2lstm.errors import G2Error
from g2lstm.files import write_whole
from g2lstm.runs.directory import TABLE, RunDirectory, compressed_weights
from g2lstm.runs.trained import load, score
from g2lstm.tasks.model import TokenModel
from g2lstm.tasks.recipes import task_of
from g2lstm.tasks.trained import Scoring, Trained

_ROUNDS, _SECONDS = 3, 2.0  # of a speed test: rounds at least, and seconds to fill with more of them


def compress_run(
    trained: Trained,
    spec: Spec,
    out: Path,
    show: Show,
    scoring: Scoring | None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Compresses a run into a new run directory, which appears only when it is complete; see `write_report`."""
    with new_folder(out) as folder:
        start = time.perf_counter()
        model = compress(trained.model, spec)
        seconds = time.perf_counter() - start
        write_run(folder, trained.run, model, spec)
        return write_report(trained, folder, show, scoring, seconds, more)


def write_report(
    trained: Trained,
    folder: Path,
    show: Show,
    scoring: Scoring | None,
    seconds: float,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Compares a run with the compressed one in `folder`, and writes the result into its compression.json.

    It scores both, unless `scoring` is None, and returns what it wrote, with None for what was not measured.

    Args:
        trained: the run before compression.
        folder: the compressed run.
        show: draws a bar.
        scoring: how to score both.
        seconds: that compression took.
        more: facts about a search for the spec, or about a finetune.
    """
    after = load(folder)
    before_bytes, after_bytes = (one.run.model_file.stat().st_size for one in (trained, after))
    parameters = sum(parameter.numel() for parameter in trained.model.parameters())
    groups = group_sizes(trained.model, after.model)
    report: dict[str, Any] = {
        "original": trained.run.path.absolute().name,
        "spec": after.run.compression,
        "groups": {name: {**one._asdict(), "bits_per_weight": one.bits_per_weight} for name, one in groups.items()},
        "rest": {
            "before": before_bytes - sum(size.before for size in groups.values()),
            "after": after_bytes - sum(size.after for size in groups.values()),
        },
        "file": {"before": before_bytes, "after": after_bytes, "ratio": before_bytes / after_bytes},
        "parameters": parameters,
        "bits_per_weight": 8 * after_bytes / parameters,
        "seconds": seconds,
        "search": None,
        "finetune": None,
        **more,
        "score": None if scoring is None else _scores(trained, after, scoring, show),
        "speed": _speed(trained, after, scoring),
    }
    write_json(folder / TABLE, report)
    return report


def _scores(before: Trained, after: Trained, scoring: Scoring, show: Show) -> dict[str, Any]:
    first = score(before, scoring, partial(show, f"scoring {before.run.path.name}"))
    second = score(after, scoring, partial(show, "scoring the compressed run"))
    metric = before.metric.name
    return {
        "metric": metric,
        "split": scoring.split,
        "before": first[metric],
        "after": second[metric],
        "signature_before": first["signature"],
        "signature_after": second["signature"],
    }


def _speed(before: Trained, after: Trained, scoring: Scoring | None) -> dict[str, Any] | None:
    """How fast both models are."""
    first, second = before.speed_test(scoring), after.speed_test(scoring)
    if first is None or second is None:
        return None
    seconds = interleaved({"before": first.job, "after": second.job}, _ROUNDS, _SECONDS)
    return {
        "unit": first.unit,
        "how": first.how,
        "threads": torch.get_num_threads(),
        "before": first.size / statistics.median(seconds["before"]),
        "after": second.size / statistics.median(seconds["after"]),
    }


def silent(what: str, done: int, total: int) -> None:
    """Shows nothing."""


def interleaved(
    jobs: Mapping[str, Callable[[], Any]],
    rounds: int,
    fill: float = 2.0,
    show: Show = silent,
    most: float = math.inf,
) -> dict[str, list[float]]:
    """The seconds that each job took in each round; every round runs every job, so they share the same conditions.

    A first round is not counted. Short jobs run in up to ten times as many rounds, until `fill` seconds have passed;
    long ones in fewer, but at least three, when `most` seconds have.
    """
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    began = time.perf_counter()
    for turn in range(10 * rounds + 1):
        passed = time.perf_counter() - began
        if (turn > rounds and passed > fill) or (turn > 3 and passed > most):
            break
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn:
                seconds[name].append(time.perf_counter() - start)
        show("rounds", min(turn, rounds), rounds)
    return seconds


def default_folder(run: Path, spec: str) -> Path:
    """A folder beside the run: runs/ptb-small+small, or runs/ptb-small+gates-round0.2_cell-int8."""
    named = spec.strip()
    if named not in PRESETS:
        named = re.sub(r"[=, *?\[\]!]+", "-", str(Spec.parse(spec)).replace("; ", "_").replace(":", ""))
    return beside(run, named)


def beside(run: Path, name: str) -> Path:
    """The folder RUN+NAME."""
    run = run if run.name not in ("", "..") else run.resolve()
    return run.with_name(f"{run.name}+{name}")


def check_free(path: Path) -> None:
    """Raises if there is something of this name."""
    if path.exists() or path.is_symlink():
        raise G2Error(f"{path} already exists; delete it, or choose another folder with --out")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that takes the name `path`, which must be free, only when it is complete; an error leaves nothing."""
    check_free(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise G2Error(f"{path} can't be made: {error.strerror}; choose another folder with --out") from None
    with temporary as name:
        folder = Path(name) / path.name
        folder.mkdir()
        yield folder
        try:
            folder.rename(path)
        except OSError as error:  # someone else has made it meanwhile
            raise G2Error(f"{path} can't be made: {error.strerror}; choose another folder with --out") from None


def check_compressible(run: RunDirectory) -> None:
    """Raises if a run has no weights, or is already compressed."""
    if (spec := run.compression) is not None:
        raise G2Error(f"{run.path} is already compressed ({spec}); compress the run it was made from")


def write_run(folder: Path, run: RunDirectory, model: nn.Module, spec: Spec) -> None:
    """Fills an empty folder with a compressed run, which has the recipe, tokenizers and training facts of `run`."""
    content = compressed_weights(model, spec, run.training_facts())
    files = {path.name: path.read_bytes() for path in (run.recipe_file, *run.tokenizer_files)}
    for name, written in (files | {run.model_file.name: content}).items():
        write_whole(folder / name, written)
    write_json(folder / run.result_file.name, {"scores": []})


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON object for people and programs."""
    write_whole(path, json.dumps(values, indent=2).encode())


JOURNAL = "search.json"  # in the run: what was measured
_MOST = 20_000  # tokens of the validation text on which single matrices are measured


def search_run(
    trained: Trained,
    show: Show,
    *,
    max_loss: float | None = None,
    budget: int | None = None,
    data_dir: Path | None = None,
) -> Found:
    """Searches on the validation text.

    What was measured stays in the run, so a search that was stopped continues, and the next one is quick.

    Args:
        trained: an uncompressed run; see `load`.
        show: draws a bar.
        max_loss: how much the perplexity may rise, as a share; for translation, that of the references.
        budget: the most bytes of model.safetensors.
        data_dir: a folder that holds the named data sets.
    """
    run, task = trained.run, task_of(trained.recipe)
    facts = run.training_facts()
    learner = task.learner(trained.recipe, task.prepare(trained.recipe, data_dir, run.tokenizers()))

    def perplexity(model: nn.Module, most: int | None = None) -> float:
        assert isinstance(model, TokenModel)
        learner.model = model
        return math.exp(min(learner.validation_loss(most), 700.0))

    search = Search(
        trained.model,
        perplexity,
        quick=lambda model: perplexity(model, _MOST),
        label=f"{learner.facts['valid_sha256']} {_MOST}",
        size=lambda model, spec: len(compressed_weights(model, spec, facts)),
        journal=run.own(JOURNAL),
        show=show,
    )
    return search.find(max_loss=max_loss, budget=budget)
