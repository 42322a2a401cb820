"""German and English sentences from a small grammar: pairs that need no download, with clauses known in advance."""

import random
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import islice, pairwise
from typing import Annotated, NamedTuple, TypeVar

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


SIZES = {"train": 20_000, "valid": 500, "test": 500}
SEED = 1
SHORTEST, LONGEST = 4, 25  # words and punctuation marks of a German sentence
_OPEN, _CLOSE = "<,", ",>"  # stand for commas until a sentence is complete: before a new clause, after one
_T = TypeVar("_T")


class GrammarPair(NamedTuple):
    """A German sentence and its English translation: lower-case words and punctuation, separated by spaces.

    A comma always separates two clauses. The word after it either begins a clause (subordinate, relative or main), or
    resumes one that another clause interrupted. In

        der mann , der das haus kauft , schläft , weil er müde ist .

    the boundaries are 3 ("der") and 10 ("weil"), and the only return is 8 ("schläft").
    """

    source: str
    target: str
    boundaries: tuple[int, ...]  # for each clause but the first, the index of its first word in source.split()
    returns: tuple[int, ...]  # for each interrupted clause, the index of the word that resumes it


def grammar_pairs(split: str) -> list[GrammarPair]:
    """The pairs of a split: 20,000 in "train", 500 each in "valid" and "test", all different, the same everywhere.

    A sentence has exactly one translation, in either direction, and its words alone determine it.
    """
    return list(_all_pairs()[split])


def grammar_files() -> dict[str, str]:
    """The embedded `train.de`, `train.en` and so on, and what they hold."""
    return {
        f"{split}.{language}": "".join(f"{pair[side]}\n" for pair in pairs)
        for split, pairs in _all_pairs().items()
        for side, language in enumerate(("de", "en"))
    }


@cache
def _all_pairs() -> dict[str, tuple[GrammarPair, ...]]:
    speaker = _Speaker(SEED)
    pairs: dict[str, GrammarPair] = {}
    while len(pairs) < sum(SIZES.values()):
        pair = _pair(speaker.sentence())
        if _is_wanted(pair):
            pairs[pair.source] = pair
    remaining = iter(pairs.values())
    return {split: tuple(islice(remaining, size)) for split, size in SIZES.items()}


def _is_wanted(pair: GrammarPair) -> bool:
    """Neither too short nor too long, and not "the girls who dance dance"."""
    no_word_twice = all(word != following for word, following in pairwise(pair.target.split()))
    return SHORTEST <= len(pair.source.split()) <= LONGEST and no_word_twice


def _pair(sentence: Phrase) -> GrammarPair:
    """Turns the marks into commas; where two marks meet, or one meets the full stop, only the later one counts."""
    words: list[str] = []
    boundaries, returns = [], []
    for word, following in pairwise([*sentence.german, ""]):
        if word == _CLOSE and following in (_OPEN, _CLOSE, "."):
            continue
        words.append("," if word in (_OPEN, _CLOSE) else word)
        if word == _OPEN:
            boundaries.append(len(words))
        elif word == _CLOSE:
            returns.append(len(words))
    return GrammarPair(" ".join(words), " ".join(sentence.english), tuple(boundaries), tuple(returns))


class _Clause(NamedTuple):
    """The parts of a clause, before they are put in order."""

    subject: Phrase
    finite: str  # the German verb that agrees with the subject
    bracket: list[str]  # what ends a German main clause: a particle or an infinitive, if any
    final: list[str]  # the whole German verb, at the end of a subordinate clause
    english_verb: list[str]
    time: Phrase = Phrase([], [])
    rest: Phrase = Phrase([], [])  # object, place or predicate

    def main(self, *, time_first: bool = False) -> Phrase:
        """The verb comes second: "er steht heute auf", "heute steht er auf"."""
        if time_first and self.time.german:
            return self.time.followed_by(self._replace(time=Phrase([], [])).inverted())
        return Phrase([*self.subject.german, self.finite, *self._middle(), *self.bracket], self._english())

    def inverted(self) -> Phrase:
        """The verb comes first, because something precedes the clause: "..., steht er heute auf"."""
        return Phrase([self.finite, *self.subject.german, *self._middle(), *self.bracket], self._english())

    def subordinate(self) -> Phrase:
        """The verb comes last: "..., weil er heute aufsteht"."""
        return Phrase([*self.subject.german, *self._middle(), *self.final], self._english())

    def _middle(self) -> list[str]:
        return [*self.time.german, *self.rest.german]

    def _english(self) -> list[str]:
        return [*self.subject.english, *self.english_verb, *self.rest.english, *self.time.english]


