"""Runs that are shown together: what each is called, and sentences to show it with."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from g2lstm.errors import G2Error
from g2lstm.look.examine import GatesFile
from g2lstm.look.record import Trained, record_split
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.lm.recipe import LmRecipe
from g2lstm.tasks.lm.trained import TrainedLanguageModel
from g2lstm.text.lines import read_pieces
from g2lstm.text.registry import folder_of

SAMPLES = 200  # windows or sentence pairs, which are counted in a second or two
_WORDS = range(8, 19)  # a sentence that is neither trivial nor too long for one look


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


def validation_file(run: RunDirectory, data_dir: Path | None = None) -> Path | None:
    """The validation text that a run's model reads, if it is here; it is not downloaded for this."""
    recipe = run.recipe
    ending = "txt" if isinstance(recipe, LmRecipe) else recipe.data.source
    try:
        folder = (
            folder_of(recipe.data.name, data_dir) if recipe.data.name else Path(recipe.data.path or "").expanduser()
        )
    except G2Error:  # a set that this version does not know
        return None
    file = folder / f"valid.{ending}"
    return file if file.is_file() else None


def count_some(trained: Trained, data_dir: Path | None = None) -> GatesFile | None:
    """Counts of the gates over some of the validation text; None if that text isn't here."""
    file = validation_file(trained.run, data_dir)
    if file is None or not file.with_name(f"valid.{getattr(trained.recipe.data, 'target', 'txt')}").is_file():
        return None
    counted = record_split(trained, "valid", samples=SAMPLES, data_dir=data_dir)
    found = {"mode": counted.mode, "data": counted.data, "layers": counted.statistics.summary()}
    return GatesFile.model_validate(found)


def example_sentences(trained: Trained, count: int, data_dir: Path | None = None) -> list[str]:
    """Lines of the validation text where it is here; else, of a language model, what it says itself."""
    file = validation_file(trained.run, data_dir)
    if file is not None:
        lines = (piece.text.strip() for piece in islice(read_pieces(file), 1000))
        return list(islice((line for line in lines if len(line.split()) in _WORDS), count))
    if not isinstance(trained, TrainedLanguageModel):
        return []
    texts = (trained.generate(tokens=_WORDS.stop, temperature=0.7, seed=seed) for seed in range(count))
    return [line for text in texts if (line := text.strip().split("\n")[0])]
