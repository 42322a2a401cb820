"""Trained models of run directories: `load` opens one, `score` scores it, `verify` computes a score again."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from g2lstm.errors import G2Error
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.records import Score, machine
from g2lstm.tasks.recipes import task_of
from g2lstm.tasks.task import Task, TrainedT, without_memory
from g2lstm.tasks.trained import Progress, Scoring, Trained


def load(run_dir: str | Path) -> Trained:
    """The trained model of a run directory, in evaluation mode, on the CPU."""
    if not isinstance(run_dir, str | Path):
        raise G2Error(f"load takes the path of a run directory, got {type(run_dir).__name__}")
    run = RunDirectory.open(Path(run_dir))
    return _load(task_of(run.recipe), run)


def load_as(task: Task[Any, Any, TrainedT], run_dir: str | Path) -> TrainedT:
    """Like `load`, but refuses a run of another task."""
    return _load(task, RunDirectory.open(Path(run_dir), task=task.trained.task))


def _load(task: Task[Any, Any, TrainedT], run: RunDirectory) -> TrainedT:
    recipe, tokenizers = run.recipe, run.tokenizers()
    with without_memory():  # the file's values come next, if they fit
        model = task.module(recipe, *map(len, tokenizers))
    with run.open_weights() as weights:
        if weights.spec is None:
            weights.fill_(model)
        else:
            weights.fill_compressed_(model)
    trained = task.trained(recipe, model.eval(), *tokenizers)
    trained.run, trained.facts = run, weights.facts
    return trained


def score(
    trained: Trained, how: Scoring, progress: Progress | None = None, *, compressed: str | None = None
) -> dict[str, Any]:
    """The score of a split, as `result.json` has it.

    `progress` is called with the tokens or sentences done, and the total; `compressed` is the spec of a model that was
    compressed after it was loaded.
    """
    found, run = trained.score_split(how, progress), trained.run
    spec = {} if compressed is None else {"compressed": compressed}
    # Signatures are for people; what programs compare goes beside them.
    compared = {
        "recipe": run.recipe_hash,
        "data": found.facts["data"],
        "weights": run.weights_id,
        "tokenizers": "+".join(tokenizer.fingerprint[:16] for tokenizer in trained.tokenizers.values()),
        "machine": machine(),
    }
    signed = {**found.values, **spec, **compared, "signature": run.signature(**spec, **found.facts)}
    return signed if found.by_sentence is None else {**signed, "by_sentence": found.by_sentence}


_ROUNDING = 1e-5  # the largest relative difference that counts as rounding
_BASIS = {"recipe": "recipe", "weights": "weights", "tokenizers": "tokenizers", "data": "text"}
_NUMBERS = ("perplexity", "bits_per_character", "unknown_share", "tokens", "bleu", "chrf", "sentences")


@dataclass(frozen=True)
class Check:
    """One thing that was compared."""

    what: str
    recorded: str | float | None  # None if an earlier version did not record it
    found: str | float | None
    verdict: str  # "same", "rounding", "different", "elsewhere" or "not recorded"


@dataclass(frozen=True)
class Verified:
    """A score of result.json, and how it compares."""

    signature: str
    checks: list[Check]

    @property
    def holds(self) -> bool:
        """Whether nothing is different; another machine, by itself, is no reason for doubt."""
        return all(check.verdict != "different" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"signature": self.signature, "holds": self.holds, "checks": [asdict(check) for check in self.checks]}


def verify(
    trained: Trained, recorded: Score, *, data_dir: Path | None = None, progress: Progress | None = None
) -> Verified:
    """Scores a run again as a recorded score says, from the text itself: prepared tokens are not trusted."""
    if recorded.dynamic is not None:
        raise G2Error(
            "dynamic evaluation can't be verified: this g2lstm has none; verify the other scores with --split"
        )
    with TemporaryDirectory() as folder:
        how = Scoring(
            recorded.split,
            recorded.eval_gate,
            beam=recorded.beam,
            length_penalty=recorded.length_penalty,
            data_dir=data_dir,
            prepared=Path(folder),
            **_cache_of(recorded),
        )
        found = score(trained, how, progress)
    known = recorded.model_dump()
    checks = [_compared(title, known.get(name), found.get(name)) for name, title in _BASIS.items()]
    before = recorded.machine or {}
    checks += [_compared(name, before.get(name), now, "elsewhere") for name, now in machine().items()]
    checks += [_compared(name, known.get(name), found[name]) for name in _NUMBERS if name in found]
    return Verified(recorded.signature, checks)


def _cache_of(recorded: Score) -> Mapping[str, Any]:
    if recorded.cache is None:
        return {}
    try:
        window, theta, share = recorded.cache.split(",")
        return {"cache_window": int(window), "cache_theta": float(theta), "cache_lambda": float(share)}
    except ValueError:
        raise G2Error(f"result.json has a cache of {recorded.cache!r:.80}, which is not window,theta,lambda") from None


def _compared(what: str, recorded: Any, found: Any, if_not: str = "different") -> Check:
    verdict = "same" if recorded == found else "not recorded" if recorded is None else if_not
    if verdict == if_not and isinstance(found, float) and isinstance(recorded, float):
        verdict = "rounding" if math.isclose(recorded, found, rel_tol=_ROUNDING) else if_not
    return Check(what, recorded, found, verdict)
