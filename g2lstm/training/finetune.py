"""The recipe with which `g2lstm compress --finetune` trains a run through its compression."""

from collections.abc import Sequence
from typing import Any

from g2lstm.compression.spec import Spec
from g2lstm.recipes.sections import AdamW
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.recipes import Recipe, parse_recipe

RATE = 0.25  # of the learning rate that a run was trained with by AdamW
_PATIENCE = 2


def finetune_recipe(run: RunDirectory, spec: Spec, epochs: int, overrides: Sequence[str] = ()) -> Recipe:
    """The run's own recipe for this many more epochs, from its weights and through a compression.

    AdamW in one cycle, whatever the run was trained with, and the gates that it had in the end.
    """
    tables: dict[str, Any] = run.recipe.model_dump(by_alias=True, exclude_none=True)
    train, before = tables["train"], run.recipe.train.optimizer
    train.pop("minutes", None)
    if train.pop("gates", None) is not None:
        train["gates"] = {"start": 0.0}
    optimizer = before if isinstance(before, AdamW) else AdamW()
    train |= {
        "epochs": epochs,
        "patience": _PATIENCE,
        "finetune_from": str(run.path),
        "compression": str(spec),
        "optimizer": optimizer.model_dump() | {"lr": optimizer.lr * RATE},
    }
    return parse_recipe(tables, overrides, source=f"to finetune {run.path}")
