"""Sets single keys of a recipe from text such as `model.tau=0.5`."""

import re
import tomllib
from collections.abc import Sequence
from datetime import date, datetime, time
from typing import Any

from g2lstm.recipes.sections import GateSection

_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
# To set the first is to take back what was chosen to go with its former value, or its default.
_REPLACES = {
    "data.name": ["data.path"],
    "data.path": ["data.name"],
    "model.method": ["model.tau"],
    "train.batch_size": ["train.batch_tokens"],
    "train.batch_tokens": ["train.batch_size"],
}
_DEFAULTS = {"model.method": GateSection.model_fields["method"].default}


def apply_overrides(tables: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    """Sets keys in `tables`, in place, and returns what is wrong with the overrides.

    A key that only makes sense with the former value of another goes with it, unless it is set too: `data.name` with
    `data.path` and the reverse, `train.batch_size` with `train.batch_tokens` and the reverse, `model.tau` with
    `model.method`, an optimizer's settings with `train.optimizer.name`.
    """
    problems = []
    settings: dict[str, str] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if equals and _KEY.fullmatch(key.strip()):
            settings[key.strip()] = value.strip()
        else:
            problems.append(f"the override {override!r} is not of the form a.b=value, for example train.epochs=3")
    for key, value in settings.items():
        before, now = _get(tables, key), parse_value(value) if value else None
        default = _DEFAULTS.get(key)
        if (default if now is None else now) != (default if before is None else before):
            for former in _replaced(tables, key):
                if former not in settings:
                    _set(tables, former, None)
    for key, value in settings.items():
        if not _set(tables, key, parse_value(value) if value else None):
            problems.append(f"{key} cannot be set: {key.rpartition('.')[0]} is a value, not a section")
    return problems


def parse_value(text: str) -> Any:
    """A number, truth value, list or quoted text as TOML writes it; anything else is text as it stands."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # some are no TOMLDecodeErrors, such as that of a number of 5000 digits
        return text
    value = parsed["value"]
    return text if len(parsed) > 1 or isinstance(value, date | datetime | time) else value


def _replaced(tables: dict[str, Any], key: str) -> list[str]:
    if key == "train.optimizer.name" and isinstance(optimizer := _get(tables, "train.optimizer"), dict):
        return [f"train.optimizer.{name}" for name in optimizer if name != "name"]
    return _REPLACES.get(key, [])


def _get(tables: dict[str, Any], key: str) -> Any:
    value: Any = tables
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _set(tables: dict[str, Any], key: str, value: Any) -> bool:
    """Sets a key, or takes it out if the value is None; False if there is no section to set it in."""
    *sections, last = key.split(".")
    table: Any = tables
    for section in sections:
        if value is None and section not in table:
            return True
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            return False
    if value is None:
        table.pop(last, None)
    else:
        table[last] = value
    return True
