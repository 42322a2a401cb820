"""Turns tokenised text back into plain text: joins what the Moses tokenizer split, and undoes its escapes."""

import re
from html import unescape

from g2lstm.errors import G2Error

LANGUAGES = ("de", "en")

# The two quotes of a pair are of one kind; the first opens, the second closes, since »«, «», „“ and “” are all used.
_QUOTES = {mark: kind[0] for kind in ('"', "'", "„“”‟", "‚‘’", "»«", "›‹") for mark in kind}
_APOSTROPHES = frozenset("'’")
_CLOSING = re.compile(r"[,.?!:;…)\]}]+")
_OPENING = frozenset("([{¿¡#")
_CURRENCY = frozenset("$£€¥")
_CONTRACTION = re.compile(r"['’]\w.*|n['’]t", re.IGNORECASE)
_DECADE = re.compile(r"\d\ds?")  # the ' 60s
# In German the tokenizer splits off every apostrophe: "geht ' s", "o ' neill", "1 ' 000".
_GERMAN_BEGINNINGS = ("o", "d", "l")
_GERMAN_ENDING = re.compile(r"(s|n|ne|nen|nem|ner|t|ll|re|ve|sch(e[mnrs]?)?|000)\b.*", re.IGNORECASE)


def check_language(language: str) -> None:
    """Raises for a language that `detokenize` does not know."""
    if language not in LANGUAGES:
        raise G2Error(
            f"language must be one of {', '.join(map(repr, LANGUAGES))} to turn tokens into plain text, got "
            f"{language!r}; leave out --detokenize (as_text in Python)"
        )


def detokenize(text: str, language: str) -> str:
    """Turns a line of tokens, separated by spaces, into plain text; the language is "de" or "en"."""
    check_language(language)
    tokens = unescape(text.replace(" @-@ ", "-")).split()
    pieces: list[str] = []
    is_open = dict.fromkeys(_QUOTES.values(), False)
    is_joined = True  # to the token before
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else ""
        after = tokens[place + 1] if place + 1 < len(tokens) else ""
        joins_left, joins_right = _joins(before, token, after, language, is_open["'"])
        if token in _QUOTES and not (joins_left or joins_right):
            kind = _QUOTES[token]
            # With nothing after it to open, a quote closes one from an earlier line.
            is_open[kind] = not is_open[kind] and bool(after) and not _CLOSING.fullmatch(after)
            joins_left, joins_right = not is_open[kind], is_open[kind]
        pieces.append(token if is_joined or joins_left else f" {token}")
        is_joined = joins_right
    return "".join(pieces)


def _joins(before: str, token: str, after: str, language: str, is_quoted: bool) -> tuple[bool, bool]:
    """Whether a token joins the one before it, and the one after it; quotes are handled elsewhere."""
    if _CLOSING.fullmatch(token):
        return True, token == ":" and before[-1:].isdigit() and after[:1].isdigit()  # half past seven: 7:30
    if token in _OPENING:
        return False, True
    if token == "/":
        return True, True
    if token == "%":
        return language == "en", False
    if token in _CURRENCY:
        return False, after[:1].isdigit() and not before[-1:].isdigit()
    if language == "en" and _CONTRACTION.fullmatch(token):
        return True, False
    if token in _APOSTROPHES and language == "en":
        return before[-1:] == "s" and not is_quoted, _DECADE.fullmatch(after) is not None
    if token in _APOSTROPHES:
        is_ending = before[-1:].isalnum() and _GERMAN_ENDING.fullmatch(after) is not None
        is_inside = is_ending or (before.lower() in _GERMAN_BEGINNINGS and after[:1].isalpha())
        return is_inside, is_inside
    return False, False
