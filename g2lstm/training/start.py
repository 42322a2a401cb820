"""From a recipe to a trained model: `g2lstm.train`, and `train_recipe` behind `g2lstm train`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from g2lstm.compression.model import prepare_
from g2lstm.errors import G2Error
from g2lstm.files import is_disk_full
from g2lstm.nn import kernel
from g2lstm.recipes.files import differences
from g2lstm.runs.directory import RunDirectory
from g2lstm.runs.trained import load, load_as
from g2lstm.tasks.model import TokenModel
from g2lstm.tasks.recipes import Recipe, load_recipe, parse_recipe, task_of
from g2lstm.tasks.task import Learner, Task
from g2lstm.tasks.trained import Trained
from g2lstm.text.tokenize import Tokenizer
from g2lstm.training.environment import deaths_explained, denormals_flushed, noise_seed, own_accelerator
from g2lstm.training.loop import Trainer
from g2lstm.training.progress import Observer, Silent, TrainingProgress, Turn


def train(
    recipe: str | Path | Mapping[str, Any],
    out: str | Path,
    overrides: Sequence[str] = (),
    *,
    resume: bool = False,
    data_dir: str | Path | None = None,
    observer: Observer | None = None,
) -> Trained:
    """Trains a model into a run directory and loads it from there, like `g2lstm train` but silently.

    Args:
        recipe: a text file, or a folder with train.txt, for which settings are chosen; or the name of a shipped recipe,
            a recipe file, or its tables.
        out: a new folder or, to resume, an existing run of the same recipe.
        overrides: "a.b=value", as for `--set`.
        resume: continue the run in `out`, or start it if it has not begun.
        data_dir: a folder that holds the named data sets.
        observer: is told about the progress.

    Examples:
        A language model, its cache tuned on the validation text, and its score on the test text:

        >>> import g2lstm
        >>> from g2lstm.runs.trained import score
        >>> from g2lstm.tasks.trained import Scoring
        >>> tiny = ["model.hidden=16", "model.embedding=16", "train.epochs=1", "train.minutes=", "train.batch_size=64"]
        >>> trained = g2lstm.train("embedded", "runs/tiny", tiny)
        >>> plain = score(trained, Scoring("test"))
        >>> cached = score(trained, Scoring("test", tune_cache=True))
        >>> cached["perplexity"] < plain["perplexity"]
        True
        >>> trained.run.add_result(cached)  # into result.json, with its signature
        >>> text = trained.generate("the", tokens=20, seed=1)
    """
    checked = parse_recipe(recipe, overrides) if isinstance(recipe, Mapping) else load_recipe(recipe, overrides)
    folder = None if data_dir is None else Path(data_dir)
    train_recipe(checked, out, observer, resume=resume, data_dir=folder)
    return load(out)


def train_recipe(
    recipe: Recipe,
    out: str | Path,
    observer: Observer | None = None,
    *,
    resume: bool = False,
    data_dir: Path | None = None,
    turn: Turn | None = None,
) -> TrainingProgress:
    """Trains a model into the run directory `out`, without loading it; the arguments are those of `train`.

    With a `turn`, it trains only as far as that says; see `Trainer`.
    """
    recipe, run = with_absolute_paths(recipe), RunDirectory(Path(out))
    try:
        with denormals_flushed(), deaths_explained(), own_accelerator(recipe.train.precision) as accelerator:
            is_old = run.recipe_file.exists() and resume
            if is_old:
                _check_same(run.recipe, recipe, run.path)
            else:
                run.check_new()
            learner, tokenizers = prepare(recipe, accelerator, data_dir, resumed=run if is_old else None)
            if accelerator.num_processes > 1:  # the same weights in every process, but different noise and masks
                torch.manual_seed(noise_seed(recipe.train.seed, accelerator.process_index))
            if not accelerator.is_main_process:
                return Trainer(learner, recipe.train, run, accelerator, Silent()).train(resume=is_old)
            with run.locked():
                if not is_old:
                    run = RunDirectory.create(run.path, recipe, tokenizers)
                observer = observer or Silent()
                if recipe.train.precision == "bf16" and accelerator.device.type == "cpu":
                    _say_whether_it_pays(observer)
                return Trainer(learner, recipe.train, run, accelerator, observer, turn).train(resume=is_old)
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise G2Error(f"the disk with {out} is full: {error}; free some space, then continue with --resume") from None


def _say_whether_it_pays(observer: Observer) -> None:
    if not kernel.find().has_bfloat16:
        observer.on_message(
            f'train.precision = "bf16" saves no time here: this processor or the kernel has no instructions '
            f"for bfloat16 ({kernel.find().description})"
        )


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with paths that mean the same from any folder."""
    train, data = recipe.train, recipe.data
    if data.path is not None:
        data = data.model_copy(update={"path": _absolute(data.path)})
    if train.finetune_from is not None:
        train = train.model_copy(update={"finetune_from": _absolute(train.finetune_from)})
    if train.teacher is not None:
        teacher = train.teacher.model_copy(update={"run": _absolute(train.teacher.run)})
        train = train.model_copy(update={"teacher": teacher})
    return recipe.model_copy(update={"data": data, "train": train})


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _check_same(saved: Recipe, wanted: Recipe, out: Path) -> None:
    if found := differences(saved, wanted):
        more = [] if len(found) <= 5 else [f"and {len(found) - 5} more"]
        raise G2Error(
            f"the run in {out} has a different recipe: {'; '.join([*found[:5], *more])}; resume it with the same "
            "settings, or start a new run with another --out"
        )


