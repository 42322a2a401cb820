"""The words of the embedded German-English grammar, with their forms and with what they go together."""

from typing import NamedTuple


class Noun(NamedTuple):
    """A noun. Its kind says which verbs and adjectives it goes with."""

    kind: str
    gender: str  # "m", "f" or "n"
    singular: str
    plural: str
    english: str
    english_plural: str
    oblique: str = ""  # the singular that is not in the nominative, where it differs


class Verb(NamedTuple):
    """A verb in the third person; the German plural is the infinitive too, the English one the base form."""

    particle: str  # of a separable verb: "auf" in "er steht auf", "weil er aufsteht"
    singular: str
    plural: str
    english: str
    english_plural: str
    subjects: tuple[str, ...]
    case: str = ""  # of the object, if there is one
    objects: tuple[str, ...] = ()


class Phrase(NamedTuple):
    """Some words in both languages."""

    german: list[str]
    english: list[str]
    is_plural: bool = False


NOUNS = (
    Noun("person", "m", "mann", "männer", "man", "men"),
    Noun("person", "f", "frau", "frauen", "woman", "women"),
    Noun("person", "n", "kind", "kinder", "child", "children"),
    Noun("person", "n", "mädchen", "mädchen", "girl", "girls"),
    Noun("person", "m", "junge", "jungen", "boy", "boys", "jungen"),
    Noun("person", "m", "lehrer", "lehrer", "teacher", "teachers"),
    Noun("person", "m", "arzt", "ärzte", "doctor", "doctors"),
    Noun("person", "f", "nachbarin", "nachbarinnen", "neighbour", "neighbours"),
    Noun("person", "f", "schwester", "schwestern", "sister", "sisters"),
    Noun("person", "m", "bruder", "brüder", "brother", "brothers"),
    Noun("animal", "m", "hund", "hunde", "dog", "dogs"),
    Noun("animal", "f", "katze", "katzen", "cat", "cats"),
    Noun("animal", "n", "pferd", "pferde", "horse", "horses"),
    Noun("text", "n", "buch", "bücher", "book", "books"),
    Noun("text", "f", "zeitung", "zeitungen", "newspaper", "newspapers"),
    Noun("letter", "m", "brief", "briefe", "letter", "letters"),
    Noun("food", "m", "apfel", "äpfel", "apple", "apples"),
    Noun("food", "m", "kuchen", "kuchen", "cake", "cakes"),
    Noun("goods", "n", "fahrrad", "fahrräder", "bicycle", "bicycles"),
    Noun("goods", "f", "lampe", "lampen", "lamp", "lamps"),
    Noun("goods", "m", "stuhl", "stühle", "chair", "chairs"),
    Noun("goods", "n", "bild", "bilder", "picture", "pictures"),
    Noun("house", "n", "haus", "häuser", "house", "houses"),
    Noun("opening", "f", "tür", "türen", "door", "doors"),
    Noun("opening", "n", "fenster", "fenster", "window", "windows"),
)

NOT_OWNED = ("mann", "frau", "mädchen", "junge")  # "meine frau" is my wife, not my woman

_PERSON = ("person",)
_LIVING = ("person", "animal")
_FINDABLE = ("person", "animal", "text", "letter", "goods")

