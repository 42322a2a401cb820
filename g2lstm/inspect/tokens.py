"""Tokens as people can read them, also those that a vocabulary does not have or that are no whole words."""

from collections.abc import Sequence
from typing import NamedTuple

from g2lstm.data.tokenize import Tokenizer
from g2lstm.errors import G2Error

_SPACE = "Ġ"  # how byte-pair encoding writes the space before a word


class Line(NamedTuple):
    """An encoded line of text."""

    ids: list[int]
    shown: list[str]


def encode(tokenizer: Tokenizer, line: str) -> Line:
    """The tokens of a line, without `<eos>`; a word that the vocabulary lacks is shown as it was written."""
    try:
        line.encode("utf-8")
    except UnicodeEncodeError as error:
        raise G2Error(
            f"the text is not valid Unicode: character {error.start + 1} stands alone for half of one; give UTF-8"
        ) from None
    encoding = tokenizer.backend.encode(line, add_special_tokens=False)
    tokens = shown(tokenizer, encoding.ids)
    for place, (token, (start, end)) in enumerate(zip(encoding.ids, encoding.offsets, strict=True)):
        if token == tokenizer.unk_id:
            tokens[place] = printable(line[start:end])
    return Line(list(encoding.ids), tokens)


def shown(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Token ids for people: of a word that is several tokens, all but the first begin with ##."""
    tokens = [tokenizer.token_of(token) for token in ids]
    if tokenizer.kind == "word":
        return [printable(token) for token in tokens]
    shown = []
    for place, (token, token_id) in enumerate(zip(tokens, ids, strict=True)):
        if token_id in (tokenizer.eos_id, tokenizer.unk_id):
            shown.append(token)
            continue
        text = printable(tokenizer.backend.decoder.decode([token]).strip(" ") or "␣")
        shown.append(text if begins_word(token) or place == 0 else f"##{text}")
    return shown


def begins_word(token: str) -> bool:
    """Whether a token of byte-pair encoding stands after a space."""
    return token.startswith(_SPACE)


def printable(text: str) -> str:
    r"""The text with control characters as escapes, such as \x1b, which no terminal or picture obeys."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
