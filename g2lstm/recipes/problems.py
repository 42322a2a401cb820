"""Explains what is wrong with a recipe: the key, its value, what is allowed, and which key was probably meant."""

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

MAX_PROBLEMS = 50
_MAX_KEY = 100  # characters
_MAX_VALUE = 60


def problems_of(error: ValidationError, recipe: type[BaseModel]) -> list[str]:
    """One line for each mistake, up to fifty."""
    known = list(dict.fromkeys(dotted_keys(recipe)))
    return [_problem(detail, known) for detail in error.errors(include_url=False)[:MAX_PROBLEMS]]


def dotted_keys(section: type[BaseModel], before: str = "") -> Iterator[str]:
    """Every key in a section and below, with dots: "model.hidden"; a key that several kinds of section have repeats."""
    for name, field in section.model_fields.items():
        key = f"{before}{field.alias or name}"
        yield key
        for kind in get_args(field.annotation) or (field.annotation,):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from dotted_keys(kind, f"{key}.")


def setting(key: str, value: Any) -> str:
    """A key and its value as a message shows them, abbreviated if long: `model.hidden = 0`."""
    try:
        text = json.dumps(value, default=str, ensure_ascii=False)
    except ValueError:
        text = "a number of thousands of digits"
    return f"{_abbreviate(key, _MAX_KEY)} = {_abbreviate(text, _MAX_VALUE)}"


def _problem(detail: Mapping[str, Any], known: Sequence[str]) -> str:
    *sections, last = map(str, detail["loc"])
    key = ""
    for section in sections:
        if f"{key}{section}" in known:  # otherwise it names one of several kinds of section
            key += f"{section}."
    key += last
    value, context = detail["input"], detail.get("ctx", {})
    match detail["type"]:
        case "extra_forbidden":
            return f"{_abbreviate(key, _MAX_KEY)} is not a key{_meant(key, known)}"
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


def _meant(key: str, known: Sequence[str]) -> str:
    above, _, last = key.rpartition(".")
    if key in known:
        return f" of this kind of {above}, only of another kind"
    siblings = [one for one in known if one.rpartition(".")[0] == above]
    for keys, cutoff in ((siblings, 0.6), (known, 0.8)):
        names = {one.rpartition(".")[2]: one for one in reversed(keys)}
        if close := get_close_matches(last, names, n=1, cutoff=cutoff):
            return f"; did you mean {names[close[0]]}?"
    return f"; {above or 'a recipe'} has: {', '.join(one.rpartition('.')[2] for one in siblings)}"


def _abbreviate(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
