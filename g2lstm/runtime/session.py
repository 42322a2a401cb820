"""`TranslationSession`: translates on packed weights, in the compiled kernel (`csrc/translation.cpp`) or in NumPy."""

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression import kernel
from g2lstm.compression.encodings import Encoding
from g2lstm.compression.gate_weights import LayerWeights
from g2lstm.compression.kernel import Block, check_created, described, pack_layer, pack_softmax
from g2lstm.compression.session import HARD, Layer
from g2lstm.errors import G2Error
from g2lstm.nn.kernel import find
from g2lstm.runtime.beam import (
    MAX_SOURCE,
    NOT_NUMBERS,
    Hypothesis,
    Ints,
    SearchOptions,
    check_lengths,
    groups,
    limits,
)
from g2lstm.runtime.plain import PlainTranslation, TranslationParts

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_int64


class _Model(ctypes.Structure):
    _fields_ = [
        *[(name, _LONG) for name in ("above", "decoder", "softmax", "residual", "hard", "threads")],
        ("target", _POINTER),
        *[(name, _LONG) for name in ("vocabulary", "embedding")],
    ]


class _Search(ctypes.Structure):
    _fields_ = [
        *[(name, _LONG) for name in ("end", "beam", "n_best", "min_length", "keep_attention", "not_words", "words")],
        ("not_word", _POINTER),
        ("after", _POINTER),
        ("length_penalty", ctypes.c_double),
    ]


