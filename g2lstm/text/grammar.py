"""German and English sentences of a small grammar: pairs that need no download, and whose clauses are known."""

import hashlib
import random
from collections.abc import Sequence
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

from g2lstm.errors import G2Error
from g2lstm.text import lexicon
from g2lstm.text.cache import cache_dir, keep_file
from g2lstm.text.lexicon import Noun, Phrase, Verb

SIZES = {"train": 20_000, "valid": 500, "test": 500}
SEED = 1
SHORTEST, LONGEST = 4, 25  # words and punctuation of a German sentence
_OPEN, _CLOSE = "<,", ",>"  # commas until a sentence is complete: before a new clause, after one
_T = TypeVar("_T")


class GrammarPair(NamedTuple):
    """A German sentence and its English translation: lower-case words and punctuation with spaces between.

    A comma stands between two clauses and nowhere else. The word after it either begins a clause, whether subordinate,
    relative or main, or goes on with one that another clause interrupted. In

        der mann , der das haus kauft , schläft , weil er müde ist .

    the boundaries are 3 ("der") and 10 ("weil"), and the only return is 8 ("schläft").
    """

    source: str
    target: str
    boundaries: tuple[int, ...]  # for each clause but the first, the index of its first word in source.split()
    returns: tuple[int, ...]  # for each clause that was interrupted, the index of the word it goes on with


def grammar_pairs(split: str) -> list[GrammarPair]:
    """The pairs of a split: "train" has 20,000, "valid" and "test" 500 each, all different, the same everywhere.

    A sentence has one translation, which follows from its words alone, in either direction.
    """
    if split not in SIZES:
        raise G2Error(f"the embedded pairs have no split {split!r}; choose one of {', '.join(SIZES)}")
    return list(_all_pairs()[split])


def grammar_folder() -> Path:
    """The folder with the embedded `train.de`, `train.en` and so on; they are written at the first call."""
    texts = {
        f"{split}.{language}": "".join(f"{pair[side]}\n" for pair in pairs).encode()
        for split, pairs in _all_pairs().items()
        for side, language in enumerate(("de", "en"))
    }
    digest = hashlib.sha256(b"\0".join(texts.values())).hexdigest()
    folder = cache_dir() / "data" / f"embedded-mt-{digest[:12]}"
    for name, text in texts.items():
        keep_file(folder / name, text)
    return folder


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
    """Makes commas of the marks: of two that meet, or that meet the end, the later one is left."""
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
    bracket: str  # what stands at the end of a German main clause: a particle or an infinitive
    final: list[str]  # all of the German verb at the end of a subordinate clause
    english_verb: list[str]
    time: Phrase = Phrase([], [])
    rest: Phrase = Phrase([], [])  # object, place or predicate

    def main(self, *, time_first: bool = False) -> Phrase:
        """The verb is second: "er steht heute auf", "heute steht er auf"."""
        if time_first and self.time.german:
            inverted = self._replace(time=Phrase([], [])).inverted()
            return Phrase([*self.time.german, *inverted.german], [*self.time.english, *inverted.english])
        return Phrase([*self.subject.german, self.finite, *self._middle(), *self._end()], self._english())

    def inverted(self) -> Phrase:
        """The verb is first, since something else went before: "..., steht er heute auf"."""
        return Phrase([self.finite, *self.subject.german, *self._middle(), *self._end()], self._english())

    def subordinate(self) -> Phrase:
        """The verb is last: "..., weil er heute aufsteht"."""
        return Phrase([*self.subject.german, *self._middle(), *self.final], self._english())

    def _middle(self) -> list[str]:
        return [*self.time.german, *self.rest.german]

    def _end(self) -> list[str]:
        return [self.bracket] if self.bracket else []

    def _english(self) -> list[str]:
        return [*self.subject.english, *self.english_verb, *self.rest.english, *self.time.english]