class _Speaker:
    """Makes up one sentence after another; only `random()` is called, which is the same in every version of Python."""

    def __init__(self, seed: int, lexicon: Lexicon | None = None) -> None:
        self._random = random.Random(seed).random
        self._words = load_lexicon() if lexicon is None else lexicon

    def sentence(self) -> Phrase:
        """A whole sentence, with marks for commas in the German."""
        comma, english_comma = Phrase([_OPEN], []), Phrase([_OPEN], [","])
        conjunctions, pattern = self._words.conjunctions, self._random()
        if pattern < 0.3:
            said = self._main()
        elif pattern < 0.55:
            said = self._main().followed_by(comma, self._choose(conjunctions), self._clause().subordinate())
        elif pattern < 0.75:
            said = self._choose(conjunctions).followed_by(
                self._clause().subordinate(), english_comma, self._clause().inverted()
            )
        else:
            verb, conjunction = self._choose(self._words.speech)
            speech = self._with_verb(self._subject(verb, relative=True), verb).main()
            said = speech.followed_by(comma, conjunction, self._clause().subordinate())
            if self._happens(0.2):
                reason = self._choose(conjunctions).followed_by(self._clause(relatives=False).subordinate())
                said = said.followed_by(comma, reason)
        return said.followed_by(Phrase(["."], ["."]))

    def _main(self) -> Phrase:
        return self._clause().main(time_first=self._happens(0.3))

    def _clause(self, *, relatives: bool = True) -> _Clause:
        """A clause with its own subject; with `relatives`, its nouns may have relative clauses."""
        if self._happens(0.1):
            return self._predicate()
        verb = self._choose(self._words.verbs)
        return self._about(self._subject(verb, relative=relatives), verb, relatives=relatives)

    def _about(self, subject: Phrase, verb: Verb, *, relatives: bool) -> _Clause:
        """A clause that says what a subject does."""
        clause = self._with_verb(subject, verb, self._modal())
        has_relative = False
        if verb.case:
            # "er ruft den mann , der schläft , an" is correct, but nobody says it.
            rest = self._noun_phrase(verb.objects, verb.case, relative=relatives and not verb.particle)
            has_relative = _OPEN in rest.german
            clause = clause._replace(rest=rest)
        elif not verb.particle and self._happens(0.5):
            clause = clause._replace(rest=self._choose(self._words.places))
        if not has_relative and self._happens(0.3):  # after a relative clause, English would not show whose time it is
            clause = clause._replace(time=self._time())
        return clause

    def _predicate(self) -> _Clause:
        """A clause that says what somebody or something is like, or how old."""
        be = self._words.be
        if self._happens(0.4):
            age = self._words.number(2 + self._below(28)).followed_by(Phrase(["jahre", "alt"], ["years", "old"]))
            return self._with_verb(self._subject(be), be)._replace(rest=age)
        kind = self._choose(list(self._words.adjectives_of))
        adjective = self._choose(self._words.adjectives_of[kind])
        subject = self._noun_phrase((kind,), "nom", adjective=False)
        return self._with_verb(subject, be)._replace(rest=Phrase([adjective], [self._words.adjectives[adjective]]))

    def _with_verb(self, subject: Phrase, verb: Verb, modal: Verb | None = None) -> _Clause:
        """A clause of subject and verb, which agree."""
        first = modal or verb
        finite, english = (first.plural, first.english_plural) if subject.is_plural else (first.singular, first.english)
        if modal is None:
            particle = [verb.particle] if verb.particle else []
            return _Clause(subject, finite, particle, [verb.particle + finite], english.split())
        infinitive = verb.particle + verb.plural
        return _Clause(subject, finite, [infinitive], [infinitive, finite], f"{english} {verb.english_plural}".split())

    def _modal(self) -> Verb | None:
        return self._choose(self._words.modals) if self._happens(0.2) else None

    def _subject(self, verb: Verb, *, relative: bool = False) -> Phrase:
        if self._happens(0.35):
            return self._choose(self._words.pronouns)
        return self._noun_phrase(verb.subjects, "nom", relative=relative)

    def _noun_phrase(
        self, kinds: Sequence[str], case: str, *, relative: bool = False, adjective: bool = True
    ) -> Phrase:
        words = self._words
        noun = self._choose([noun for noun in words.nouns if noun.kind in kinds])
        determiner = self._choose(("der", "der", "ein", "mein", "number"))
        if (determiner == "number" and case == "dat") or (determiner == "mein" and noun.singular in words.not_owned):
            determiner = "der"
        is_plural = determiner == "number" or (determiner != "ein" and case != "dat" and self._happens(0.3))
        form = "p" if is_plural else noun.gender
        if determiner == "number":
            german, english, _ = words.number(2 + self._below(28))
            ending = "e"
        elif determiner == "der":
            german, english, ending = [words.definite[case][form]], ["the"], words.weak_ending[case][form]
        else:
            german, ending = [determiner + words.indefinite_ending[case][form]], words.mixed_ending[case][form]
            english = ["my"] if determiner == "mein" else ["a"]
        if adjective and self._happens(0.25):
            chosen = self._choose(words.adjectives_of[noun.kind])
            german, english = [*german, chosen.removesuffix("e") + ending], [*english, words.adjectives[chosen]]
        if is_plural:
            german, english = [*german, noun.plural], [*english, noun.english_plural]
        else:
            singular = (noun.oblique if case != "nom" else "") or noun.singular
            german, english = [*german, singular], [*english, noun.english]
        if english[0] == "a" and english[1][0] in "aeiou":
            english[0] = "an"
        if relative and self._happens(0.3):
            clause = self._relative(noun, is_plural)
            german, english = [*german, _OPEN, *clause.german, _CLOSE], [*english, *clause.english]
        return Phrase(german, english, is_plural)

    def _relative(self, noun: Noun, is_plural: bool) -> Phrase:
        """A clause about a noun, which is its subject or its object.

        "die frau , die das kind sieht" could be either. Here it is the subject, unless the relative pronoun ("den" or a
        dative) or a personal pronoun as the clause's own subject shows that it is the object.
        """
        form = "p" if is_plural else noun.gender
        is_person = noun.kind == "person"
        doing = [verb for verb in self._words.verbs if noun.kind in verb.subjects]
        if doing and self._happens(0.6):
            who = Phrase([self._words.definite["nom"][form]], ["who" if is_person else "that"], is_plural)
            return self._about(who, self._choose(doing), relatives=False).subordinate()
        done = [verb for verb in self._words.verbs if noun.kind in verb.objects]
        verb = self._choose([verb for verb in done if verb.case == "acc" or not is_plural])
        pronoun = self._words.definite[verb.case][form]
        is_clear = pronoun == "den" or verb.case == "dat"
        subject = self._subject(verb) if is_clear else self._choose(self._words.pronouns)
        clause = self._with_verb(subject, verb, self._modal()).subordinate()
        return Phrase([pronoun], ["whom" if is_person else "that"]).followed_by(clause)

    def _time(self) -> Phrase:
        if self._happens(0.5):
            return self._choose(self._words.times)
        hour = self._words.number(2 + self._below(11))
        return Phrase(["um"], ["at"]).followed_by(hour, Phrase(["uhr"], ["o'clock"]))

    def _below(self, limit: int) -> int:
        return int(self._random() * limit)

    def _choose(self, options: Sequence[_T]) -> _T:
        return options[self._below(len(options))]

    def _happens(self, probability: float) -> bool:
        return self._random() < probability
