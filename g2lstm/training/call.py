"""`g2lstm.train`: from a recipe to a trained model in one call."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from g2lstm.runs.trained import load
from g2lstm.tasks.lm.trained import TrainedLanguageModel
from g2lstm.tasks.mt.trained import TrainedTranslationModel
from g2lstm.tasks.recipes import load_recipe, parse_recipe
from g2lstm.training import start
from g2lstm.training.progress import Observer


def train(
    recipe: str | Path | Mapping[str, Any],
    out: str | Path,
    overrides: Sequence[str] = (),
    *,
    resume: bool = False,
    data_dir: str | Path | None = None,
    observer: Observer | None = None,
) -> TrainedLanguageModel | TrainedTranslationModel:
    """Trains a model into a run directory, and loads it from there; what `g2lstm train` does, but silent.

    A language model, its cache tuned on the validation text, and its score on the test text:

    >>> import g2lstm
    >>> from g2lstm.runs.scoring import score_language
    >>> tiny = ["model.hidden=16", "model.embedding=16", "train.epochs=1", "train.minutes=", "train.batch_size=64"]
    >>> trained = g2lstm.train("embedded", "runs/tiny", tiny)
    >>> plain = score_language(trained, "test")
    >>> cached = score_language(trained, "test", tunes_cache=True)
    >>> cached["perplexity"] < plain["perplexity"]
    True
    >>> trained.run.add_result(cached)  # into result.json, with its signature
    >>> text = trained.generate("the", tokens=20, seed=1)

    Args:
        recipe: the name of a shipped recipe, a file, or its tables.
        out: a new folder or, to go on, an existing run of the same recipe.
        overrides: "a.b=value", as after `--set`.
        resume: go on with the run in `out`; one that has not begun is begun.
        data_dir: a folder that holds the named data sets.
        observer: who is told how it goes; nobody if not given.
    """
    checked = parse_recipe(recipe, overrides) if isinstance(recipe, Mapping) else load_recipe(recipe, overrides)
    folder = None if data_dir is None else Path(data_dir)
    start.train(checked, out, observer or start.Silent(), resume=resume, data_dir=folder)
    return load(out)
