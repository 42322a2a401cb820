import hashlib
from itertools import pairwise

import pytest

from g2lstm.text import grammar
from g2lstm.text.grammar import GrammarPair, Phrase, Verb, grammar_files, grammar_pairs, load_lexicon

SPLITS = {"train": 20_000, "valid": 500, "test": 500}
LEXICON = load_lexicon()
NOUNS = {noun.singular: noun for noun in LEXICON.nouns}
VERBS = {verb.particle + verb.plural: verb for verb in (*LEXICON.verbs, *LEXICON.modals, LEXICON.be)}


@pytest.fixture(scope="module")
def pairs() -> list[GrammarPair]:
    return [pair for split in SPLITS for pair in grammar_pairs(split)]


def test_the_splits_share_no_sentence(pairs: list[GrammarPair]) -> None:
    assert {split: len(grammar_pairs(split)) for split in SPLITS} == SPLITS
    for side in (0, 1):
        assert len({pair[side] for pair in pairs}) == 21_000


def test_the_sentences_are_the_same_everywhere(pairs: list[GrammarPair]) -> None:
    text = "\n".join(f"{pair.source}\t{pair.target}\t{pair.boundaries}\t{pair.returns}" for pair in pairs)
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "7e10f3700a74cc90cf6b999d7e1d1525a39b4f9da967fe9e01fc6dff71fa8fbe"
    )


def test_how_large_they_are(pairs: list[GrammarPair]) -> None:
    for side, types, longest in ((0, 252, 25), (1, 201, 27)):
        sentences = [pair[side].split() for pair in pairs]
        training = {word for sentence in sentences[:20_000] for word in sentence}
        assert len(training) == types
        assert {word for sentence in sentences[20_000:] for word in sentence} <= training
        assert max(map(len, sentences)) == longest
        assert all(sentence[-1] == "." and sentence.count(".") == 1 for sentence in sentences)
        assert all(word == word.lower() for word in training)
    assert min(len(pair.source.split()) for pair in pairs) == 4
    assert 0.7 < sum(bool(pair.boundaries) for pair in pairs) / len(pairs) < 0.9
    assert 0.2 < sum(bool(pair.returns) for pair in pairs) / len(pairs) < 0.4


def test_a_sentence_has_one_translation() -> None:
    speaker = grammar._Speaker(seed=99)
    forth: dict[str, str] = {}
    back: dict[str, str] = {}
    for _ in range(10_000):
        pair = grammar._pair(speaker.sentence())
        assert forth.setdefault(pair.source, pair.target) == pair.target
        assert back.setdefault(pair.target, pair.source) == pair.source


def test_clauses_begin_and_go_on_after_commas(pairs: list[GrammarPair]) -> None:
    conjunctions = {"weil", "obwohl", "wenn", "bevor", "während", "dass", "ob"}
    relatives = {"der", "die", "das", "den", "dem"}
    for pair in pairs:
        words = pair.source.split()
        assert ", ," not in pair.source
        assert ", ." not in pair.source
        after_commas = [index for index, word in enumerate(words, 1) if word == ","]
        assert sorted(pair.boundaries + pair.returns) == after_commas
        assert not set(pair.boundaries) & set(pair.returns)
        is_inverted = words[0] in conjunctions
        begun = [words[index] for index in pair.boundaries if words[index] not in conjunctions | relatives]
        assert len(begun) == is_inverted  # the main clause, with its verb first
        assert sum(words[index] in relatives for index in pair.boundaries) >= len(pair.returns)


