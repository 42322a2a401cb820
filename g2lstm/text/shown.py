"""Tokens as people can read them, also those that are no whole words."""

from collections.abc import Sequence

from g2lstm.text.tokenize import Tokenizer

_SPACE = "Ġ"  # how byte-pair encoding writes the space before a word


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
