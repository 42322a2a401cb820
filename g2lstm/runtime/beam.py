"""Translations of a model that predicts one word at a time, in NumPy: the likeliest by beam search, or drawn."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression.encodings.base import is_whole
from g2lstm.errors import G2Error
from g2lstm.runtime.sampling import Utf8, check_seed, check_temperature, choose, is_number

Floats: TypeAlias = NDArray[np.floating[Any]]
Ints: TypeAlias = NDArray[np.int64]

MAX_SOURCE = 1000  # tokens; a longer line is rarely a sentence
_USUAL_LENGTH = 50  # groups of longer sources are smaller, to limit memory
NOT_NUMBERS = "the model's log-probabilities are not numbers (NaN): its weights are broken; train it again"
LIMIT_PER_TOKEN, LIMIT_MORE = 2, 10  # a translation has at most so many tokens per source token, and so many more


@dataclass(frozen=True)
class Hypothesis:
    """A finished sentence."""

    tokens: list[int]  # without `<eos>`
    log_probability: float  # of the tokens and of `<eos>`
    score: float  # log_probability / length**length_penalty, where length counts `<eos>`
    attention: Floats | None = field(default=None, compare=False)  # (len(tokens) + 1, S), where it looked


class State(Protocol):
    """What a model keeps between steps, for K hypotheses of each of B sentences."""

    def select(self, sentences: Ints, hypotheses: Ints) -> Self:
        """Continues some sentences (B',), in increasing order, from any of their hypotheses (B', K')."""


class Offers(NamedTuple):
    """What a model predicts after one step: for each hypothesis its likeliest next tokens."""

    values: Floats  # (B, K, n), log-probabilities, highest first
    tokens: Ints  # (B, K, n)
    ends: Floats  # (B, K), the log-probability of `<eos>`
    attention: Floats  # (B, K, S)
    state: State


# Reads a token (B, K) of each hypothesis in a state; offers so many next tokens, or all if there are fewer.
Step: TypeAlias = Callable[[Ints, Any, int], Offers]


class Drawing(NamedTuple):
    """How to draw translations, instead of searching for the likeliest."""

    temperature: float = 1.0  # below 1, likely tokens become likelier; 0 always takes the likeliest
    seed: int = 0


class SearchOptions(NamedTuple):
    """How to find the translations of a sentence.

    Attributes:
        eos: the id of `<eos>`, which begins and ends each sentence.
        beam: K, the number of hypotheses kept per sentence; of no effect if they are drawn.
        length_penalty: log-probabilities are divided by the length to this power; 0 favours short sentences.
        n_best: the number of hypotheses to return per sentence.
        min_length: the minimum number of tokens before `<eos>`; a lower maximum gives way.
        forbidden: ids to leave out, such as that of `<unk>`.
        keep_attention: return the attention of each hypothesis, which takes memory.
        drawing: how to draw hypotheses; None to search for the likeliest.
        utf8: keeps tokens that are parts of characters from making anything but characters.
    """

    eos: int
    beam: int = 5
    length_penalty: float = 1.0
    n_best: int = 1
    min_length: int = 0
    forbidden: Sequence[int] = ()
    keep_attention: bool = False
    drawing: Drawing | None = None
    utf8: Utf8 | None = None

    def check(self) -> None:
        """Raises for options of a search that make no sense."""
        eos, beam, length_penalty, n_best, *_ = self
        if not is_whole(beam, 1, 1000):
            raise G2Error(f"beam must be a whole number from 1 to 1000, got {beam!r}; 1 is greedy search, 5 is usual")
        if not is_number(length_penalty, 0, 10):
            raise G2Error(
                f"length_penalty must be from 0 to 10, got {length_penalty!r}; "
                "0 is none, 1 compares sentences by their mean log-probability"
            )
        if not is_whole(n_best, 1, beam):
            raise G2Error(f"n_best must be from 1 to the beam of {beam}, got {n_best!r}; a wider beam finds more")
        if eos in self.forbidden:
            raise G2Error(f"<eos>, token id {eos}, is forbidden, so no sentence could end; remove it from forbidden")


def beam_search(step: Step, state: State, batch: int, max_lengths: Ints, how: SearchOptions) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence, best first; fewer than `n_best` if there are no more.

    Each step keeps the `beam` likeliest unfinished hypotheses. A hypothesis finishes when its `<eos>` is among the
    `beam` likeliest continuations of its sentence; it does not take the place of an unfinished one. A sentence ends
    when `beam` hypotheses have finished, so a beam of 1 is greedy search, or earlier if no unfinished one can still
    beat the best `n_best`, which only saves time. It then leaves the batch.

    Args:
        step: reads a word of each hypothesis and predicts the next.
        state: the state before the first word, with one hypothesis per sentence.
        batch: B, the number of sentences.
        max_lengths: (B,), the maximum number of tokens before `<eos>`.
        how: the options.
    """
    how.check()
    eos, beam, length_penalty, n_best, min_length, forbidden, keep_attention, _, utf8 = how
    length_penalty = float(length_penalty)  # an integer power of integers could overflow
    max_lengths = np.maximum(max_lengths, min_length)
    not_words = np.array([eos, *forbidden])
    found: list[list[Hypothesis]] = [[] for _ in range(batch)]
    # For each sentence in the batch: its number, how many hypotheses have finished, and their best scores.
    numbers, finished, best = np.arange(batch), np.zeros(batch, np.int64), np.full((batch, n_best), -np.inf)
    # For each unfinished hypothesis: its log-probability, how many bytes its last character lacks, its tokens
    # (B, K, t), and where it looked (B, K, t, S).
    totals: Floats = np.zeros((batch, 1))
    missing: Ints = np.zeros((batch, 1), np.int64)
    tokens, looks = np.full((batch, 1, 1), eos), None
    for length in count(1):  # of a hypothesis that finishes now, with <eos>
        room, most = (max_lengths - length)[:, None, None], beam + len(not_words)  # room: for tokens after the next
        if utf8 is not None:
            most = _ALL if missing.any() or room.min() < 3 else most + len(utf8.forbidden[0])
        offers = step(tokens[:, :, -1], state, most)
        if length <= min_length:
            offers = offers._replace(ends=np.full_like(offers.ends, -np.inf))
        is_barred = room < 0
        if utf8 is not None:
            is_barred = is_barred | ~utf8.allows(missing[..., None], offers.tokens, room)
            offers = offers._replace(ends=np.where(missing > 0, -np.inf, offers.ends))
        if keep_attention:
            look = offers.attention[:, :, None]
            looks = look if looks is None else np.concatenate([looks, look], axis=2)
        ends, words = _continuations(offers, totals, is_barred, not_words, beam)

        scores = ends.totals / length**length_penalty
        is_end = scores > -np.inf
        for row, place in zip(*np.nonzero(is_end), strict=True):
            parent = ends.parents[row, place]
            attention = None if looks is None else looks[row, parent].copy()
            total, score = float(ends.totals[row, place]), float(scores[row, place])
            found[numbers[row]].append(Hypothesis(tokens[row, parent, 1:].tolist(), total, score, attention))

        finished = finished + is_end.sum(axis=1)
        best = -np.sort(-np.concatenate([best, scores], axis=1), axis=1)[:, :n_best]
        # Log-probabilities only fall, and the longest sentence divides them most.
        hope = words.totals[:, 0] / (max_lengths + 1.0) ** length_penalty
        going_on = np.flatnonzero((finished < beam) & (hope > best[:, -1]))
        if not len(going_on):
            break
        numbers, finished, best = numbers[going_on], finished[going_on], best[going_on]
        max_lengths, totals, parents = max_lengths[going_on], words.totals[going_on], words.parents[going_on]
        before = (going_on[:, None], parents)
        if utf8 is not None:  # -1 where there are fewer hypotheses than `beam`
            missing = np.maximum(utf8.after[missing[before], words.tokens[going_on]], 0)
        tokens = np.concatenate([tokens[before], words.tokens[going_on, :, None]], axis=2)
        looks = None if looks is None else looks[before]
        state = offers.state.select(going_on, parents)
    return [sorted(one, key=lambda hypothesis: -hypothesis.score)[:n_best] for one in found]


class _Continuations(NamedTuple):
    """Hypotheses made one token longer, the likeliest of each sentence first; a total of -inf means none."""

    totals: Floats  # (B, n), log-probabilities
    parents: Ints  # (B, n), the hypotheses they continue
    tokens: Ints  # (B, n), the tokens they add


def _continuations(
    offers: Offers, totals: Floats, is_barred: NDArray[np.bool_], not_words: Ints, beam: int
) -> tuple[_Continuations, _Continuations]:
    """The continuations with `<eos>` that are among the `beam` likeliest, and the `beam` likeliest with words.

    The totals so far are (B, K). Offers that are barred (B, K or 1, n or 1) can't follow, as in sentences of the
    maximum length; `not_words` are `<eos>` and the forbidden ids.
    """
    if np.isnan(offers.values[..., 0]).any():
        raise G2Error(NOT_NUMBERS)
    is_no_word = (offers.tokens[..., None] == not_words).any(axis=-1) | is_barred
    values = np.where(is_no_word, -np.inf, offers.values)
    values = np.concatenate([offers.ends[..., None], values], axis=2, dtype=np.float64)
    words = np.concatenate([np.full_like(offers.tokens[..., :1], not_words[0]), offers.tokens], axis=2)
    choices = values.shape[2]  # of each hypothesis; the first is <eos>

    # There is one <eos> for each of at most `beam` hypotheses, so twice as many continuations have enough words.
    flat = (totals[..., None] + values).reshape(len(totals), -1)
    places = _highest(flat, 2 * beam)
    best = np.take_along_axis(flat, places, axis=1)
    parents, is_end = places // choices, places % choices == 0
    tokens = np.take_along_axis(words.reshape(len(words), -1), places, axis=1)
    ends = np.where(is_end, best, -np.inf)[:, :beam]
    going_on = np.where(is_end, -np.inf, best)
    order = _highest(going_on, beam)
    taken = (np.take_along_axis(one, order, axis=1) for one in (going_on, parents, tokens))
    return _Continuations(ends, parents[:, :beam], tokens[:, :beam]), _Continuations(*taken)


def _highest(values: Floats, most: int) -> Ints:
    """The places of the highest values of each row (B, n), at most so many, in order; of equal ones the first."""
    return np.argsort(-values, axis=1, kind="stable")[:, :most]


def check_lengths(lengths: Sequence[int], max_length: int | None, max_source: int | None) -> None:
    """Raises for sources that are too long, and for limits that make no sense."""
    if max_length is not None and not is_whole(max_length, 1, _ALL - 1):
        raise G2Error(f"max_length must be a whole number from 1 to {_ALL - 1}, got {max_length!r}")
    if max_source is not None and not is_whole(max_source, 0):
        raise G2Error(f"max_source must be a whole number of at least 0, got {max_source!r}; None means no limit")
    for line, length in enumerate(lengths, start=1):
        if max_source is not None and length > max_source:
            raise G2Error(f"line {line} {too_long(length, max_source)}")


def too_long(length: int, max_source: int) -> str:
    """What is wrong with a source of so many tokens."""
    return (
        f"has {length} tokens, more than max_source, which is {max_source}; split it into sentences, or raise "
        "--max-source"
    )


def groups(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """The places of sources that are translated side by side, at most so many, fewer if they are long.

    The longest come first, so that too little memory shows at once; empty ones are left out.
    """
    order = sorted((place for place, length in enumerate(lengths) if length), key=lambda place: -lengths[place])
    while order:
        size = max(1, min(most, most * _USUAL_LENGTH // lengths[order[0]]))
        yield order[:size]
        order = order[size:]


def limits(lengths: Ints, max_length: int | None) -> Ints:
    """The maximum number of tokens of each translation: by default twice the source and ten more."""
    return LIMIT_PER_TOKEN * lengths + LIMIT_MORE if max_length is None else np.full_like(lengths, max_length)


_ALL = 2**31  # next tokens: a step offers no more than it has


def find(
    step: Step, state: State, sources: Sequence[Sequence[int]], max_lengths: Ints, how: SearchOptions
) -> list[list[Hypothesis]]:
    """The best hypotheses of each source by `beam_search`, or those that are drawn."""
    if how.drawing is None:
        return beam_search(step, state, len(sources), max_lengths, how)
    return _draw(step, state, sources, max_lengths, how, *how.drawing)


@dataclass
class _Sentence:
    """A translation in the making."""

    generator: np.random.Generator
    tokens: list[int] = field(default_factory=list)  # with <eos> in the end
    missing: int = 0  # bytes of the last character
    looks: list[Floats] = field(default_factory=list)
    total: float = 0.0


def _draw(
    step: Step,
    state: State,
    sources: Sequence[Sequence[int]],
    max_lengths: Ints,
    how: SearchOptions,
    temperature: float,
    seed: int,
) -> list[list[Hypothesis]]:
    """`n_best` translations of each source, in the order of drawing.

    The random numbers depend on the seed and on the source, so a sentence gets the same ones in every batch.
    """
    eos, _, length_penalty, n_best, min_length, forbidden, keep_attention, _, utf8 = how
    check_temperature(temperature)
    check_seed(seed)
    if not is_whole(n_best, 1):
        raise G2Error(f"n_best must be a whole number of at least 1, got {n_best!r}")
    drawn = [
        [_Sentence(np.random.default_rng([seed, number, *source])) for number in range(n_best)] for source in sources
    ]
    rows, last = np.arange(len(sources)), np.full((len(sources), 1), eos)
    for length in range(int(max_lengths.max()) + min_length + 1):  # without the token to come
        offers = step(last, state, _ALL)
        parents = np.arange(n_best) % offers.values.shape[1]  # before the second step, all share one
        last = np.full((len(rows), n_best), eos)
        for place, row in enumerate(rows):
            for number, one in enumerate(drawn[row]):
                if one.tokens[-1:] == [eos]:
                    continue
                values, tokens = (each[place, parents[number]] for each in (offers.values, offers.tokens))
                allowed = ~np.isin(tokens, forbidden)
                if utf8 is not None:
                    room = max(int(max_lengths[row]), min_length) - length - 1
                    allowed &= utf8.allows(one.missing, tokens, room)
                if length < min_length:
                    allowed &= tokens != eos
                elif length >= max_lengths[row]:
                    allowed &= tokens == eos
                chosen = choose(np.where(allowed, values, -np.inf), temperature, None, 1.0, one.generator)
                last[place, number] = tokens[chosen]
                one.missing = 0 if utf8 is None else int(utf8.after[one.missing, tokens[chosen]])
                one.tokens.append(int(tokens[chosen]))
                one.total += float(values[chosen])
                if keep_attention:
                    one.looks.append(offers.attention[place, parents[number]].copy())
        going_on = np.flatnonzero((last != eos).any(axis=1))
        if not len(going_on):
            break
        state = offers.state.select(going_on, np.tile(parents, (len(going_on), 1)))
        rows, last = rows[going_on], last[going_on]
    return [
        [
            Hypothesis(
                one.tokens[:-1],
                one.total,
                one.total / len(one.tokens) ** float(length_penalty),
                np.stack(one.looks) if keep_attention else None,
            )
            for one in each
        ]
        for each in drawn
    ]
