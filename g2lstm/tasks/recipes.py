"""Reads recipes: a file or a shipped one, with single keys overridden, all mistakes reported at once."""

import os
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pydantic import ValidationError

from g2lstm.errors import G2Error
from g2lstm.files import read_bounded
from g2lstm.recipes.overrides import apply_overrides
from g2lstm.recipes.problems import MOST_TOLD, problems_of, shown
from g2lstm.recipes.sealed import check_sealed
from g2lstm.tasks.lm.recipe import LmRecipe
from g2lstm.tasks.mt.recipe import MtRecipe

Recipe: TypeAlias = LmRecipe | MtRecipe
_LONGEST = 2**14  # bytes of a recipe; one has some 900. Reading TOML can take time that grows with the square
_DEEPEST = 20  # tables and lists in each other; a recipe has three
TASKS: dict[str, type[LmRecipe] | type[MtRecipe]] = {"lm": LmRecipe, "mt": MtRecipe}


class ShippedRecipe(NamedTuple):
    """A recipe that comes with the package."""

    name: str
    summary: str


def shipped_recipes() -> list[ShippedRecipe]:
    """The recipes that come with the package, each with the first line of its comment."""
    return [
        ShippedRecipe(name, file.read_text(encoding="utf-8").splitlines()[0].lstrip("# "))
        for name, file in sorted(_shipped_files().items())
    ]


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Reads and checks a recipe.

    Args:
        name_or_path: the name of a shipped recipe, or a file.
        overrides: "a.b=value", the value as TOML has it or else text; "a.b=" takes the key out.

    Raises:
        G2Error: with everything that is wrong, if anything is.
    """
    return parse_recipe(read_tables(name_or_path), overrides, source=str(name_or_path))


def task_of(path: Path) -> str | None:
    """The task that a recipe names, whatever else it says; None if there is none."""
    task = read_tables(path).get("task")
    return task if isinstance(task, str) else None


def read_tables(name_or_path: str | Path) -> dict[str, Any]:
    """What a recipe says, not yet checked but for its version and its end, if it is that of a run."""
    source = str(name_or_path)
    shipped = _shipped_files().get(source)
    if shipped is None:
        path = Path(os.path.expanduser(source))
        if not os.path.isfile(path):
            raise G2Error(_not_found(source))
        try:
            content = read_bounded(path, _LONGEST)
        except G2Error as error:
            raise G2Error(f"the recipe {error}") from None
    else:
        content = shipped.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise G2Error(f"the recipe {source} is not UTF-8 text: byte at offset {error.start}") from None
    check_sealed(text, source)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not all that is wrong with TOML is a TOMLDecodeError
        raise G2Error(f"the recipe {source} is not valid TOML: {str(error)[:200]}") from None


def parse_recipe(values: Mapping[str, Any], overrides: Sequence[str] = (), *, source: str = "given") -> Recipe:
    """Checks a recipe that is there as tables.

    Args:
        values: the tables.
        overrides: see `load_recipe`.
        source: what messages call the recipe.
    """
    _check_depth(values, source)
    tables = deepcopy(dict(values))
    problems = apply_overrides(tables, overrides)
    _check_depth(tables, source)
    for section in ("data", "train"):
        tables.setdefault(section, {})
    task = tables.get("task")
    if isinstance(task, str) and task in TASKS:
        try:
            recipe = TASKS[task].model_validate(tables)
        except ValidationError as error:
            problems += problems_of(error, TASKS[task])
    else:
        names = " or ".join(f'"{name}"' for name in TASKS)
        problems.append(
            f"task is missing: must be {names}" if task is None else f"task = {shown(task)}: must be {names}"
        )
        problems += _wrong_for_any_task(tables)
    if problems:
        or_more = " or more" if len(problems) >= MOST_TOLD else ""
        introduction = (
            f"the recipe {source} has {len(problems)} mistakes{or_more}:\n  "
            if len(problems) > 1
            else f"the recipe {source}: "
        )
        raise G2Error(introduction + "\n  ".join(problems))
    return recipe


def _wrong_for_any_task(tables: Mapping[str, Any]) -> list[str]:
    """What can be said of a recipe whose task is unknown."""
    each: list[list[str]] = []
    for task, recipe in TASKS.items():
        try:
            recipe.model_validate({**tables, "task": task})
            each.append([])
        except ValidationError as error:
            each.append(problems_of(error, recipe))
    return [problem for problem in each[0] if all(problem in others for others in each[1:])]


def _check_depth(values: Mapping[str, Any], source: str) -> None:
    """Raises for tables within tables within tables, before anything walks into them."""
    level: list[Any] = [values]
    for _ in range(_DEEPEST):
        inner = (one.values() if isinstance(one, Mapping) else one for one in level if isinstance(one, Mapping | list))
        level = [value for values in inner for value in values]
    if level:
        raise G2Error(f"the recipe {source} is nested more than {_DEEPEST} deep; a recipe has tables of three levels")


def _shipped_files() -> dict[str, Traversable]:
    folder = files("g2lstm") / "recipes"
    return {file.name.removesuffix(".toml"): file for file in folder.iterdir() if file.name.endswith(".toml")}


def _not_found(source: str) -> str:
    names = sorted(_shipped_files())
    if os.path.isfile(os.path.join(os.path.expanduser(source), "recipe.toml")):
        return f"{source} is a folder; for the recipe in it give {Path(source) / 'recipe.toml'}"
    close = get_close_matches(source, names, n=1)
    guess = f"; did you mean {close[0]!r}?" if close else ";"
    return f"no recipe {source!r}: it is neither a file nor a shipped recipe{guess} Shipped are: {', '.join(names)}"
