"""What each sentence adds to the sums that a score is made of: enough to compute it again from any sample of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from g2lstm.tasks.mt.recipe import BleuSection


def nats_by_sentence(nats: npt.NDArray[np.float64], ends: npt.NDArray[Any]) -> list[list[float]]:
    """For each line the sum of -log p and the tokens, its <eos> with them.

    Args:
        nats: (n,) -log p of each token.
        ends: (n,) true where a token ends its line.
    """
    starts = np.flatnonzero(np.concatenate([[True], ends[:-1]]))
    sums = np.add.reduceat(nats, starts)
    counts = np.diff(np.append(starts, len(nats)))
    return [[round(float(total), 4), int(count)] for total, count in zip(sums, counts, strict=True)]


def bleu_by_sentence(texts: Sequence[str], references: Sequence[str], how: BleuSection) -> list[list[int]]:
    """For each sentence: matches of 1 to 4 words, n-grams of 1 to 4 words, its length, and the reference's."""
    from sacrebleu.metrics.bleu import BLEU

    bleu = BLEU(tokenize=how.tokenize, lowercase=how.lowercase, force=True, effective_order=True)
    scores = [bleu.sentence_score(text, [reference]) for text, reference in zip(texts, references, strict=True)]
    return [[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores]