class CompiledTranslation:
    """Translates sentences side by side. Threads can share it; they take turns.

    Args:
        parts: the weights, of which it packs a copy.
        threads: at most this many; small models use fewer.

    Attributes:
        threads: the number in use.
    """

    def __init__(self, parts: TranslationParts, threads: int) -> None:
        library: Any = find().library
        panel = library.g2lstm_stack_panel()
        packed = [pack_layer(layer, panel) for layer in _layers(parts)]
        softmax: list[Block] = pack_softmax(Layer.softmax(parts.softmax, parts.bias), panel)
        self._library, self._lock, self._source = library, threading.Lock(), parts.source
        self._target = np.ascontiguousarray(parts.target.decode(), np.float32)
        counts = (len(parts.above), len(parts.decoder), len(softmax))
        table = (self._target.ctypes.data, *self._target.shape)
        model = _Model(*counts, parts.residual, HARD.index(parts.hard), threads, *table)
        self._handle = _POINTER()
        with described([*packed, *softmax]) as specs:
            created = library.g2lstm_translation_create(specs, ctypes.byref(model), ctypes.byref(self._handle))
            check_created(created, [*packed, *softmax])
        # Not at exit: a thread may still be in a call, and the process returns the memory anyway.
        weakref.finalize(self, library.g2lstm_translation_destroy, self._handle).atexit = False
        self.threads: int = library.g2lstm_translation_threads(self._handle)

    def find(self, sources: Sequence[Sequence[int]], most: Ints, how: SearchOptions) -> list[list[Hypothesis]]:
        """The best translations of each source, which includes its `<eos>`, the longest source first.

        `most` are the maximum lengths.
        """
        how.check()
        eos, beam, length_penalty, n_best, min_length, forbidden, keep_attention, _, utf8 = how
        words = len(self._target)
        if not 0 <= eos < words:
            raise G2Error(f"target_eos must be a token id from 0 to {words - 1}, got {eos}")
        not_words = np.array([eos, *(token for token in forbidden if 0 <= token < words)], np.int64)
        after = None if utf8 is None else np.ascontiguousarray(utf8.after, np.uint8)
        if after is not None and after.shape[1] != words:
            raise G2Error(f"utf8 must know all {words} tokens, got {after.shape[1]}")
        lengths = np.array([len(source) for source in sources], np.int64)
        x = np.ascontiguousarray(self._rows(sources), np.float32)
        longest, sizes = np.ascontiguousarray(most, np.int64), np.empty((len(sources), n_best), np.int64)
        numbers = (eos, beam, n_best, min_length, keep_attention, len(not_words), words)
        pointers = not_words.ctypes.data, None if after is None else after.ctypes.data
        search = _Search(*numbers, *pointers, length_penalty)
        given = (x.ctypes.data, lengths.ctypes.data, longest.ctypes.data, len(sources))
        with self._lock:
            status = self._library.g2lstm_translation_run(self._handle, *given, ctypes.byref(search), sizes.ctypes.data)
            if status:
                raise G2Error(
                    {1: "there is not enough memory to translate this; use a smaller beam"}.get(status, NOT_NUMBERS)
                )
            counts = sizes[sizes >= 0]
            tokens, scores = np.empty(counts.sum(), np.int64), np.empty((len(counts), 2))
            looked = (np.where(sizes >= 0, sizes + 1, 0) * lengths[:, None]).sum() if keep_attention else 0
            attention = np.empty(looked, np.float32)
            self._library.g2lstm_translation_take(
                self._handle, tokens.ctypes.data, scores.ctypes.data, attention.ctypes.data
            )
        return list(_hypotheses(sizes, lengths, tokens, scores, attention if keep_attention else None))

    def _rows(self, sources: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        ids = np.array([token for source in sources for token in source], np.int64)
        size = self._source.shape[0]
        if ids.min() < 0 or ids.max() >= size:
            raise G2Error(f"token ids go from 0 to {size - 1}, got {ids.min() if ids.min() < 0 else ids.max()}")
        return self._source.rows(ids)


def _hypotheses(
    sizes: Ints, lengths: Ints, tokens: Ints, scores: NDArray[np.float64], attention: NDArray[np.float32] | None
) -> Iterator[list[Hypothesis]]:
    at = looked = number = 0
    for each, length in zip(sizes.tolist(), lengths.tolist(), strict=True):
        found = []
        for size in each:
            if size < 0:
                continue
            total, score = scores[number].tolist()
            looks = None
            if attention is not None:
                looks = attention[looked : looked + (size + 1) * length].reshape(size + 1, length).copy()
                looked += looks.size
            found.append(Hypothesis(tokens[at : at + size].tolist(), total, score, looks))
            at, number = at + size, number + 1
        yield found


def _layers(parts: TranslationParts) -> Iterator[Layer]:
    """All but the softmax, as `translation.cpp` takes them; encoder layers are in two, for x and for h."""
    for one in (*parts.directions, *parts.above):
        layer = one.session_layer()
        from_x, from_h = (tuple(term for term in layer.terms if term.source == source) for source in "xh")
        yield replace(layer, terms=from_x)
        yield Layer(layer.hidden, from_h, np.zeros_like(layer.bias))
    yield _linear(parts.key, np.zeros(parts.key.shape[0], np.float32))
    yield _linear(*parts.bridge)
    yield from map(LayerWeights.session_layer, parts.decoder)
    yield _linear(*parts.output)


def _linear(matrix: Encoding, bias: NDArray[Any]) -> Layer:
    return Layer.softmax(matrix, np.ascontiguousarray(bias, np.float32))


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
            progress: called with the sentences done and the total.
            **options: those of `SearchOptions`, such as `beam=5`. Kept attention is (len(tokens) + 1, len(source) + 1).
                NumPy draws.
        """
        how, sizes = SearchOptions(target_eos, **options), [len(source) for source in sources]
        check_lengths(sizes, max_length, max_source)
        results = [[Hypothesis([], 0.0, 0.0)] for _ in sources]
        done, compiled = sizes.count(0), self._compiled if how.drawing is None else None
        for places in groups(sizes, 1 if compiled is None else min(at_once, _AT_ONCE)):
            group = [[*sources[place], source_eos] for place in places]
            most = limits(np.array([sizes[place] for place in places]), max_length)
            found = self._plain.find(group[0], most, how) if compiled is None else compiled.find(group, most, how)
            for place, best in zip(places, found, strict=True):
                results[place] = best
            done += len(places)
            if progress is not None:
                progress(done, len(sources))
        return results
