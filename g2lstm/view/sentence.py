"""What a visitor may type: one sentence of bounded length, without characters that no text has."""

import unicodedata

from g2lstm.errors import G2Error

MAX_WORDS = 200
MAX_CHARACTERS = 4000  # a word may be long; byte-pair encoding makes many tokens of it


def cleaned(text: str) -> str:
    """The text as it will be read: one line, words one space apart; control characters become spaces.

    Raises:
        G2Error: there is no word in it, or there are too many.
    """
    if len(text) > MAX_CHARACTERS:
        raise G2Error(f"the text has {len(text):,} characters, and at most {MAX_CHARACTERS:,} are read; shorten it")
    readable = (" " if unicodedata.category(mark) in ("Cc", "Cs", "Zl", "Zp") else mark for mark in text)
    words = "".join(readable).split()
    if not words:
        raise G2Error("there is no word in the text; type a sentence")
    if len(words) > MAX_WORDS:
        raise G2Error(f"the text has {len(words):,} words, and at most {MAX_WORDS} are read; shorten it")
    return " ".join(words)
