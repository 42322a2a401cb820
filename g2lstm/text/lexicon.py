"""The words of the embedded translation corpus, read from lexicon.toml."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple


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
    subjects: str
    case: str = ""
    objects: str = ""


class Phrase(NamedTuple):
    """Some words in both languages."""

    german: list[str]
    english: list[str]
    is_plural: bool = False

    def followed_by(self, *others: "Phrase") -> "Phrase":
        """These words, then those of the others, in both languages."""
        german = [word for phrase in (self, *others) for word in phrase.german]
        return Phrase(german, [word for phrase in (self, *others) for word in phrase.english])


class Lexicon(NamedTuple):
    """The tables of lexicon.toml, which explains them."""

    nouns: Sequence[Noun]
    not_owned: Sequence[str]
    verbs: Sequence[Verb]
    be: Verb
    modals: Sequence[Verb]
    speech: Sequence[tuple[Verb, Phrase]]
    conjunctions: Sequence[Phrase]
    pronouns: Sequence[Phrase]
    times: Sequence[Phrase]
    places: Sequence[Phrase]
    numbers: Sequence[tuple[str, str]]
    adjectives: Mapping[str, str]
    adjectives_of: Mapping[str, Sequence[str]]
    definite: Mapping[str, Mapping[str, str]]
    indefinite_ending: Mapping[str, Mapping[str, str]]
    weak_ending: Mapping[str, Mapping[str, str]]
    mixed_ending: Mapping[str, Mapping[str, str]]

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

    def phrases(rows: Iterable[Sequence[str]]) -> list[Phrase]:
        return [Phrase(german.split(), english.split(), bool(is_plural)) for german, english, *is_plural in rows]

    tables = tomllib.loads((files("g2lstm.text") / "lexicon.toml").read_text(encoding="utf-8"))
    tables["nouns"] = [Noun(*row) for row in tables["nouns"]]
    tables["be"] = Verb(*tables["be"])
    for name in ("verbs", "modals"):
        tables[name] = [Verb(*row) for row in tables[name]]
    for name in ("conjunctions", "pronouns", "times", "places"):
        tables[name] = phrases(tables[name])
    tables["speech"] = [(Verb(*verb), *phrases([conjunction])) for verb, conjunction in tables["speech"]]
    tables["adjectives_of"] = {kind: words.split() for kind, words in tables["adjectives_of"].items()}
    return Lexicon(**tables)
