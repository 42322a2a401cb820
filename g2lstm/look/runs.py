"""Runs that are shown together: what each is called, and sentences to show it with."""

from collections.abc import Sequence
from pathlib import Path

from g2lstm.errors import G2Error
from g2lstm.look.examine import GatesFile
from g2lstm.look.record import record_split
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.trained import Trained, validation_files

SAMPLES = 200  # windows or sentence pairs, which are counted in a second or two


def named_runs(paths: Sequence[Path]) -> dict[str, RunDirectory]:
    """Runs by the names of their directories, or by their paths where two are alike.

    Raises:
        G2Error: one of them is no run, has no trained model, or is given twice.
    """
    resolved = [path.resolve() for path in paths]
    if twice := [path for path, place in zip(paths, resolved, strict=True) if resolved.count(place) > 1]:
        raise G2Error(f"the run {twice[0]} is given twice; give each once")
    names = [place.name for place in resolved]
    keys = [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]
    runs = {key: RunDirectory.open(path) for key, path in zip(keys, paths, strict=True)}
    for run in runs.values():
        run.training_facts()  # raises where there is no model
    return runs


def count_some(trained: Trained, data_dir: Path | None = None) -> GatesFile | None:
    """Counts of the gates over some of the validation text; None if that text isn't here."""
    if not all(file.is_file() for file in validation_files(trained.recipe, data_dir)):
        return None
    counted = record_split(trained, "valid", samples=SAMPLES, data_dir=data_dir)
    found = {"mode": counted.mode, "data": counted.data, "layers": counted.statistics.summary()}
    return GatesFile.model_validate(found)
