"""`Features`: what is true of each token of a text, by the text up to there: its kind, and where it stands."""

import numpy as np
import numpy.typing as npt

from g2lstm.text.tokenize import EOS, UNK, Tokenizer

Ids = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

_WORDS = {
    "a determiner": "the a an this that these those its their his her our your my some any no each every",
    "a preposition": "of in to for on with at by from as into about than between under over through after before",
    "a pronoun": "it he she they we i you him them us who which what one",
    "a form of be, have or do": "is are was were be been being has have had do does did",
    "a modal verb": "will would can could may might must should shall",
    "a conjunction": "and or but because if when while although since that which who where whether so then",
    "a negation": "not n't no never nor without",
}
_OPENING, _CLOSING = ("“", "``", "„", "«"), ("”", "''", "»")
_LEFT, _RIGHT = ("(", "[", "{", "-lrb-", "-LRB-"), (")", "]", "}", "-rrb-", "-RRB-")
_BREAKS = ("a comma", "a colon or semicolon", "a conjunction")
_FIRST, _LATE = 3, 10
_CONTEXT = 100  # tokens of the text so far that are kept; longer sentences are rare


class Features:
    """The features of texts that are read side by side, some tokens at a time.

    Args:
        tokenizer: of the texts.

    Attributes:
        names: of the features, in words.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        words = tokenizer.readable([tokenizer.eos_id, *range(len(tokenizer))])[1:]
        kinds = [_kinds(word) for word in words]
        own = list(dict.fromkeys(kind for each in kinds for kind in each))
        self._kinds = np.array([[kind in each for kind in own] for each in kinds], bool)
        self._is_break = np.asarray(self._kinds[:, [kind in _BREAKS for kind in own]].any(1))
        groups = (('"',), _OPENING, _CLOSING, _LEFT, _RIGHT)
        self._marks = np.array([[word in group for word in words] for group in groups], bool)
        self._end = tokenizer.eos_id
        self.names = [*own, *(f"right after {kind}" for kind in own), *_PLACES]
        self.start()

    def start(self) -> None:
        """The next tokens begin new texts."""
        self._before: Ids | None = None

    def read(self, tokens: Ids) -> Booleans:
        """The features of the next tokens (T, B) of the texts, of which the last may have ended: (T, B, features)."""
        if self._before is None:
            self._before = np.full((1, tokens.shape[1]), self._end)
        known = np.concatenate([self._before[:, : tokens.shape[1]], tokens])
        self._before = known[-_CONTEXT:]
        return self._features(known)[-len(tokens) :]

    def _features(self, tokens: Ids) -> Booleans:
        last = np.concatenate([np.full_like(tokens[:1], self._end), tokens[:-1]])
        index = np.arange(len(tokens))[:, None]

        def latest(mask: Booleans) -> npt.NDArray[np.int64]:
            return np.asarray(np.maximum.accumulate(np.where(mask, index, -1)))

        is_word, begins = tokens != self._end, last == self._end
        start, broken = latest(begins), latest(self._is_break[last])
        quotes = np.cumsum(self._marks[0][last], axis=0)
        quotes_before = np.take_along_axis(quotes, start, axis=0)
        straight, opening, closing, left, right = self._marks[:, tokens]
        quoted = latest(self._marks[1][last]) > np.maximum(latest(closing), start)
        quoted |= ((quotes - quotes_before) % 2 == 1) & ~straight
        places = (
            begins,
            index - start < _FIRST,
            index - start >= _LATE,
            (broken > start) & (index - broken < _FIRST),
            broken > start,
            quoted & ~opening,
            (latest(self._marks[3][last]) > np.maximum(latest(right), start)) & ~left,
        )
        where = np.stack([each & is_word for each in places], axis=-1)
        return np.concatenate([self._kinds[tokens], self._kinds[last], where], axis=-1)


_PLACES = (
    "the first word of a sentence",
    f"the first {_FIRST} words of a sentence",
    f"after the first {_LATE} words of a sentence",
    f"the {_FIRST} words after a comma or conjunction",
    "after the first comma or conjunction of a sentence",
    "inside quotation marks",
    "inside brackets",
)


def _kinds(word: str) -> list[str]:
    """The kinds of a token."""
    if word in (EOS, UNK):
        return ["the end of a sentence" if word == EOS else "an unknown word"]
    text = word.removeprefix("##")
    tests = {kind: text.lower() in words.split() for kind, words in _WORDS.items()} | {
        "a later piece of a word": word.startswith("##"),
        "a number": text == "N" or any(mark.isdigit() for mark in text),
        "punctuation": not any(mark.isalnum() for mark in text),
        "a comma": text == ",",
        "a full stop": text in (".", "!", "?"),
        "a colon or semicolon": text in (":", ";", "--", "–", "—"),
        "a quotation mark": text in ('"', *_OPENING, *_CLOSING),
        "a bracket": text in (*_LEFT, *_RIGHT),
        "a possessive": text in ("'s", "'"),
        "a capitalised word": text[:1].isupper() and text != "N",
    }
    return [kind for kind, is_true in tests.items() if is_true]
