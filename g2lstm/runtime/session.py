"""`TranslationSession`: translates token ids, in the compiled kernel where there is one."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from g2lstm.compression import kernel
from g2lstm.runtime.beam import MAX_SOURCE, Hypothesis, check_lengths, groups, limits
from g2lstm.runtime.compiled import CompiledTranslation
from g2lstm.runtime.drawing import Drawing
from g2lstm.runtime.plain import PlainTranslation, TranslationParts

_AT_ONCE = 16  # sentences; their hypotheses fill the kernel, and their logits still fit the cache


class TranslationSession:
    """A translation model that keeps its own packed copy of the weights.

    The kernel computes encoder, attention, decoder, softmax and beam search in one call and reads every weight once per
    step for all hypotheses. It rounds as a `KernelSession` does. Without the kernel the session computes in NumPy.

    Args:
        parts: the weights.
        threads: at most this many; if not given, as many as torch uses, or one per processor without torch.
    """

    def __init__(self, parts: TranslationParts, threads: int | None = None) -> None:
        self._parts, self._wanted = parts, kernel.wanted_threads(threads)
        self._compiled = CompiledTranslation(parts, self._wanted) if kernel.available() else None

    @cached_property
    def _plain(self) -> PlainTranslation:
        return PlainTranslation(self._parts)

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        *,
        source_eos: int,
        target_eos: int,
        max_length: int | None = None,
        max_source: int | None = MAX_SOURCE,
        at_once: int = _AT_ONCE,
        drawing: Drawing | None = None,
        progress: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> list[list[Hypothesis]]:
        """The best translations of each source, best first. An empty source has one translation, which is empty.

        Args:
            sources: token ids without `<eos>`.
            source_eos: the id of `<eos>` in sources.
            target_eos: the id of `<eos>` in translations.
            max_length: the maximum number of tokens of a translation; by default twice the source and ten more.
            max_source: a source with more tokens is an error; None for no limit.
            at_once: at most this many sources are translated side by side, which takes less time.
            drawing: draw translations at random instead, which NumPy does.
            progress: called with the sentences done and the total.
            **options: those of `beam_search`, such as `beam=5`; kept attention is (len(tokens) + 1, len(source) + 1).
        """
        sizes = [len(source) for source in sources]
        check_lengths(sizes, max_length, max_source)
        results = [[Hypothesis([], 0.0, 0.0)] for _ in sources]
        done, compiled = sizes.count(0), self._compiled if drawing is None else None
        for places in groups(sizes, 1 if compiled is None else min(at_once, _AT_ONCE)):
            group = [[*sources[place], source_eos] for place in places]
            most = limits(np.array([sizes[place] for place in places]), max_length)
            if compiled is None:
                found = self._plain.find(group[0], most, target_eos, drawing=drawing, **options)
            else:
                found = compiled.find(group, most, target_eos, **options)
            for place, best in zip(places, found, strict=True):
                results[place] = best
            done += len(places)
            if progress is not None:
                progress(done, len(sources))
        return results
