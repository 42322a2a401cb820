"""`CompiledTranslation`: a translation model in the compiled kernel (`nn/csrc/translation.cpp`), on packed weights."""

import ctypes
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression.encodings import Encoding
from g2lstm.compression.gate_weights import LayerWeights
from g2lstm.compression.kernel import Block, check_created, described, pack_layer, pack_softmax
from g2lstm.compression.session import HARD, Layer
from g2lstm.errors import G2Error
from g2lstm.nn.kernel import find
from g2lstm.runtime.beam import NOT_NUMBERS, Hypothesis, Ints, check_search
from g2lstm.runtime.plain import TranslationParts

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_int64


class _Model(ctypes.Structure):
    _fields_ = [
        *[(name, _LONG) for name in ("above", "decoder", "softmax", "residual", "hard", "threads")],
        ("target", _POINTER),
        *[(name, _LONG) for name in ("vocabulary", "embedding")],
    ]


class _Search(ctypes.Structure):
    _fields_ = [
        *[(name, _LONG) for name in ("end", "beam", "n_best", "min_length", "keep_attention", "not_words")],
        ("not_word", _POINTER),
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

    def find(
        self,
        sources: Sequence[Sequence[int]],
        most: Ints,
        eos: int,
        *,
        beam: int = 5,
        length_penalty: float = 1.0,
        n_best: int = 1,
        min_length: int = 0,
        forbidden: Sequence[int] = (),
        keep_attention: bool = False,
    ) -> list[list[Hypothesis]]:
        """The best translations of each source, which includes its `<eos>`, the longest source first.

        `most` are the maximum lengths; the options are those of `beam_search`.
        """
        check_search(eos, beam, length_penalty, n_best, forbidden)
        words = len(self._target)
        if not 0 <= eos < words:
            raise G2Error(f"target_eos must be a token id from 0 to {words - 1}, got {eos}")
        not_words = np.array([eos, *(token for token in forbidden if 0 <= token < words)], np.int64)
        lengths = np.array([len(source) for source in sources], np.int64)
        x = np.ascontiguousarray(self._rows(sources), np.float32)
        longest, sizes = np.ascontiguousarray(most, np.int64), np.empty((len(sources), n_best), np.int64)
        numbers = (eos, beam, n_best, min_length, keep_attention, len(not_words))
        how = _Search(*numbers, not_words.ctypes.data, length_penalty)
        given = (x.ctypes.data, lengths.ctypes.data, longest.ctypes.data, len(sources))
        with self._lock:
            status = self._library.g2lstm_translation_run(self._handle, *given, ctypes.byref(how), sizes.ctypes.data)
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
