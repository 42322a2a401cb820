"""The words of the embedded translation corpus, read from lexicon.toml."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Annotated, NamedTuple

from pydantic import BaseModel, BeforeValidator

Words = Annotated[list[str], BeforeValidator(str.split)]  # a string in the file
Kinds = Annotated[tuple[str, ...], BeforeValidator(str.split)]  # likewise
Forms = dict[str, dict[str, str]]  # by case, then by gender or "p" for plural


class Noun(NamedTuple):
    """A row of `nouns` in lexicon.toml."""

    kind: str
    gender: str
    singular: str
    plural: str
    english: str
    english_plural: str
    oblique: str = ""


class Verb(NamedTuple):
    """A row of `verbs` in lexicon.toml."""

    particle: str
    singular: str
    plural: str
    english: str
    english_plural: str
    subjects: Kinds
    case: str = ""
    objects: Kinds = ()


class Phrase(NamedTuple):
    """Some words in both languages."""

    german: Words
    english: Words
    is_plural: bool = False

    def followed_by(self, *others: "Phrase") -> "Phrase":
        """These words, followed by the other words, in both languages."""
        german = [word for phrase in (self, *others) for word in phrase.german]
        return Phrase(german, [word for phrase in (self, *others) for word in phrase.english])


class Lexicon(BaseModel):
    """The tables of lexicon.toml, which explains them."""

    nouns: list[Noun]
    not_owned: list[str]
    verbs: list[Verb]
    be: Verb
    modals: list[Verb]
    speech: list[tuple[Verb, Phrase]]
    conjunctions: list[Phrase]
    pronouns: list[Phrase]
    times: list[Phrase]
    places: list[Phrase]
    numbers: list[tuple[str, str]]
    adjectives: dict[str, str]
    adjectives_of: dict[str, Words]
    definite: Forms
    indefinite_ending: Forms
    weak_ending: Forms
    mixed_ending: Forms

    def number(self, value: int) -> Phrase:
        """A number from 2 to 29 as one word: "einundzwanzig", "twenty-one"."""
        if value <= 20:
            german, english = self.numbers[value - 2]
            return Phrase([german], [english], True)
        german, english = ("ein", "one") if value == 21 else self.numbers[value - 22]
        return Phrase([f"{german}undzwanzig"], [f"twenty-{english}"], True)


@cache
def load_lexicon() -> Lexicon:
    """The words that sentences are made of."""
    return Lexicon.model_validate(tomllib.loads((files("g2lstm.text") / "lexicon.toml").read_text(encoding="utf-8")))
