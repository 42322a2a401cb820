"""Compressed runs: `compress_run` makes a run directory with compressed weights, and reports what that changes."""

import json
import re
import secrets
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

from g2lstm.compression import storage
from g2lstm.compression.model import compress, encoded_matrices, group_sizes
from g2lstm.compression.spec import PRESETS, Spec
from g2lstm.errors import G2Error
from g2lstm.files import write_atomically
from g2lstm.runs.directory import TABLE, RunDirectory
from g2lstm.runs.trained import load, score
from g2lstm.runs.weights import COMPRESSED
from g2lstm.tasks.trained import Scoring, Trained

Show: TypeAlias = Callable[[str, int, int], None]  # what is being done, how much of it is done, and the total

_ROUNDS, _SECONDS = 3, 2.0  # of a speed test: rounds at least, and seconds to fill with more of them


class Compressed(NamedTuple):
    """A compressed model, its spec, and how long compressing took."""

    model: nn.Module
    spec: Spec
    seconds: float


def compress_timed(trained: Trained, spec: Spec) -> Compressed:
    """Compresses the model of a run."""
    start = time.perf_counter()
    model = compress(trained.model, spec)
    return Compressed(model, spec, time.perf_counter() - start)


def compress_run(trained: Trained, spec: Spec, out: Path, show: Show, scoring: Scoring | None) -> dict[str, Any]:
    """Compresses a run into a new run directory, which appears only when it is complete.

    Scores it before and after, unless `scoring` is None, and returns what its compression.json holds.
    """
    with new_folder(out) as folder:
        compressed = compress_timed(trained, spec)
        what = f"scoring {trained.run.path.name}"
        before = None if scoring is None else score(trained, scoring, partial(show, what))
        report = measure(trained, compressed, folder, show, scoring=scoring, score_before=before)
        write_json(folder / TABLE, report)
    return report


def measure(
    trained: Trained,
    compressed: Compressed,
    folder: Path,
    show: Show,
    *,
    scoring: Scoring | None = None,
    score_before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes a compressed run into an empty folder, reads it back, and measures it.

    Returns what `compression.json` holds, with None for what was not measured. `score_before` is the run's own score.
    """
    write_run(folder, trained.run, compressed.model, compressed.spec)
    after = load(folder)
    before_bytes, after_bytes = (one.run.model_file.stat().st_size for one in (trained, after))
    parameters = sum(parameter.numel() for parameter in trained.model.parameters())
    groups = group_sizes(trained.model, compressed.model)
    report: dict[str, Any] = {
        "original": trained.run.path.absolute().name,
        "spec": str(compressed.spec),
        "groups": {name: {**size._asdict(), "bits_per_weight": size.bits_per_weight} for name, size in groups.items()},
        "rest": {
            "before": before_bytes - sum(size.before for size in groups.values()),
            "after": after_bytes - sum(size.after for size in groups.values()),
        },
        "file": {"before": before_bytes, "after": after_bytes, "ratio": before_bytes / after_bytes},
        "parameters": parameters,
        "bits_per_weight": 8 * after_bytes / parameters,
        "seconds": compressed.seconds,
        "score": None,
    }
    if scoring is not None and score_before is not None:
        score_after = score(after, scoring, partial(show, "scoring the compressed run"))
        metric = trained.metric.name
        report["score"] = {
            "metric": metric,
            "split": scoring.split,
            "before": score_before[metric],
            "after": score_after[metric],
            "signature_before": score_before["signature"],
            "signature_after": score_after["signature"],
        }
    return {**report, "speed": _speed(trained, after, scoring)}


def _speed(before: Trained, after: Trained, scoring: Scoring | None) -> dict[str, Any] | None:
    """How fast both models are."""
    found = {"before": before.speed_test(scoring), "after": after.speed_test(scoring)}
    tests = {name: test for name, test in found.items() if test is not None}
    if not tests:
        return None
    seconds = interleaved({name: test.job for name, test in tests.items()}, _ROUNDS, _SECONDS)
    rates = {name: test.size / statistics.median(seconds[name]) for name, test in tests.items()}
    about = tests["before"]
    return {"unit": about.unit, "how": about.how, "threads": torch.get_num_threads(), **rates}


def silent(what: str, done: int, total: int) -> None:
    """Shows nothing."""


def interleaved(
    jobs: Mapping[str, Callable[[], Any]], rounds: int, fill: float = 2.0, show: Show = silent
) -> dict[str, list[float]]:
    """The seconds that each job took in each round.

    Every round runs every job once, so all of them see the same machine. A first round is run but not counted.

    Args:
        jobs: by name.
        rounds: the minimum.
        fill: short jobs run in more rounds, up to ten times as many, until this many seconds have passed.
        show: called after each round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    began = time.perf_counter()
    for turn in range(10 * rounds + 1):
        if turn > rounds and time.perf_counter() - began > fill:
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
        named = re.sub("[=,]", "-", str(Spec.parse(spec)).replace("; ", "_").replace(":", ""))
    run = run if run.name not in ("", "..") else run.resolve()
    return run.with_name(f"{run.name}+{named}")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that takes the name `path`, which must be free, only when it is complete; an error leaves nothing."""
    if path.exists() or path.is_symlink():
        raise G2Error(f"{path} already exists; delete it, or choose another folder with --out")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise G2Error(f"{path} can't be made: {error.strerror}; choose another folder with --out") from None
    try:
        yield temporary
        try:
            temporary.rename(path)
        except OSError as error:  # someone else has made it meanwhile
            raise G2Error(f"{path} can't be made: {error.strerror}; choose another folder with --out") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_compressible(run: RunDirectory) -> None:
    """Raises if a run has no weights, or is already compressed."""
    if (spec := run.compression) is not None:
        raise G2Error(f"{run.path} is already compressed ({spec}); compress the run it was made from")


def write_run(folder: Path, run: RunDirectory, model: nn.Module, spec: Spec) -> None:
    """Fills an empty folder with a compressed run; recipe, tokenizers and facts of training are those of `run`."""
    metadata = run.training_facts() | {"version": str(COMPRESSED)}
    content = storage.save(encoded_matrices(model), dict(model.named_parameters()), spec, metadata)
    made = RunDirectory(folder)
    files = {path.name: path.read_bytes() for path in (run.recipe_file, *run.tokenizer_files)}
    for name, written in (files | {made.model_file.name: content}).items():
        with write_atomically(folder / name) as file:
            file.write(written)
    write_json(made.result_file, {"scores": []})


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON object for people and programs."""
    with write_atomically(path) as file:
        file.write(json.dumps(values, indent=2).encode())
