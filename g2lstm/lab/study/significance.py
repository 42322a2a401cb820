"""Whether a difference could be chance: the paired bootstrap over the sentences of a test set (Koehn, 2004).

A corpus score is a function of sums over sentences: log-probabilities and tokens for perplexity, matching n-grams and
lengths for BLEU. So scoring a sample of sentences needs only new sums, not another look at the text.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from g2lstm.errors import G2Error

Array = np.ndarray[Any, np.dtype[np.float64]]
Score = Callable[[Array], Array]  # sums (samples, k) to scores (samples,)


LEAST = 20  # sentences or blocks: with fewer, a bootstrap finds differences that do not exist
_BLOCK = 10  # sentences of running text to draw together; fewer in a text too short for `LEAST` such blocks


class Term(NamedTuple):
    """A score in a sum of scores."""

    weight: float  # usually 1 or -1
    seeds: Sequence[Array]  # (sentences, k) each: what sentences add to the sums; scores are averaged over seeds


class Difference(NamedTuple):
    """A difference of scores, and how much the choice of sentences can change it."""

    value: float
    low: float  # 95 % of samples lie between these
    high: float
    p_value: float  # two-sided: twice the share of samples on the rarer side of zero; above 0.05 if 0 is between


def bootstrap(terms: Sequence[Term], score: Score, *, samples: int = 1000, block: int = 1, seed: int = 1) -> Difference:
    """The weighted sum of scores, and how it varies over samples of the sentences; all terms get the same samples.

    It shows how much depends on this test set; only more seeds can show how much depends on the seed of training.
    `block` neighbouring sentences are drawn together, because sentences of one article are not independent.
    """
    lengths = {len(one) for term in terms for one in term.seeds}
    if len(lengths) != 1:
        raise G2Error(f"scores can only be compared on the same sentences, got {sorted(lengths)} sentences")
    starts = np.arange(0, lengths.pop(), block)
    blocked = [Term(weight, [np.add.reduceat(one, starts, axis=0) for one in seeds]) for weight, seeds in terms]

    def combined(counts: Array) -> Array:
        """The sums (samples,) from counts (samples, blocks) of how often each block is in each sample."""
        total = np.zeros(len(counts))
        for weight, seeds in blocked:
            total += weight * np.mean([score(counts @ one) for one in seeds], axis=0)
        return total

    generator, count = np.random.default_rng(seed), len(starts)
    drawn = generator.multinomial(count, np.full(count, 1 / count), size=samples)
    values = np.sort(combined(drawn.astype(np.float64)))
    outside = max(int(0.025 * (samples + 1)), 1)  # on each side, counted as for the p-value
    rarer = min(int((values <= 0).sum()), int((values >= 0).sum()))
    p_value = min(2 * (rarer + 1) / (samples + 1), 1.0)
    whole = combined(np.ones((1, count)))[0]
    return Difference(float(whole), float(values[outside - 1]), float(values[-outside]), p_value)


def compared(terms: Sequence[Term], *, is_language: bool) -> Difference:
    """The bootstrap of perplexities of running text, or of BLEU."""
    block = max(1, min(len(terms[0].seeds[0]) // LEAST, _BLOCK)) if is_language else 1
    return bootstrap(terms, perplexity_of if is_language else bleu_of, block=block)


def chance(p_value: float) -> str:
    """A p-value; a thousand samples can't tell values below 0.002 apart."""
    return f"{p_value:.3f}" if p_value >= 0.002 else "< 0.002"


def perplexity_of(sums: Array) -> Array:
    """Perplexities from the sums of -log p and of tokens."""
    perplexities: Array = np.exp(sums[:, 0] / sums[:, 1])
    return perplexities


def bleu_of(sums: Array) -> Array:
    """BLEU by sacreBLEU, from matches of 1 to 4 words, n-grams of 1 to 4 words, length, and the reference's length."""
    from sacrebleu.metrics.bleu import BLEU

    return np.array(
        [
            BLEU.compute_bleu(row[:4].tolist(), row[4:8].tolist(), int(row[8]), int(row[9]), smooth_method="exp").score
            for row in np.rint(sums).astype(np.int64)
        ]
    )
