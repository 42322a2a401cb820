"""What a compression gains and costs: bytes, score and speed of a run before it and after."""

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

from g2lstm.compression.measure import GroupSize, group_sizes
from g2lstm.compression.model import compress
from g2lstm.compression.spec import Spec
from g2lstm.errors import G2Error
from g2lstm.lab.bench.measure import interleaved
from g2lstm.runs.compressed import TABLE, new_folder, write_json, write_run
from g2lstm.runs.scoring import cache_settings, score_language, score_translation
from g2lstm.runs.trained import load
from g2lstm.tasks.lm.trained import TrainedLanguageModel
from g2lstm.tasks.mt.trained import TrainedTranslationModel
from g2lstm.tasks.mt.translate import translate

Trained: TypeAlias = TrainedLanguageModel | TrainedTranslationModel
Show: TypeAlias = Callable[[str, int, int], None]  # what is being done, how much of it is, and of how much

_STEPS, _SENTENCES = 40, 16  # of one round of a measurement of speed
_ROUNDS, _SECONDS = 3, 2.0  # rounds at least, and seconds to be filled with more of them


class Scoring(NamedTuple):
    """How scores are computed."""

    split: str
    cache: bool = False
    data_dir: Path | None = None


def check_scoring(trained: Trained, scoring: Scoring) -> None:
    """Raises for what cannot be asked of this model."""
    if scoring.cache and isinstance(trained, TrainedTranslationModel):
        raise G2Error(f"--cache is for language models, and {trained.run.path} is a run of task 'mt'; leave it out")


def score(trained: Trained, scoring: Scoring, show: Show, what: str) -> dict[str, Any]:
    """The score of a run, as `g2lstm eval` gives it."""
    progress = partial(show, what)
    if isinstance(trained, TrainedTranslationModel):
        return score_translation(trained, scoring.split, data_dir=scoring.data_dir, progress=progress)
    cache = cache_settings(trained) if scoring.cache else None
    return score_language(trained, scoring.split, cache=cache, data_dir=scoring.data_dir, progress=progress)


def metric_of(trained: Trained) -> str:
    """What a run is scored by: "perplexity" or "bleu"."""
    return "perplexity" if isinstance(trained, TrainedLanguageModel) else "bleu"


class Compressed(NamedTuple):
    """A compressed model, what it was compressed by, and how long that took."""

    model: nn.Module
    spec: Spec
    seconds: float


def compress_timed(trained: Trained, spec: Spec) -> Compressed:
    """Compresses the model of a run."""
    start = time.perf_counter()
    model = compress(trained.model, spec)
    return Compressed(model, spec, time.perf_counter() - start)


def compress_run(trained: Trained, spec: Spec, out: Path, show: Show, scoring: Scoring | None) -> dict[str, Any]:
    """Compresses a run into a new run directory, which appears when all of it is there.

    Args:
        trained: the run.
        spec: what to do to which weights.
        out: the new directory.
        show: told of the progress.
        scoring: how to score both; None for not at all.

    Returns:
        What the directory's compression.json holds.
    """
    with new_folder(out) as folder:
        compressed = compress_timed(trained, spec)
        before = None if scoring is None else score(trained, scoring, show, f"scoring {trained.run.path.name}")
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
    """Writes a compressed run into an empty folder, and measures what is there, read back from the folder.

    Args:
        trained: the run that was compressed.
        compressed: what became of its model.
        folder: where the compressed run is written.
        show: told of the progress.
        scoring: how to score; None for not at all.
        score_before: the run's own score.

    Returns:
        What `compression.json` holds; None stands for what was not measured.
    """
    write_run(folder, trained.run, compressed.model, compressed.spec)
    after = load(folder)
    before_bytes, after_bytes = (one.run.model_file.stat().st_size for one in (trained, after))
    parameters = sum(parameter.numel() for parameter in trained.model.parameters())
    groups = group_sizes(trained.model, compressed.model)
    report: dict[str, Any] = {
        "original": trained.run.path.absolute().name,
        "spec": str(compressed.spec),
        "groups": {name: _group(size) for name, size in groups.items()},
        "rest": {
            "before": before_bytes - sum(size.before for size in groups.values()),
            "after": after_bytes - sum(size.after for size in groups.values()),
        },
        "file": {"before": before_bytes, "after": after_bytes, "ratio": before_bytes / after_bytes},
        "parameters": parameters,
        "bits_per_weight": 8 * after_bytes / parameters,
        "seconds": compressed.seconds,
    }
    report["score"] = None
    if scoring is not None and score_before is not None:
        score_after, metric = score(after, scoring, show, "scoring the compressed run"), metric_of(trained)
        report["score"] = {
            "metric": metric,
            "split": scoring.split,
            "before": score_before[metric],
            "after": score_after[metric],
            "signature_before": score_before["signature"],
            "signature_after": score_after["signature"],
        }
    report["speed"] = _speed(trained, after, scoring)
    return report


def _group(size: GroupSize) -> dict[str, Any]:
    return {**size._asdict(), "bits_per_weight": size.bits_per_weight}


def _speed(before: Trained, after: Trained, scoring: Scoring | None) -> dict[str, Any] | None:
    """How fast both are in interleaved rounds, for some seconds; None where there is no text to translate."""
    if isinstance(before, TrainedLanguageModel) and isinstance(after, TrainedLanguageModel):
        count, unit, how = _STEPS, "steps/s", "streaming, batch 1"
        jobs = {"before": _stepping(before), "after": _stepping(after)}
    elif isinstance(before, TrainedTranslationModel) and isinstance(after, TrainedTranslationModel) and scoring:
        lines = [line for line in before.split(scoring.split, scoring.data_dir)[0] if line.strip()][:_SENTENCES]
        count, unit, how = len(lines), "sentences/s", f"greedy, one at a time, first {len(lines)} sentences"
        jobs = {"before": _translating(before, lines), "after": _translating(after, lines)}
    else:
        return None
    seconds = interleaved(jobs, _ROUNDS, _SECONDS)
    rates = {name: count / statistics.median(each) for name, each in seconds.items()}
    return {"unit": unit, "how": how, "threads": torch.get_num_threads(), **rates}


def _stepping(trained: TrainedLanguageModel) -> Callable[[], object]:
    from g2lstm.compression.stream import stream

    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(trained.model.vocabulary_size, (_STEPS,), generator=generator).tolist()
    session = stream(trained.model)

    def job() -> None:
        for token in tokens:
            session.step(token)

    return job


def _translating(trained: TrainedTranslationModel, lines: list[str]) -> Callable[[], object]:
    sources = trained.source.encode_lines(lines)
    source_eos, target_eos = trained.source.eos_id, trained.target.eos_id
    return partial(
        translate, trained.model, sources, source_eos=source_eos, target_eos=target_eos, beam=1, batch_size=1
    )
