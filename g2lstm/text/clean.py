"""`clean`: text as people see it, so that what looks alike is alike; part of the tokenizers that clean."""

from functools import cache

from tokenizers import Regex, normalizers

from g2lstm.errors import G2Error

# What nobody sees: control characters, soft hyphens, marks of direction and of byte order. The joiners that Persian and
# emoji need stay.
_UNSEEN = (
    r"[\u0000-\u0008\u000e-\u001f\u007f-\u0084\u0086-\u009f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
)
_SPACES = r"[\t-\r \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"


def clean(text: str) -> str:
    """The text as tokenizers that clean it read it: in NFC, without control characters, with single spaces."""
    check_unicode(text)
    return str(normalizers.Sequence(cleaning()).normalize_str(text))


@cache
def cleaning() -> list[normalizers.Normalizer]:
    """The normalisers that do so, in order."""
    unseen, spaces = (normalizers.Replace(Regex(one), by) for one, by in ((_UNSEEN, ""), (_SPACES, " ")))
    return [unseen, normalizers.NFC(), spaces, normalizers.Strip()]


def check_unicode(text: str) -> None:
    """Raises if it is no str, or has half a surrogate pair, which Python puts where bytes are not UTF-8."""
    if not isinstance(text, str):
        raise G2Error(f"a text must be a str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise G2Error(
            f"the text is not valid Unicode: character {error.start + 1} is half of a surrogate pair; give UTF-8"
        ) from None
