"""All tasks, and how to load their recipes: checked as a whole, with all mistakes reported at once."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from g2lstm.errors import G2Error
from g2lstm.recipes.explain import MAX_PROBLEMS, problems_of, setting
from g2lstm.recipes.files import apply_overrides, is_own_text, read_tables
from g2lstm.recipes.sections import Recipe as Recipe
from g2lstm.tasks.lm.automatic import automatic
from g2lstm.tasks.lm.task import LmTask
from g2lstm.tasks.mt.automatic import automatic as automatic_pairs
from g2lstm.tasks.mt.task import MtTask
from g2lstm.tasks.task import Task
from g2lstm.text.own import pair_endings

LM, MT = LmTask(), MtTask()
TASKS: dict[str, Task[Any, Any, Any]] = {task.trained.task: task for task in (LM, MT)}  # by their names in recipes

_MAX_DEPTH = 20  # of nested tables and lists; a recipe has three levels


def task_of(recipe: Recipe) -> Task[Any, Any, Any]:
    """The task of a recipe."""
    return TASKS[recipe.task]


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Reads and checks a recipe.

    Args:
        name_or_path: the name of a shipped recipe, or a file; or a text, or a folder with texts, for which
            `automatic` chooses the settings.
        overrides: "a.b=value", where the value is TOML or plain text; "a.b=" removes the key.

    Raises:
        G2Error: the recipe has mistakes; the message lists them all.
    """
    source = str(name_or_path)
    if is_own_text(source):
        is_pairs = pair_endings(Path(source).expanduser()) is not None
        hidden = wanted_width(overrides)
        tables = automatic_pairs(source, hidden=hidden)[0] if is_pairs else automatic(source, hidden=hidden)
        return parse_recipe(tables, overrides, source=f"for {source}")
    is_run = Path(source).name == "recipe.toml"
    return parse_recipe(read_tables(source), overrides, source=source, is_run=is_run)


def wanted_width(overrides: Sequence[str]) -> int | None:
    """The `model.hidden` that overrides set; None if they set none that could be one."""
    tables: dict[str, Any] = {}
    apply_overrides(tables, overrides)
    match tables:
        case {"model": {"hidden": int(hidden)}}:
            return hidden
    return None


def parse_recipe(
    values: Mapping[str, Any], overrides: Sequence[str] = (), *, source: str = "given", is_run: bool = False
) -> Recipe:
    """Checks a recipe given as tables.

    Args:
        values: the tables.
        overrides: see `load_recipe`.
        source: the recipe's name in messages.
        is_run: whether it belongs to a run; earlier versions allowed keys there that were ignored.
    """
    _check_depth(values, source)
    tables = deepcopy(dict(values))
    problems = apply_overrides(tables, overrides)
    for section in ("data", "train"):
        tables.setdefault(section, {})
    task = tables.get("task")
    possible = [task] if isinstance(task, str) and task in TASKS else list(TASKS)
    if task not in possible:
        given = "task is missing" if task is None else setting("task", task)
        problems.append(f"{given}: must be {' or '.join(map(repr, TASKS))}")
    found: list[list[str]] = []
    for name in possible:
        if task == name and not is_run:
            TASKS[name].complete(tables)
        try:
            recipe: Recipe = TASKS[name].recipe.model_validate({**tables, "task": name}, context={"is_run": is_run})
            found.append([])
        except ValidationError as error:
            found.append(problems_of(error, TASKS[name].recipe))
    problems += [problem for problem in found[0] if all(problem in others for others in found)]  # whatever the task is
    if problems:
        or_more = " or more" if len(problems) >= MAX_PROBLEMS else ""
        count = f" has {len(problems)} mistakes{or_more}:\n  " if len(problems) > 1 else ": "
        raise G2Error(f"the recipe {source}{count}" + "\n  ".join(problems))
    return recipe


def _check_depth(values: Mapping[str, Any], source: str) -> None:
    """Refuses tables nested too deeply, before anything recurses into them."""
    level: list[Any] = [values]
    for _ in range(_MAX_DEPTH):
        inner = (one.values() if isinstance(one, Mapping) else one for one in level if isinstance(one, Mapping | list))
        level = [value for values in inner for value in values]
    if level:
        raise G2Error(f"the recipe {source} is nested more than {_MAX_DEPTH} deep; a recipe needs only three levels")