class _Speaker:
    """Says one sentence after the other.

    Args:
        seed: decides which. Only `random()` is drawn from, which gives the same numbers in every version of Python.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def sentence(self) -> Phrase:
        """A whole sentence, with marks for commas in the German."""
        pattern = self._random()
        if pattern < 0.3:
            said = self._main()
        elif pattern < 0.55:
            said = self._join(self._main(), self._choose(lexicon.CONJUNCTIONS), self._clause().subordinate())
        elif pattern < 0.75:
            conjunction, first, second = (
                self._choose(lexicon.CONJUNCTIONS),
                self._clause().subordinate(),
                self._clause().inverted(),
            )
            said = Phrase(
                [*conjunction.german, *first.german, _OPEN, *second.german],
                [*conjunction.english, *first.english, ",", *second.english],
            )
        else:
            verb, conjunction = self._choose(lexicon.SPEECH)
            speech = self._with_verb(self._subject(verb, relative=True), verb).main()
            said = self._join(speech, conjunction, self._clause().subordinate())
            if self._happens(0.2):
                said = self._join(said, self._choose(lexicon.CONJUNCTIONS), self._clause(relatives=False).subordinate())
        return Phrase([*said.german, "."], [*said.english, "."])

    def _join(self, first: Phrase, conjunction: Phrase, second: Phrase) -> Phrase:
        return Phrase(
            [*first.german, _OPEN, *conjunction.german, *second.german],
            [*first.english, *conjunction.english, *second.english],
        )

    def _main(self) -> Phrase:
        return self._clause().main(time_first=self._happens(0.3))

    def _clause(self, *, relatives: bool = True) -> _Clause:
        """A clause with a subject of its own; with `relatives`, nouns may have relative clauses."""
        if self._happens(0.1):
            return self._predicate()
        verb = self._choose(lexicon.VERBS)
        return self._about(self._subject(verb, relative=relatives), verb, relatives=relatives)

    def _about(self, subject: Phrase, verb: Verb, *, relatives: bool) -> _Clause:
        """What a subject does."""
        clause = self._with_verb(subject, verb, self._choose(lexicon.MODALS) if self._happens(0.2) else None)
        has_relative = False
        if verb.case:
            # "er ruft den mann , der schläft , an" is right, but nobody says it.
            rest = self._noun_phrase(verb.objects, verb.case, relative=relatives and not verb.particle)
            has_relative = _OPEN in rest.german
            clause = clause._replace(rest=rest)
        elif not verb.particle and self._happens(0.5):
            clause = clause._replace(rest=self._choose(lexicon.PLACES))
        if not has_relative and self._happens(0.3):  # else English could not tell which clause the time belongs to
            clause = clause._replace(time=self._time())
        return clause

    def _predicate(self) -> _Clause:
        """Somebody or something is so, or so old."""
        if self._happens(0.4):
            years = lexicon.number(2 + self._below(28))
            rest = Phrase([*years.german, "jahre", "alt"], [*years.english, "years", "old"])
            return self._with_verb(self._subject(lexicon.BE), lexicon.BE)._replace(rest=rest)
        kind = self._choose(tuple(lexicon.ADJECTIVES_OF))
        adjective = self._choose(lexicon.ADJECTIVES_OF[kind])
        subject = self._noun_phrase((kind,), "nom", adjective=False)
        return self._with_verb(subject, lexicon.BE)._replace(rest=Phrase([adjective], [lexicon.ADJECTIVES[adjective]]))

    def _with_verb(self, subject: Phrase, verb: Verb, modal: Verb | None = None) -> _Clause:
        """The verb's forms for this subject."""
        if modal is None:
            finite, english = _agree(verb, subject)
            return _Clause(subject, finite, verb.particle, [verb.particle + finite], english.split())
        finite, english = _agree(modal, subject)
        infinitive = verb.particle + verb.plural
        return _Clause(subject, finite, infinitive, [infinitive, finite], f"{english} {verb.english_plural}".split())

    def _subject(self, verb: Verb, *, relative: bool = False) -> Phrase:
        if self._happens(0.35):
            return self._choose(lexicon.PRONOUNS)
        return self._noun_phrase(verb.subjects, "nom", relative=relative)

    def _noun_phrase(
        self, kinds: Sequence[str], case: str, *, relative: bool = False, adjective: bool = True
    ) -> Phrase:
        noun = self._choose([noun for noun in lexicon.NOUNS if noun.kind in kinds])
        determiner = self._choose(("der", "der", "ein", "mein", "number"))
        if (determiner == "number" and case == "dat") or (determiner == "mein" and noun.singular in lexicon.NOT_OWNED):
            determiner = "der"  # no noun here has a plural in the dative
        is_plural = determiner == "number" or (determiner != "ein" and case != "dat" and self._happens(0.3))
        form = "p" if is_plural else noun.gender
        if determiner == "number":
            (german,), english, _ = lexicon.number(2 + self._below(28))
            ending = lexicon.STRONG_PLURAL_ENDING
        elif determiner == "der":
            german, english, ending = lexicon.DEFINITE[case][form], ["the"], lexicon.WEAK_ENDING[case][form]
        else:
            german, ending = determiner + lexicon.INDEFINITE_ENDING[case][form], lexicon.MIXED_ENDING[case][form]
            english = ["my"] if determiner == "mein" else ["a"]
        words, translation = [german], english
        if adjective and self._happens(0.25):
            chosen = self._choose(lexicon.ADJECTIVES_OF[noun.kind])
            words, translation = [german, chosen.removesuffix("e") + ending], [*english, lexicon.ADJECTIVES[chosen]]
        if is_plural:
            words, translation = [*words, noun.plural], [*translation, noun.english_plural]
        else:
            words = [*words, (noun.oblique if case != "nom" else "") or noun.singular]
            translation = [*translation, noun.english]
        if translation[0] == "a" and translation[1][0] in "aeiou":
            translation[0] = "an"
        if relative and self._happens(0.3):
            clause = self._relative(noun, is_plural)
            words, translation = [*words, _OPEN, *clause.german, _CLOSE], [*translation, *clause.english]
        return Phrase(words, translation, is_plural)

    def _relative(self, noun: Noun, is_plural: bool) -> Phrase:
        """A clause about a noun, which is its subject or its object.

        "die frau , die das kind sieht" could be both. Here it is the subject, unless the pronoun or the clause's own
        subject shows that it is not: "den" and the datives do, and so does a personal pronoun.
        """
        form = "p" if is_plural else noun.gender
        is_person = noun.kind == "person"
        doing = [verb for verb in lexicon.VERBS if noun.kind in verb.subjects]
        if doing and self._happens(0.6):
            who = Phrase([lexicon.DEFINITE["nom"][form]], ["who" if is_person else "that"], is_plural)
            return self._about(who, self._choose(doing), relatives=False).subordinate()
        verb = self._choose([v for v in lexicon.VERBS if noun.kind in v.objects and (v.case == "acc" or not is_plural)])
        pronoun = lexicon.DEFINITE[verb.case][form]
        is_clear = pronoun == "den" or verb.case == "dat"
        subject = self._subject(verb) if is_clear else self._choose(lexicon.PRONOUNS)
        done = self._with_verb(
            subject, verb, self._choose(lexicon.MODALS) if self._happens(0.2) else None
        ).subordinate()
        return Phrase([pronoun, *done.german], ["whom" if is_person else "that", *done.english])

    def _time(self) -> Phrase:
        if self._happens(0.5):
            return self._choose(lexicon.TIMES)
        hour = lexicon.number(2 + self._below(11))
        return Phrase(["um", *hour.german, "uhr"], ["at", *hour.english, "o'clock"])

    def _below(self, limit: int) -> int:
        return int(self._random() * limit)

    def _choose(self, options: Sequence[_T]) -> _T:
        return options[self._below(len(options))]

    def _happens(self, probability: float) -> bool:
        return self._random() < probability


def _agree(verb: Verb, subject: Phrase) -> tuple[str, str]:
    return (verb.plural, verb.english_plural) if subject.is_plural else (verb.singular, verb.english)
