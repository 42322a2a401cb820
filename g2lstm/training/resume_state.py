"""Whether a saved state is one that this training can go on from."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from g2lstm.errors import G2Error
from g2lstm.recipes.sections import TrainSection
from g2lstm.runs.directory import RunDirectory
from g2lstm.training.progress import Progress

# What comes of a state of something else.
STRANGE = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError)


def most_bytes(model: nn.Module) -> int:
    """More than a checkpoint of this model can have: optimisers and averages remember a few numbers a weight."""
    return 2**30 + 16 * sum(weights.nbytes for weights in model.state_dict().values())


def progress_of(state: Mapping[str, Any], run: RunDirectory, settings: TrainSection) -> Progress:
    """How far training was, by a state that may be of anything."""
    try:
        progress = Progress.restored(state["progress"])
        if progress.epochs is None and settings.minutes is None:
            raise ValueError("it does not say for how many epochs to train")
    except STRANGE as error:
        raise stranger(run, error) from error
    return progress


def check_unchanged(state: Mapping[str, Any], run: RunDirectory, facts: Mapping[str, str]) -> None:
    """Raises if texts or recipe are not those of the state; earlier versions did not say all of it.

    Args:
        state: from a checkpoint.
        run: with the recipe of now.
        facts: of the texts of now.
    """
    before = state.get("facts", {})
    if changed := [name for name, value in facts.items() if before.get(name, value) != value]:
        raise G2Error(
            f"the data of {run.path} have changed since its last checkpoint ({', '.join(changed)}); put the old files "
            "back, or start anew with --out"
        )
    if state.get("recipe", run.recipe_hash) != run.recipe_hash:
        raise G2Error(
            f"{run.recipe_file} has changed since its last checkpoint; put the old one back, or start anew with this "
            "one under another --out"
        )


def stranger(run: RunDirectory, error: Exception) -> G2Error:
    """What to tell of a state that does not fit."""
    return G2Error(
        f"the newest checkpoint in {run.checkpoints} is whole, but not one of this training ({error!r:.200}); put the "
        "right one back, or start anew with --out"
    )
