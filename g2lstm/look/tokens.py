"""A line's tokens as people can read them, also those that a vocabulary does not have."""

from typing import NamedTuple

from g2lstm.errors import G2Error
from g2lstm.text.tokenize import Tokenizer, printable


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
    tokens = tokenizer.readable(encoding.ids)
    for place, (token, (start, end)) in enumerate(zip(encoding.ids, encoding.offsets, strict=True)):
        if token == tokenizer.unk_id:
            tokens[place] = printable(line[start:end])
    return Line(list(encoding.ids), tokens)