@pytest.mark.parametrize(
    ("noun", "case", "phrases"),
    [
        ("hund", "nom", "der kleine hund, ein kleiner hund, mein kleiner hund"),
        ("hund", "acc", "den kleinen hund, einen kleinen hund, meinen kleinen hund"),
        ("hund", "dat", "dem kleinen hund, einem kleinen hund, meinem kleinen hund"),
        ("katze", "nom", "die kleine katze, eine kleine katze, meine kleine katze"),
        ("katze", "acc", "die kleine katze, eine kleine katze, meine kleine katze"),
        ("katze", "dat", "der kleinen katze, einer kleinen katze, meiner kleinen katze"),
        ("pferd", "nom", "das kleine pferd, ein kleines pferd, mein kleines pferd"),
        ("pferd", "acc", "das kleine pferd, ein kleines pferd, mein kleines pferd"),
        ("pferd", "dat", "dem kleinen pferd, einem kleinen pferd, meinem kleinen pferd"),
        ("junge", "nom", "der kleine junge, ein kleiner junge"),
        ("junge", "acc", "den kleinen jungen, einen kleinen jungen"),
        ("junge", "dat", "dem kleinen jungen, einem kleinen jungen"),
    ],
)
def test_declension(noun: str, case: str, phrases: str) -> None:
    one = NOUNS[noun]
    singular, plural = set(phrases.split(", ")), set()
    if case != "dat":
        plural = {f"die kleinen {one.plural}", f"zwei kleine {one.plural}"}
        if noun != "junge":  # whom nobody owns
            plural.add(f"meine kleinen {one.plural}")
    speaker = grammar._Speaker(1, LEXICON.model_copy(update={"nouns": [one], "adjectives_of": {one.kind: ["klein"]}}))
    speaker._below = lambda limit: 0 if limit == 28 else int(speaker._random() * limit)  # the only number is two
    said = [speaker._noun_phrase((one.kind,), case) for _ in range(1000)]
    for expected, is_plural in ((singular, False), (plural, True)):
        without_adjective = {" ".join(phrase.split()[::2]) for phrase in expected}
        found = [phrase for phrase in said if phrase.is_plural == is_plural]
        assert {" ".join(phrase.german) for phrase in found} == expected | without_adjective
        assert {phrase.english[-1] for phrase in found} <= {one.english_plural if is_plural else one.english}


def test_a_relative_clause_can_be_read_in_one_way() -> None:
    speaker = grammar._Speaker(seed=1)
    determiners = {"the", "a", "an", "my", *(LEXICON.number(value).english[0] for value in range(2, 30))}
    is_object = 0
    for noun in LEXICON.nouns:
        for is_plural in (False, True) * 40:
            german, english, _ = speaker._relative(noun, is_plural)
            if english[0] != "who" and english[1] in determiners:  # another noun does something to this one
                assert not is_plural
                assert german[0] in ("den", "dem") or (german[0], noun.gender) == ("der", "f")
                is_object += 1
    assert is_object > 50


def test_a_time_is_not_said_after_the_relative_clause_of_an_object() -> None:
    speaker = grammar._Speaker(seed=1)
    clauses = [speaker._about(LEXICON.pronouns[0], verb, relatives=True) for verb in LEXICON.verbs * 40]
    with_relative = [clause for clause in clauses if "<," in clause.rest.german]
    assert len(with_relative) > 50
    assert not any(clause.time.german for clause in with_relative)
    assert any(clause.time.german for clause in clauses)


def test_the_documented_example() -> None:
    man, house = phrase("mann", "nom"), phrase("haus", "acc")
    buys = clause(Phrase(["der"], ["who"]), "kaufen")._replace(rest=house).subordinate()
    head = Phrase([*man.german, "<,", *buys.german, ",>"], [*man.english, *buys.english])
    tired = clause(Phrase(["er"], ["he"]), "sind")._replace(rest=Phrase(["müde"], ["tired"])).subordinate()
    sleeps = clause(head, "schlafen").main()
    pair = grammar._pair(
        Phrase([*sleeps.german, "<,", "weil", *tired.german, "."], [*sleeps.english, "because", *tired.english, "."])
    )
    assert pair == GrammarPair(
        "der mann , der das haus kauft , schläft , weil er müde ist .",
        "the man who buys the house sleeps because he is tired .",
        (3, 10),
        (8,),
    )


def phrase(noun: str, case: str) -> Phrase:
    """A noun with "der", without anything else."""
    found = NOUNS[noun]
    return Phrase([LEXICON.definite[case][found.gender], found.singular], ["the", found.english])


def clause(subject: Phrase, infinitive: str, modal: str | None = None) -> grammar._Clause:
    return grammar._Speaker(1)._with_verb(subject, VERBS[infinitive], None if modal is None else VERBS[modal])


def text_of(said: Phrase) -> tuple[str, str]:
    return " ".join(said.german), " ".join(said.english)


def test_where_the_verb_stands() -> None:
    seven = Phrase(["um", "sieben", "uhr"], ["at", "seven", "o'clock"])
    up = clause(Phrase(["er"], ["he"]), "aufstehen")._replace(time=seven)
    assert text_of(up.main()) == ("er steht um sieben uhr auf", "he gets up at seven o'clock")
    assert text_of(up.main(time_first=True)) == ("um sieben uhr steht er auf", "at seven o'clock he gets up")
    assert text_of(up.inverted()) == ("steht er um sieben uhr auf", "he gets up at seven o'clock")
    assert text_of(up.subordinate()) == ("er um sieben uhr aufsteht", "he gets up at seven o'clock")
    they = Phrase(["sie"], ["they"], True)
    assert text_of(clause(they, "aufstehen").main(time_first=True)) == ("sie stehen auf", "they get up")
    may = clause(they, "zumachen", "wollen")._replace(rest=phrase("tür", "acc"))
    assert text_of(may.main()) == ("sie wollen die tür zumachen", "they want to close the door")
    assert text_of(may.subordinate()) == ("sie die tür zumachen wollen", "they want to close the door")