VERBS = (
    Verb("", "schläft", "schlafen", "sleeps", "sleep", _LIVING),
    Verb("", "wartet", "warten", "waits", "wait", _LIVING),
    Verb("", "arbeitet", "arbeiten", "works", "work", _PERSON),
    Verb("", "lacht", "lachen", "laughs", "laugh", _PERSON),
    Verb("", "singt", "singen", "sings", "sing", _PERSON),
    Verb("", "tanzt", "tanzen", "dances", "dance", _PERSON),
    Verb("auf", "steht", "stehen", "gets up", "get up", _LIVING),
    Verb("ein", "schläft", "schlafen", "falls asleep", "fall asleep", _LIVING),
    Verb("zurück", "kommt", "kommen", "comes back", "come back", _LIVING),
    Verb("an", "kommt", "kommen", "arrives", "arrive", _PERSON),
    Verb("", "liest", "lesen", "reads", "read", _PERSON, "acc", ("text", "letter")),
    Verb("", "schreibt", "schreiben", "writes", "write", _PERSON, "acc", ("letter",)),
    Verb("", "kauft", "kaufen", "buys", "buy", _PERSON, "acc", ("animal", "text", "food", "goods", "house")),
    Verb("", "verkauft", "verkaufen", "sells", "sell", _PERSON, "acc", ("animal", "text", "food", "goods", "house")),
    Verb("", "sucht", "suchen", "looks for", "look for", _LIVING, "acc", _FINDABLE),
    Verb("", "findet", "finden", "finds", "find", _LIVING, "acc", _FINDABLE),
    Verb("", "sieht", "sehen", "sees", "see", _LIVING, "acc", ("person", "animal", "goods", "house", "opening")),
    Verb("", "trifft", "treffen", "meets", "meet", _PERSON, "acc", _PERSON),
    Verb("", "besucht", "besuchen", "visits", "visit", _PERSON, "acc", _PERSON),
    Verb("", "isst", "essen", "eats", "eat", _LIVING, "acc", ("food",)),
    Verb("", "malt", "malen", "paints", "paint", _PERSON, "acc", ("person", "animal", "house", "opening")),
    Verb("an", "ruft", "rufen", "calls", "call", _PERSON, "acc", _PERSON),
    Verb("ab", "holt", "holen", "picks up", "pick up", _PERSON, "acc", ("person", "letter")),
    Verb("ein", "lädt", "laden", "invites", "invite", _PERSON, "acc", _PERSON),
    Verb("an", "sieht", "sehen", "looks at", "look at", _PERSON, "acc", ("animal", "goods", "house")),
    Verb("auf", "macht", "machen", "opens", "open", _PERSON, "acc", ("letter", "opening")),
    Verb("zu", "macht", "machen", "closes", "close", _PERSON, "acc", ("opening",)),
    Verb(
        "mit", "bringt", "bringen", "brings along", "bring along", _PERSON, "acc", ("animal", "text", "food", "goods")
    ),
    Verb("", "hilft", "helfen", "helps", "help", _PERSON, "dat", _LIVING),
    Verb("", "dankt", "danken", "thanks", "thank", _PERSON, "dat", _PERSON),
    Verb("", "folgt", "folgen", "follows", "follow", _LIVING, "dat", _LIVING),
    Verb("zu", "hört", "hören", "listens to", "listen to", _PERSON, "dat", _PERSON),
)

