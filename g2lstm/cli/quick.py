"""`open_quickly`: the model of a run without torch, which takes longer to import than most answers take."""

from pathlib import Path
from typing import TypeVar

from g2lstm.errors import G2Error

Model = TypeVar("Model")


def open_quickly(run: Path, kind: type[Model], eval_gate: str | None = None) -> Model | None:
    """The model in the runtime without torch, which answers the same; None if it can't be had.

    Then load the run with torch, whose checks say more about what is wrong with it.
    """
    from g2lstm.runtime.opened import load

    if run.is_file():
        return None
    try:
        found = load(run, eval_gate=eval_gate)
    except G2Error:
        return None
    return found if isinstance(found, kind) else None