def test_numbers() -> None:
    words = [LEXICON.number(value) for value in range(2, 30)]
    assert len({one.german[0] for one in words}) == len({one.english[0] for one in words}) == 28
    assert all(one.is_plural for one in words)
    known = {2: "zwei two", 12: "zwölf twelve", 16: "sechzehn sixteen", 17: "siebzehn seventeen", 20: "zwanzig twenty"}
    known |= {21: "einundzwanzig twenty-one", 27: "siebenundzwanzig twenty-seven", 29: "neunundzwanzig twenty-nine"}
    assert {value: " ".join(text_of(LEXICON.number(value))) for value in known} == known


def test_forms_occur(pairs: list[GrammarPair]) -> None:
    """Accusative, dative, weak noun, plural after a number; adjectives after der, ein, mein and a number."""
    forms = [
        "den jungen ein .",
        "die jungen",
        "ein froher",
        "meine roten",
        "zwei kleine",
        "der kleinen",
        "einer nachbarin",
    ]
    translated = {
        "sie helfen dem jungen .": "they help the boy .",
        "einen frohen arzt": "a happy doctor",
        "ein großes pferd": "a big horse",
        "arzt , den wir": "doctor whom we",
        "hund , dem": "dog that",
        "in der schule": "at school",
    }
    everything = "\n".join(f" {pair.source} " for pair in pairs)
    assert [form for form in (*forms, *translated) if f" {form} " not in everything] == []
    for pair in pairs:
        for source, target in translated.items():
            assert f" {source} " not in f" {pair.source} " or f" {target} " in f" {pair.target} ", pair


# Each article with the genders and numbers of the nouns that may follow it.
ARTICLES = {
    "der": "mf", "die": "fp", "das": "n", "den": "m", "dem": "mn",
    "ein": "mn", "eine": "f", "einen": "m", "einem": "mn", "einer": "f",
    "mein": "mn", "meine": "fp", "meinen": "m", "meinem": "mn", "meiner": "f",
}  # fmt: skip
ADJECTIVE_FORMS = {
    adjective.removesuffix("e") + ending for adjective in LEXICON.adjectives for ending in ("e", "en", "er", "es")
}


def test_articles_agree_with_their_nouns(pairs: list[GrammarPair]) -> None:
    forms: dict[str, str] = {}
    for noun in LEXICON.nouns:
        for form, gender in ((noun.singular, noun.gender), (noun.oblique, noun.gender), (noun.plural, "p")):
            forms[form] = forms.get(form, "") + gender
    checked = 0
    for pair in pairs:
        words = [word for word in pair.source.split() if word not in ADJECTIVE_FORMS or word == "junge"]
        for article, noun in pairwise(words):
            if article in ARTICLES and noun in forms and noun:
                assert set(ARTICLES[article]) & set(forms[noun]), pair
                checked += 1
            if article == "den" and noun == "junge":
                pytest.fail(f"not declined: {pair}")
    assert checked > 30_000


def test_verbs_agree_with_pronouns_and_a_with_what_follows(pairs: list[GrammarPair]) -> None:
    verbs: list[Verb] = [*LEXICON.verbs, *LEXICON.modals, LEXICON.be, *(verb for verb, _ in LEXICON.speech)]
    singular, plural = {verb.singular for verb in verbs}, {verb.plural for verb in verbs}
    for pair in pairs:
        subject, verb, *_ = pair.source.split()
        assert subject != "er" or verb in singular, pair
        assert subject != "wir" or verb in plural, pair
        for word, following in pairwise(pair.target.split()):
            assert word not in ("he", "she") or following.endswith("s") or following in ("can", "must"), pair
            assert word not in ("we", "they") or not following.endswith("s"), pair
            assert word != "an" or following[0] in "ao", pair
            assert word != "a" or following[0] not in "aeiou", pair


def test_the_files_hold_the_pairs() -> None:
    files = grammar_files()
    assert sorted(files) == ["test.de", "test.en", "train.de", "train.en", "valid.de", "valid.en"]
    for side, language in enumerate(("de", "en")):
        assert files[f"valid.{language}"].splitlines() == [pair[side] for pair in grammar_pairs("valid")]
