"""From a recipe to a task of the training loop: data, tokenizers, model."""

from pathlib import Path
from typing import NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from g2lstm.errors import G2Error
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.models import build_language_model, build_translation_model
from g2lstm.runs.trained import fill
from g2lstm.tasks.lm.recipe import LmRecipe
from g2lstm.tasks.lm.training import LanguageModelTask
from g2lstm.tasks.mt.recipe import MtRecipe
from g2lstm.tasks.mt.trained import SOURCE_TOKENIZER, TARGET_TOKENIZER
from g2lstm.tasks.mt.training import TranslationTask
from g2lstm.tasks.recipes import Recipe
from g2lstm.tasks.task import Task
from g2lstm.text.corpus import prepare_stream, prepare_tokenizer
from g2lstm.text.pairs import mt_files, prepare_pairs, prepare_tokenizers
from g2lstm.text.registry import lm_files
from g2lstm.text.tokenize import Tokenizer


class Prepared(NamedTuple):
    """What training starts from."""

    task: Task
    tokenizers: dict[str, Tokenizer]  # by the names of their files in the run directory


def prepare(
    recipe: Recipe, accelerator: Accelerator, data_dir: Path | None = None, resumed: RunDirectory | None = None
) -> Prepared:
    """Gets the data ready and builds the model, with the recipe's seed or from the run that is to be finetuned.

    Args:
        recipe: what to train.
        accelerator: device and processes.
        data_dir: a folder that holds the named data sets.
        resumed: the run that is to go on, whose tokenizers are used.
    """
    earlier = None
    if recipe.train.finetune_from is not None and (resumed is None or not resumed.has_checkpoints()):
        earlier = RunDirectory.open(Path(recipe.train.finetune_from), task=recipe.task)
        _check_tokenizers(earlier, recipe)
    own = resumed or earlier  # weights know no other ids than those of their own tokenizer
    if isinstance(recipe, LmRecipe):
        prepared = _prepare_lm(recipe, accelerator, data_dir, own)
    else:
        prepared = _prepare_mt(recipe, accelerator, data_dir, own)
    if earlier is not None:
        fill(prepared.task.model, earlier)
    return prepared


def _prepare_lm(
    recipe: LmRecipe, accelerator: Accelerator, data_dir: Path | None, own: RunDirectory | None
) -> Prepared:
    data = recipe.data
    with accelerator.main_process_first():
        files = lm_files(data.name, None if data.path is None else Path(data.path), data_dir)
        if own is not None:
            tokenizer = own.tokenizer()
        else:
            tokenizer = prepare_tokenizer(
                files["train"],
                data.tokenizer,
                vocabulary=data.vocabulary,
                min_frequency=data.min_frequency,
                lowercase=data.lowercase,
            )
        # The test text too: what is wrong with it should be known before hours are spent.
        train, valid, _ = (prepare_stream(files[split], tokenizer) for split in ("train", "valid", "test"))
    set_seed(recipe.train.seed)
    model = build_language_model(recipe, len(tokenizer))
    if recipe.train.frequency_bias:
        model.predict_frequencies(torch.from_numpy(train.counts(len(tokenizer))))
    model.to(accelerator.device)
    where = {"device": accelerator.device, "rank": accelerator.process_index, "world_size": accelerator.num_processes}
    return Prepared(LanguageModelTask(recipe, model, train, valid, **where), {"tokenizer.json": tokenizer})


def _prepare_mt(
    recipe: MtRecipe, accelerator: Accelerator, data_dir: Path | None, own: RunDirectory | None
) -> Prepared:
    data = recipe.data
    with accelerator.main_process_first():
        folder = None if data.path is None else Path(data.path)
        files = mt_files(data.name, folder, data.source, data.target, data_dir)
        if own is not None:
            source, target = own.tokenizer(SOURCE_TOKENIZER), own.tokenizer(TARGET_TOKENIZER)
        else:
            source, target = prepare_tokenizers(
                files["train"],
                data.tokenizer,
                vocabulary=data.vocabulary,
                joint=data.joint,
                min_frequency=data.min_frequency,
                lowercase=data.lowercase,
                is_tokenized=data.is_tokenized,
            )
        train, valid, _ = (prepare_pairs(files[split], source, target) for split in ("train", "valid", "test"))
    set_seed(recipe.train.seed)
    model = build_translation_model(recipe, len(source), len(target)).to(accelerator.device)
    where = {"device": accelerator.device, "rank": accelerator.process_index, "world_size": accelerator.num_processes}
    task = TranslationTask(recipe, model, train, valid, (source, target), **where)
    return Prepared(task, {SOURCE_TOKENIZER: source, TARGET_TOKENIZER: target})


def _check_tokenizers(earlier: RunDirectory, recipe: Recipe) -> None:
    """Finetuning keeps the earlier run's tokenizers, so a recipe must not claim others."""
    names = ("source", "target", "tokenizer", "vocabulary", "joint", "min_frequency", "lowercase", "is_tokenized")
    before, now = earlier.recipe.data.model_dump(), recipe.data.model_dump()
    if wrong := [
        f"data.{name} = {before[name]!r}, not {now[name]!r}" for name in names if before.get(name) != now.get(name)
    ]:
        raise G2Error(f"{earlier.path}, which is to be finetuned, has {'; '.join(wrong)}; its tokenizer cannot change")
