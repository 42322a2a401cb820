"""From a recipe to a learner: data, tokenizers, model."""

from pathlib import Path
from typing import NamedTuple

from accelerate import Accelerator
from accelerate.utils import set_seed

from g2lstm.errors import G2Error
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.learner import Learner
from g2lstm.tasks.recipes import Recipe
from g2lstm.tasks.registry import task_of
from g2lstm.text.tokenize import Tokenizer


class Prepared(NamedTuple):
    """What training starts from."""

    learner: Learner
    tokenizers: dict[str, Tokenizer]  # by the names of their files in the run directory


def prepare(
    recipe: Recipe, accelerator: Accelerator, data_dir: Path | None = None, resumed: RunDirectory | None = None
) -> Prepared:
    """Gets the data ready and builds the model, with the recipe's seed or from the run to be finetuned.

    Args:
        recipe: what to train.
        accelerator: device and processes.
        data_dir: a folder that holds the named data sets.
        resumed: the run to resume, whose tokenizers are used.
    """
    earlier = None
    if recipe.train.finetune_from is not None and (resumed is None or not resumed.has_checkpoints()):
        earlier = RunDirectory.open(Path(recipe.train.finetune_from), task=recipe.task)
        _check_tokenizers(earlier, recipe)
    own = resumed or earlier  # weights only fit the ids of the tokenizers they were trained with
    task = task_of(recipe)
    with accelerator.main_process_first():
        data = task.prepare(recipe, data_dir, None if own is None else own.tokenizers())
    set_seed(recipe.train.seed)
    where = {"device": accelerator.device, "rank": accelerator.process_index, "world_size": accelerator.num_processes}
    learner = task.learner(recipe, data, **where)
    if earlier is not None:
        with earlier.open_weights() as weights:
            weights.fill_(learner.model)
    return Prepared(learner, dict(zip(task.trained.tokenizer_files, data.tokenizers, strict=True)))


def _check_tokenizers(earlier: RunDirectory, recipe: Recipe) -> None:
    """Finetuning keeps the earlier run's tokenizers, so a recipe must not claim others."""
    names = ("source", "target", "tokenizer", "vocabulary", "joint", "min_frequency", "lowercase", "is_tokenized")
    before, now = earlier.recipe.data.model_dump(), recipe.data.model_dump()
    if wrong := [
        f"data.{name} = {before[name]!r}, not {now[name]!r}" for name in names if before.get(name) != now.get(name)
    ]:
        raise G2Error(f"{earlier.path}, which is to be finetuned, has {'; '.join(wrong)}; its tokenizer cannot change")
