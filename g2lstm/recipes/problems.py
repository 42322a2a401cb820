"""Explains what is wrong with a recipe: the key, its value, what is allowed, and which key was probably meant."""

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

MAX_PROBLEMS = 50
_MAX_KEY = 100  # characters
_MAX_VALUE = 60


def problems_of(error: ValidationError, recipe: type[BaseModel]) -> list[str]:
    """One line for each mistake, up to fifty."""
    return [_problem(detail, recipe) for detail in error.errors(include_url=False)[:MAX_PROBLEMS]]


def dotted_keys(section: type[BaseModel], before: str = "") -> Iterator[str]:
    """Every key in a section and below, with dots: "model.hidden"."""
    for name, field in _fields(section).items():
        yield f"{before}{name}"
        for inner in _sections(field):
            yield from dotted_keys(inner, f"{before}{name}.")


def setting(key: str, value: Any) -> str:
    """A key and its value as a message shows them, abbreviated if long: `model.hidden = 0`."""
    try:
        text = json.dumps(value, default=str, ensure_ascii=False)
    except ValueError:
        text = "a number of thousands of digits"
    return f"{_abbreviate(key, _MAX_KEY)} = {_abbreviate(text, _MAX_VALUE)}"


def _problem(detail: Mapping[str, Any], recipe: type[BaseModel]) -> str:
    key, section = _locate(detail["loc"], recipe)
    value, context = detail["input"], detail.get("ctx", {})
    match detail["type"]:
        case "extra_forbidden":
            return f"{_abbreviate(key, _MAX_KEY)} is not a key{_meant(key, section, recipe)}"
        case "missing":
            return f"{key} is missing"
        case "value_error":
            given = key if isinstance(value, Mapping | None) else setting(key, value)
            return f"{given}: {context['error']}"
        case "union_tag_invalid":
            tag = context["discriminator"].strip("'")
            return f"{setting(f'{key}.{tag}', value[tag])}: must be one of {context['expected_tags']}"
        case "model_type" | "model_attributes_type":
            return f"{setting(key, value)}: must be a section with its own keys"
    reason = detail["msg"].replace("Input should", "must").replace("String should", "must")
    return f"{setting(key, value)}: {reason}"


def _locate(loc: Sequence[int | str], recipe: type[BaseModel]) -> tuple[str, type[BaseModel]]:
    """The dotted key of a place in a recipe, and the section it belongs to."""
    keys: list[str] = []
    section, inner = recipe, [recipe]
    for part in map(str, loc):
        if len(inner) > 1:  # among several kinds of section, this part is the name of one, not a key
            inner = [one for one in inner if one.model_fields["name"].default == part]
            continue
        keys.append(part)
        section, inner = (inner or [section])[0], []
        if field := _fields(section).get(part):
            inner = _sections(field)
    return ".".join(keys), section


def _fields(section: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _sections(field: FieldInfo) -> list[type[BaseModel]]:
    kind = field.annotation
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    return [member for member in members if isinstance(member, type) and issubclass(member, BaseModel)]


def _meant(key: str, section: type[BaseModel], recipe: type[BaseModel]) -> str:
    above, _, last = key.rpartition(".")
    siblings = list(_fields(section))
    if close := get_close_matches(last, siblings, n=1):
        return f"; did you mean {f'{above}.' if above else ''}{close[0]}?"
    elsewhere: dict[str, str] = {}
    for dotted in dotted_keys(recipe):
        elsewhere.setdefault(dotted.rpartition(".")[2], dotted)
    if close := get_close_matches(last, elsewhere, n=1, cutoff=0.8):
        return f"; did you mean {elsewhere[close[0]]}?"
    return f"; {above or 'a recipe'} has: {', '.join(siblings)}"


def _abbreviate(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