BE = Verb("", "ist", "sind", "is", "are", _LIVING)
# With what follows them: a clause with its conjunction.
SPEECH = (
    (Verb("", "sagt", "sagen", "says", "say", _PERSON), Phrase(["dass"], ["that"])),
    (Verb("", "weiß", "wissen", "knows", "know", _PERSON), Phrase(["dass"], ["that"])),
    (Verb("", "glaubt", "glauben", "believes", "believe", _PERSON), Phrase(["dass"], ["that"])),
    (Verb("", "fragt", "fragen", "asks", "ask", _PERSON), Phrase(["ob"], ["whether"])),
)
MODALS = (
    Verb("", "kann", "können", "can", "can", _LIVING),
    Verb("", "muss", "müssen", "must", "must", _LIVING),
    Verb("", "will", "wollen", "wants to", "want to", _LIVING),
)
CONJUNCTIONS = (
    Phrase(["weil"], ["because"]),
    Phrase(["obwohl"], ["although"]),
    Phrase(["wenn"], ["if"]),
    Phrase(["bevor"], ["before"]),
    Phrase(["während"], ["while"]),
)
# All in the nominative; an object is never a pronoun, so that "sie" is told by its verb alone.
PRONOUNS = (
    Phrase(["er"], ["he"]),
    Phrase(["sie"], ["she"]),
    Phrase(["wir"], ["we"], True),
    Phrase(["sie"], ["they"], True),
)
TIMES = (
    Phrase(["heute"], ["today"]),
    Phrase(["morgen"], ["tomorrow"]),
    Phrase(["jetzt"], ["now"]),
    Phrase(["jeden", "tag"], ["every", "day"]),
    Phrase(["am", "abend"], ["in", "the", "evening"]),
)
PLACES = (
    Phrase(["im", "garten"], ["in", "the", "garden"]),
    Phrase(["im", "park"], ["in", "the", "park"]),
    Phrase(["in", "der", "stadt"], ["in", "the", "city"]),
    Phrase(["in", "der", "schule"], ["at", "school"]),
    Phrase(["zu", "hause"], ["at", "home"]),
)
ADJECTIVES = {
    "klein": "small",
    "groß": "big",
    "alt": "old",
    "neu": "new",
    "rot": "red",
    "müde": "tired",
    "froh": "happy",
}
ADJECTIVES_OF = {
    "person": ("klein", "müde", "froh"),
    "animal": ("klein", "groß", "alt", "müde"),
    "text": ("neu", "alt"),
    "letter": ("neu", "alt"),
    "food": ("klein", "groß"),
    "goods": ("klein", "groß", "alt", "neu", "rot"),
    "house": ("klein", "groß", "alt", "neu"),
    "opening": ("klein", "groß", "alt", "rot"),
}

# By case, then by masculine, feminine, neuter, plural.
DEFINITE = {
    "nom": {"m": "der", "f": "die", "n": "das", "p": "die"},
    "acc": {"m": "den", "f": "die", "n": "das", "p": "die"},
    "dat": {"m": "dem", "f": "der", "n": "dem"},
}
INDEFINITE_ENDING = {
    "nom": {"m": "", "f": "e", "n": "", "p": "e"},
    "acc": {"m": "en", "f": "e", "n": "", "p": "e"},
    "dat": {"m": "em", "f": "er", "n": "em"},
}
# Of adjectives: after "der", after "ein" and "mein", after a number.
WEAK_ENDING = {
    "nom": {"m": "e", "f": "e", "n": "e", "p": "en"},
    "acc": {"m": "en", "f": "e", "n": "e", "p": "en"},
    "dat": {"m": "en", "f": "en", "n": "en"},
}
MIXED_ENDING = {
    "nom": {"m": "er", "f": "e", "n": "es", "p": "en"},
    "acc": {"m": "en", "f": "e", "n": "es", "p": "en"},
    "dat": {"m": "en", "f": "en", "n": "en"},
}
STRONG_PLURAL_ENDING = "e"

_NUMBERS = (
    ("zwei", "two"),
    ("drei", "three"),
    ("vier", "four"),
    ("fünf", "five"),
    ("sechs", "six"),
    ("sieben", "seven"),
    ("acht", "eight"),
    ("neun", "nine"),
    ("zehn", "ten"),
    ("elf", "eleven"),
    ("zwölf", "twelve"),
    ("dreizehn", "thirteen"),
    ("vierzehn", "fourteen"),
    ("fünfzehn", "fifteen"),
    ("sechzehn", "sixteen"),
    ("siebzehn", "seventeen"),
    ("achtzehn", "eighteen"),
    ("neunzehn", "nineteen"),
    ("zwanzig", "twenty"),
)


def number(value: int) -> Phrase:
    """A number from 2 to 29 as one word: "einundzwanzig", "twenty-one"."""
    if value <= 20:
        german, english = _NUMBERS[value - 2]
        return Phrase([german], [english], True)
    german, english = ("ein", "one") if value == 21 else _NUMBERS[value - 22]
    return Phrase([f"{german}undzwanzig"], [f"twenty-{english}"], True)
