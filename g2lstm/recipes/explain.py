"""What each key of a recipe means, from the docstrings of the sections, and what is wrong with a recipe."""

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from textwrap import wrap
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from g2lstm.errors import G2Error

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


_TYPES = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}
_LIMITS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
_WIDTH = 100  # of comments
_HUGE = 2**20  # a limit this large is only there to keep computers from choking


class Key(NamedTuple):
    """One key of a recipe, or a section."""

    name: str  # "model.hidden"; keys of one of several kinds of section name it: "train.optimizer.lr (adamw)"
    allowed: str  # values
    default: str  # "" if there is none
    meaning: str

    def __str__(self) -> str:
        default = f"; default {self.default}" if self.default else ""
        return f"{self.name}: {self.allowed}{default}\n  {self.meaning}"


def keys_of(section: type[BaseModel], before: str = "", kind: str = "") -> Iterator[Key]:
    """Every key in a section and below, in order."""
    schemas = section.model_json_schema()["properties"]
    for name, field in section.model_fields.items():
        alias = field.alias or name
        kinds = [one for one in get_args(field.annotation) or (field.annotation,) if _is_section(one)]
        meaning = " ".join((field.description or "").split())
        if kinds and not meaning:
            meaning = " ".join((kinds[0].__doc__ or "").split())
        allowed = "a section" if kinds else allowed_values(schemas[alias])
        yield Key(f"{before}{alias}{kind}", allowed, "" if kinds else _default(field), meaning)
        for one in kinds if len(kinds) == 1 else ():
            yield from keys_of(one, f"{before}{alias}.", kind)
        if len(kinds) > 1:
            names = [one.model_fields["name"].default for one in kinds]
            usual = field.get_default(call_default_factory=True).name
            described = " ".join(f"{name}: {one.__doc__}" for name, one in zip(names, kinds, strict=True))
            yield Key(f"{before}{alias}.name", _one_of(names), json.dumps(usual), described)
            for name, one in zip(names, kinds, strict=True):
                yield from list(keys_of(one, f"{before}{alias}.", f" ({name})"))[1:]


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _default(field: FieldInfo) -> str:
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    return "" if value is None else json.dumps(value)


def allowed_values(schema: Mapping[str, Any]) -> str:
    """The values that a JSON schema allows, in words."""
    choices = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    chosen: Mapping[str, Any] = choices[0]
    if "const" in chosen or "enum" in chosen:
        return _one_of(chosen.get("enum") or [chosen["const"]])
    limits = [f"{words} {chosen[name]:g}" for name, words in _LIMITS.items() if chosen.get(name, _HUGE) < _HUGE]
    return ", ".join([_TYPES[chosen["type"]], *([" and ".join(limits)] if limits else [])])


def _one_of(values: Sequence[str]) -> str:
    *others, last = map(json.dumps, values)
    return f"{', '.join(others)} or {last}" if others else last


def explain(name: str, recipes: Mapping[str, type[BaseModel]]) -> list[str]:
    """What is known about a key or a section, for people; recipes by task. Tasks that differ are told apart."""
    found: dict[str, list[str]] = {}
    every: list[str] = []
    for task, recipe in recipes.items():
        for key in keys_of(recipe):
            plain = key.name.partition(" ")[0]
            every.append(plain)
            if plain == name or plain.startswith(f"{name}.") or plain.endswith(f".{name}"):
                found.setdefault(str(key), []).append(task)
    if not found:
        close = get_close_matches(name, [*every, *(one.rpartition(".")[2] for one in every)], n=1)
        sections = [one for one in dict.fromkeys(every) if "." not in one]
        hint = f"did you mean {close[0]}?" if close else f"its sections are {', '.join(sections)}"
        raise G2Error(f"a recipe has no key {name!r}; {hint}")
    return [text if len(tasks) == len(recipes) else f"[{', '.join(tasks)}] {text}" for text, tasks in found.items()]


def commented(tables: Mapping[str, Any], recipe: type[BaseModel]) -> str:
    """Tables as TOML, with what each key means as a comment before it."""
    return "".join(_section(tables, "", {key.name: key.meaning for key in keys_of(recipe)})).lstrip("\n")


def _section(tables: Mapping[str, Any], before: str, meanings: Mapping[str, str]) -> Iterator[str]:
    for name, value in tables.items():
        if not isinstance(value, Mapping):
            key = f"{before}{name}"
            meaning = meanings.get(f"{key} ({tables.get('name')})") or meanings[key]
            yield from (f"# {line}\n" for line in wrap(meaning, _WIDTH))
            yield f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
    for name, value in tables.items():
        if isinstance(value, Mapping):
            yield f"\n[{before}{name}]\n"
            yield from _section(value, f"{before}{name}.", meanings)


def table_of_keys(recipe: type[BaseModel]) -> str:
    """All keys of a recipe as a Markdown table."""
    rows: Sequence[Key] = list(keys_of(recipe))
    cells = ((f"`{key.name}`", key.allowed, f"`{key.default}`" if key.default else "", key.meaning) for key in rows)
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in cells]
    return "\n".join(["key | values | default | meaning", "--- | --- | --- | ---", *lines])
