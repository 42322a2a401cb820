"""How nearly a beam search could have found something else."""

from contextlib import contextmanager

import numpy as np

from g2lstm.runtime import beam


@contextmanager
def cuts():
    """Collects the differences in log-probability between the last that a search keeps and the first that it drops."""
    gaps, highest = [], beam._highest

    def watched(values, most):
        ordered = -np.sort(-values, axis=1)
        for cut in (most, most // 2):  # of twice as many as the beam, the first half may end a sentence
            if 0 < cut < values.shape[1]:
                gaps.extend(kept - left for kept, left in ordered[:, cut - 1 : cut + 1] if left > -np.inf)
        return highest(values, most)

    beam._highest = watched
    try:
        yield gaps
    finally:
        beam._highest = highest


def best_and_margin(search, *, beam=5, n_best=1, **options):
    """The best translations of one sentence by `search`, and a bound of what must change before it finds others."""
    with cuts() as gaps:
        (found,) = search(beam=beam, n_best=beam, **options)
    scores = [one.score for one in found[: n_best + 1]]
    return found[:n_best], min([*gaps, *-np.diff(scores), np.inf])


def rounding(found):
    """By how much the kernel's log-probabilities may be off: it rounds vectors to 16 bits."""
    return 1e-4 + 2e-5 * max(len(one) for one in found)
