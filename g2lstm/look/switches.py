"""`Switches`: the units whose gates open and close with something that can be named, such as commas or quotations."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from g2lstm.runs.records import Example, Explained
from g2lstm.tasks.reading import Place
from g2lstm.tasks.trained import Trained
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
_OPENING, _CLOSING = ("“", "``", "„", "«", "「", "『"), ("”", "''", "»", "」", "』")
_LEFT, _RIGHT = ("(", "[", "{", "（", "-lrb-", "-LRB-"), (")", "]", "}", "）", "-rrb-", "-RRB-")
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
        "a comma": text in (",", "、", "，"),
        "a full stop": text in (".", "!", "?", "。", "！", "？"),
        "a colon or semicolon": text in (":", ";", "：", "；", "--", "–", "—"),
        "a quotation mark": text in ('"', *_OPENING, *_CLOSING),
        "a bracket": text in (*_LEFT, *_RIGHT),
        "a possessive": text in ("'s", "'"),
        "a capitalised word": text[:1].isupper() and text != "N",
    }
    return [kind for kind, is_true in tests.items() if is_true]


SHOWN = 12  # units
_ALIKE = 2  # of them with the same feature
_LEAST = 10  # tokens that a feature must be true of, and as many that it must not
_EXAMPLES = 2  # of each unit
_BEFORE, _AFTER = 5, 7  # tokens of an example on either side of the switch
_PLENTY = 4000  # tokens to find examples in

Counts = npt.NDArray[np.float64]


class Switches:
    """Counts how often each gate of each unit is open where each feature is true, in constant memory.

    Half of the columns of each batch, which are stretches of a text or sentences, serve to choose the feature that
    explains a unit best. The others tell how well it does.

    Args:
        trained: the model and its tokenizers.
        is_continued: whether each pass goes on where the last one ended.
    """

    def __init__(self, trained: Trained, is_continued: bool) -> None:
        self._features = {
            side: Features(tokenizer)
            for side, tokenizer in zip(trained.sides, trained.tokenizers.values(), strict=True)
        }
        self._is_continued = is_continued
        self._counts: dict[tuple[Place, str], Counts] = {}  # (2, features + 1, units + 1): the last of each counts all
        self._true: dict[str, Tensor] = {}

    def read(self, tokens: Mapping[str, Tensor]) -> None:
        """The tokens (T, B) of the next pass, by side."""
        for side, ids in tokens.items():
            features = self._features[side]
            if not self._is_continued:
                features.start()
            found = torch.from_numpy(features.read(ids.numpy()))
            self._true[side] = torch.cat([found, torch.ones_like(found[..., :1])], dim=-1).float()

    def add(self, place: Place, gate: str, values: Tensor, is_token: Tensor | None) -> None:
        """Counts the input and forget gates (T, B, H) of one place in this pass; `is_token` is false at padding."""
        if gate == "output":
            return
        true = self._true[place.side]
        if is_token is not None:
            true = true * is_token.unsqueeze(-1)
        is_open = (values.cpu() >= 0.5).float()
        both = torch.cat([is_open, torch.ones_like(is_open[..., :1])], dim=-1)
        halves = [torch.einsum("tbf,tbh->fh", true[:, half::2], both[:, half::2]).double() for half in (0, 1)]
        counted = torch.stack(halves).numpy()
        self._counts[place, gate] = self._counts.get((place, gate), 0) + counted

    def best(self) -> list[Explained]:
        """The units that are explained best, with no more than two for the same feature."""
        found = [one for (place, gate), counts in self._counts.items() for one in self._of(place, gate, counts)]
        kept, alike = [], Counter[str]()
        for one in sorted(found, key=lambda one: -abs(one.phi_chosen)):
            if alike[one.feature] < _ALIKE:
                kept.append(one)
                alike[one.feature] += 1
        return kept[:SHOWN]

    def _of(self, place: Place, gate: str, counts: Counts) -> Iterator[Explained]:
        """Every unit of a gate that has switched, with its best feature."""
        both, true = counts[:, :-1, :-1], counts[:, :-1, -1:]  # (2, F, H) and (2, F, 1)
        is_open, all_tokens = counts[:, -1:, :-1], counts[:, -1:, -1:]
        is_common = np.asarray((np.minimum(true, all_tokens - true) >= _LEAST).all(0))
        spread = true * (all_tokens - true) * is_open * (all_tokens - is_open)
        phi = (both * all_tokens - true * is_open) / np.sqrt(np.maximum(spread, 1.0))
        chosen = np.where(is_common, np.abs(phi[0]), 0.0).argmax(0)
        names = self._features[place.side].names
        for unit, feature in enumerate(chosen):
            if is_common[feature] and spread[:, feature, unit].all():
                n, t, o, b = all_tokens[1, 0, 0], true[1, feature, 0], is_open[1, 0, unit], both[1, feature, unit]
                yield Explained(
                    name=place.name,
                    direction=place.direction,
                    title=place.title,
                    gate=gate,
                    unit=unit,
                    feature=names[feature],
                    phi=float(phi[1, feature, unit]),
                    open_with=float(b / t),
                    open_without=float((o - b) / (n - t)),
                    phi_chosen=float(phi[0, feature, unit]),
                )


class Examples:
    """Finds places where the gates of some units switch, in columns that their features were not chosen on.

    Args:
        trained: the model and its tokenizers.
        units: those to find examples for.
    """

    def __init__(self, trained: Trained, units: list[Explained]) -> None:
        self._tokenizers = dict(zip(trained.sides, trained.tokenizers.values(), strict=True))
        self._units = units
        self._found: list[list[tuple[int, Example]]] = [[] for _ in units]  # each with its rank
        self._tokens: Mapping[str, Tensor] = {}
        self._seen = 0

    @property
    def is_enough(self) -> bool:
        """Whether enough text was read."""
        return self._seen >= _PLENTY

    def read(self, tokens: Mapping[str, Tensor]) -> None:
        """The tokens (T, B) of the next pass, by side."""
        self._tokens = tokens
        self._seen += max(ids.numel() for ids in tokens.values())

    def add(self, place: Place, gate: str, values: Tensor, is_token: Tensor | None) -> None:
        """The gates (T, B, H) of one place in this pass."""
        for k, one in enumerate(self._units):
            if (one.name, one.direction, one.gate) != (place.name, place.direction, gate):
                continue
            is_open = values[:, 1::2, one.unit].cpu() >= 0.5
            for column, ids in enumerate(self._tokens[place.side][:, 1::2].t()):
                length = len(ids) if is_token is None else int(is_token[:, 2 * column + 1].sum())
                self._look(k, place.side, ids[:length].tolist(), is_open[:length, column].tolist())

    def _look(self, k: int, side: str, ids: list[int], is_open: list[bool]) -> None:
        """Keeps the stretch around a switch where the gate is open about half of the time, if it is better."""
        switches = [at for at in range(1, len(ids)) if is_open[at] != is_open[at - 1]]
        parts = [slice(max(at - _BEFORE, 0), at + _AFTER) for at in switches]
        ranks = [min(sum(is_open[part]), len(is_open[part]) - sum(is_open[part])) for part in parts]
        if not parts:
            return
        best = parts[int(np.argmax(ranks))]
        example = Example(tokens=self._tokenizers[side].readable(ids[best]), open=is_open[best])
        self._found[k] = sorted([*self._found[k], (max(ranks), example)], key=lambda one: -one[0])[:_EXAMPLES]

    def explained(self) -> list[Explained]:
        """The units with their examples."""
        each = zip(self._units, self._found, strict=True)
        return [one.model_copy(update={"examples": [example for _, example in found]}) for one, found in each]


class Timelines(NamedTuple):
    """The units of a binary gate that switch most often in a text, similar ones next to each other."""

    units: list[int]
    is_open: npt.NDArray[np.bool_]  # (units, T)
    closed: int  # the number of units that stay closed
    open: int  # and of those that stay open

    @classmethod
    def of(cls, values: npt.NDArray[np.float32], most: int = 40) -> "Timelines | None":
        """From the gates (T, H) of all units; None if they are not all 0 or 1."""
        if not ((values == 0) | (values == 1)).all():
            return None
        switches = (values[1:] != values[:-1]).sum(0)
        units = np.sort(np.argsort(-switches, kind="stable")[: min(most, int((switches > 0).sum()))])
        shown = values[:, units].T
        if len(units) > 1:
            # The first singular vector puts units that are open at the same tokens next to each other.
            order = np.argsort(np.linalg.svd(shown - shown.mean(0))[0][:, 0], kind="stable")
            units, shown = units[order], shown[order]
        constant = values[0, switches == 0]
        return cls(units.tolist(), shown > 0, int((constant == 0).sum()), int((constant == 1).sum()))
