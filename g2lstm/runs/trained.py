"""Trained models of run directories: `load` opens one, `score` scores it and signs the score."""

from pathlib import Path
from typing import Any

from g2lstm.errors import G2Error
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.records import machine
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
