"""Says what is wrong with a recipe: the key, the value got, what is allowed, and which key may have been meant."""

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

MOST_TOLD = 50
_LONGEST_KEY = 100
_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def problems_of(error: ValidationError, recipe: type[BaseModel]) -> list[str]:
    """One line for each thing that is wrong, up to fifty."""
    return [_problem(detail, recipe) for detail in error.errors(include_url=False)[:MOST_TOLD]]


def dotted_keys(section: type[BaseModel], before: str = "") -> Iterator[str]:
    """Every key below a section, with dots: "model.hidden"."""
    for name, field in section.model_fields.items():
        key = f"{before}{field.alias or name}"
        yield key
        for inner in _sections(field.annotation):
            yield from dotted_keys(inner, f"{key}.")


def _problem(detail: Mapping[str, Any], recipe: type[BaseModel]) -> str:
    whole_key, section, kind = _locate(detail["loc"], recipe)
    key = whole_key if len(whole_key) <= _LONGEST_KEY else f"{whole_key[: _LONGEST_KEY - 3]}..."
    got = f"{key} = {shown(detail['input'])}"
    match detail["type"]:
        case "extra_forbidden":
            return f"{key} is not a key{_meant(key, section, recipe)}"
        case "missing":
            return f"{key} is missing: must be {_allowed(kind)}"
        case "value_error":
            reason = str(detail["ctx"]["error"])
            return f"{key}: {reason}" if isinstance(detail["input"], Mapping | None) else f"{got}: {reason}"
        case "union_tag_invalid" | "union_tag_not_found":
            tag = detail["ctx"]["discriminator"].strip("'")
            names = [_allowed(member.model_fields[tag].annotation) for member in _sections(kind)]
            value = detail["input"].get(tag) if isinstance(detail["input"], Mapping) else None
            got = f"{key}.{tag} is missing" if value is None else f"{key}.{tag} = {shown(value)}"
            return f"{got}: must be {' or '.join(names)}"
        case "finite_number":
            return f"{got}: must be {_allowed(kind).replace('a number', 'a finite number')}"
    return f"{got}: must be {_allowed(kind)}"


def _locate(loc: Sequence[int | str], recipe: type[BaseModel]) -> tuple[str, type[BaseModel], Any]:
    """The dotted key, the section it stands in, and the type it should have (None if there is no such key)."""
    keys: list[str] = []
    section = recipe
    kind: Any = None
    parts = [str(part) for part in loc]
    while parts:
        part = parts.pop(0)
        keys.append(part)
        field = next((f for name, f in section.model_fields.items() if part == (f.alias or name)), None)
        if field is None:
            return ".".join([*keys, *parts]), section, None
        kind = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        inner = _sections(field.annotation)
        if parts and len(inner) > 1:  # of several kinds of section the next part says which
            tag = parts.pop(0)
            inner = [one for one in inner if any(tag in get_args(f.annotation) for f in one.model_fields.values())]
        if parts and inner:
            section = inner[0]
    return ".".join(keys), section, kind


def _sections(kind: Any) -> list[type[BaseModel]]:
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    return [member for member in members if isinstance(member, type) and issubclass(member, BaseModel)]


def _allowed(kind: Any, limits: Mapping[str, float] = types.MappingProxyType({})) -> str:
    """What a value of this type may be, in words."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        found = dict(limits)
        for item in arguments[1:]:
            for each in getattr(item, "metadata", [item]):
                found |= {name: getattr(each, name) for name in ("gt", "ge", "lt", "le") if hasattr(each, name)}
        return _allowed(arguments[0], found)
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(json.dumps(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_allowed(one, limits) for one in arguments if one is not types.NoneType))
    if _sections(kind):
        return "a section with keys of its own"
    return _NAMES.get(kind, "something else") + _in_words(limits)


def _in_words(limits: Mapping[str, float]) -> str:
    low = f"at least {limits['ge']}" if "ge" in limits else f"above {limits['gt']}" if "gt" in limits else ""
    high = f"at most {limits['le']}" if "le" in limits else f"below {limits['lt']}" if "lt" in limits else ""
    bounds = " and ".join(bound for bound in (low, high) if bound)
    return f", {bounds}" if bounds else ""


def _meant(key: str, section: type[BaseModel], recipe: type[BaseModel]) -> str:
    above, _, last = key.rpartition(".")
    siblings = [field.alias or name for name, field in section.model_fields.items()]
    if close := get_close_matches(last, siblings, n=1):
        return f"; did you mean {f'{above}.' if above else ''}{close[0]}?"
    elsewhere: dict[str, str] = {}
    for dotted in dotted_keys(recipe):
        elsewhere.setdefault(dotted.rpartition(".")[2], dotted)
    if close := get_close_matches(last, elsewhere, n=1, cutoff=0.8):
        return f"; did you mean {elsewhere[close[0]]}?"
    return f"; {above or 'a recipe'} has: {', '.join(siblings)}"


def shown(value: Any) -> str:
    """A value of a recipe as a message has it, shortened."""
    try:
        text = json.dumps(value, default=str, ensure_ascii=False)
    except ValueError:
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
