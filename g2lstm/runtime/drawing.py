"""Translations drawn at random from a model that predicts one word at a time, in NumPy."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from g2lstm.errors import G2Error
from g2lstm.runtime.beam import Floats, Hypothesis, Ints, State, Step, beam_search
from g2lstm.runtime.sampling import check_temperature, choose

_ALL = 2**31  # next tokens: a step offers no more than it has


class Drawing(NamedTuple):
    """How to draw translations, instead of searching for the likeliest."""

    temperature: float = 1.0  # below 1, likely tokens become likelier; 0 always takes the likeliest
    seed: int = 0


def find(
    step: Step, state: State, sources: Sequence[Sequence[int]], *, drawing: Drawing | None = None, **options: Any
) -> list[list[Hypothesis]]:
    """The best hypotheses of each source by `beam_search`, whose options these are; or those that are drawn."""
    if drawing is None:
        return beam_search(step, state, len(sources), **options)
    return _draw(step, state, sources, drawing, **options)


@dataclass
class _Sentence:
    """A translation in the making."""

    generator: np.random.Generator
    tokens: list[int] = field(default_factory=list)  # with <eos> in the end
    looks: list[Floats] = field(default_factory=list)
    total: float = 0.0


def _draw(
    step: Step,
    state: State,
    sources: Sequence[Sequence[int]],
    how: Drawing,
    *,
    eos: int,
    max_lengths: Ints,
    beam: int = 1,  # has no effect
    length_penalty: float = 1.0,
    n_best: int = 1,
    min_length: int = 0,
    forbidden: Sequence[int] = (),
    keep_attention: bool = False,
) -> list[list[Hypothesis]]:
    """`n_best` translations of each source, in the order of drawing; the options are those of `beam_search`.

    The random numbers depend on the seed and on the source, so a sentence gets the same ones in every batch.
    """
    check_temperature(how.temperature)
    if how.seed < 0 or n_best < 1:
        raise G2Error(f"seed must be at least 0 and n_best at least 1, got {how.seed} and {n_best}")
    drawn = [
        [_Sentence(np.random.default_rng([how.seed, number, *source])) for number in range(n_best)]
        for source in sources
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
                if length < min_length:
                    allowed &= tokens != eos
                elif length >= max_lengths[row]:
                    allowed &= tokens == eos
                chosen = choose(np.where(allowed, values, -np.inf), how.temperature, None, 1.0, one.generator)
                last[place, number] = tokens[chosen]
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