def prepare(
    recipe: Recipe, accelerator: Accelerator, data_dir: Path | None = None, resumed: RunDirectory | None = None
) -> tuple[Learner, dict[str, Tokenizer]]:
    """Gets the data ready and builds the model, with the recipe's seed or from the run to be finetuned.

    A run that is resumed keeps its tokenizers. They are returned by the names of their files in the run directory.
    """
    earlier = None
    if recipe.train.finetune_from is not None and (resumed is None or not resumed.has_checkpoints()):
        earlier = RunDirectory.open(Path(recipe.train.finetune_from), task=recipe.task)
        _check_tokenizers(earlier, recipe)
    own = resumed or earlier  # weights only fit the ids of the tokenizers they were trained with
    task = task_of(recipe)
    with accelerator.main_process_first():
        data = task.prepare(recipe, data_dir, None if own is None else own.tokenizers())
    teacher = None if recipe.train.teacher is None else _teacher(recipe.train.teacher.run, task, data.tokenizers)
    set_seed(recipe.train.seed)
    where = {"device": accelerator.device, "rank": accelerator.process_index, "world_size": accelerator.num_processes}
    learner = task.learner(recipe, data, teacher=None if teacher is None else teacher.to(accelerator.device), **where)
    if earlier is not None:
        with earlier.open_weights() as weights:
            weights.fill_(learner.model)
    if recipe.train.compression is not None:
        prepare_(learner.model, recipe.train.compression)
    return learner, dict(zip(task.trained.tokenizer_files, data.tokenizers, strict=True))


def _teacher(run_dir: str, task: Task[Any, Any, Trained], tokenizers: Sequence[Tokenizer]) -> TokenModel:
    """The model of a run directory; raises unless it has these tokenizers."""
    trained = load_as(task, run_dir)
    for theirs, own in zip(trained.tokenizers.values(), tokenizers, strict=True):
        if theirs.fingerprint != own.fingerprint:
            raise G2Error(
                f"the teacher {run_dir} (train.teacher.run) has a different vocabulary ({len(theirs):,} tokens, here "
                f"{len(own):,}); choose one that was trained on the same text with the same data section"
            )
    return trained.model.requires_grad_(False)


def _check_tokenizers(earlier: RunDirectory, recipe: Recipe) -> None:
    """Finetuning keeps the earlier run's tokenizers, so a recipe must not claim others."""
    found = differences(earlier.recipe.data, recipe.data)
    if wrong := [f"data.{one}" for one in found if not one.startswith(("name ", "path ", "max_length "))]:
        raise G2Error(f"{earlier.path} is to be finetuned, so its tokenizer cannot change: {'; '.join(wrong)}")
