"""`search_run`: the spec for a run that a bound on its perplexity, or on its file, asks for."""

import math
from pathlib import Path

from torch import nn

from g2lstm.compression.curve import Found
from g2lstm.compression.search import Search, Show
from g2lstm.runs.weights import compressed_weights
from g2lstm.tasks.model import TokenModel
from g2lstm.tasks.recipes import task_of
from g2lstm.tasks.trained import Trained

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
