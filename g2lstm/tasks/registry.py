"""The tasks there are, by the names that recipes have for them."""

from typing import Any

from g2lstm.recipes.recipe import Recipe
from g2lstm.tasks.lm.task import LmTask
from g2lstm.tasks.mt.task import MtTask
from g2lstm.tasks.task import Task

LM, MT = LmTask(), MtTask()
TASKS: dict[str, Task[Any, Any, Any]] = {task.trained.task: task for task in (LM, MT)}


def task_of(recipe: Recipe) -> Task[Any, Any, Any]:
    """The task of a recipe."""
    return TASKS[recipe.task]
