"""`PlainTranslation`: a translation model in NumPy, with decoded weights, one sentence at a time."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from g2lstm.compression.encodings import Encoding
from g2lstm.compression.gate_weights import LayerWeights
from g2lstm.compression.session import lstm_cell
from g2lstm.runtime.beam import Floats, Hypothesis, Ints, Offers, SearchOptions, find


class TranslationParts(NamedTuple):
    """The weights of a translation model, which `tasks/mt/model.py` describes.

    Attributes:
        source, target: the embeddings (V, E); one if they are tied.
        directions: the first layer of the encoder, forward and backward.
        above: its other layers.
        decoder: the layers of the decoder.
        key: (H, C), of the attention.
        bridge, output: matrices and biases of the linear layers.
        softmax, bias: (V, E), the target embedding itself if they are tied, and (V,).
        residual: whether layers add their input to their output.
        hard: the gates that are 1[a >= 0] instead of a sigmoid.
    """

    source: Encoding
    target: Encoding
    directions: list[LayerWeights]
    above: list[LayerWeights]
    decoder: list[LayerWeights]
    key: Encoding
    bridge: tuple[Encoding, Floats]
    output: tuple[Encoding, Floats]
    softmax: Encoding
    bias: Floats
    residual: bool
    hard: str


class PlainTranslation:
    """Computes in float32, and is what the compiled kernel is compared with."""

    def __init__(self, parts: TranslationParts) -> None:
        self._residual, self._softmax = parts.residual, _Linear(parts.softmax, parts.bias)
        is_tied = parts.softmax is parts.target
        self._source, self._target = parts.source, self._softmax.weight if is_tied else parts.target.decode()
        self._key, self._bridge, self._output = parts.key.decode(), _Linear(*parts.bridge), _Linear(*parts.output)
        each = (parts.directions, parts.above, parts.decoder)
        self._directions, self._above, self._decoder = (list(map(_Lstm, layers)) for layers in each)

    def find(self, source: Sequence[int], most: Ints, how: SearchOptions) -> list[list[Hypothesis]]:
        """The translations of one source, which includes its `<eos>`."""
        start = self._start(self._encode(source), how.eos)
        return find(self._step, start, [source[:-1]], most, how)

    def _encode(self, source: Sequence[int]) -> "_Memory":
        x: Floats = self._source.rows(np.array(source, np.int64))
        forward, backward = self._directions
        x = np.concatenate([forward.sequence(x), backward.sequence(x[::-1])[::-1]], axis=1)
        for number, layer in enumerate(self._above):
            out = layer.sequence(x)
            x = x + out if self._residual and number else out
        return _Memory(x, x @ self._key.T)

    def _start(self, memory: "_Memory", eos: int) -> "_State":
        h = np.tanh(self._bridge(memory.values.mean(axis=0))).reshape(len(self._decoder), 1, -1)
        return _State(memory, eos, h, np.zeros_like(h))

    def _step(self, tokens: Ints, state: "_State", count: int) -> Offers:
        """Reads a token (1, K) of each hypothesis."""
        memory, before = state.memory, zip(state.h, state.c, strict=True)
        first, *above = self._decoder
        x, c = first.step(self._target[tokens[0]], *next(before))
        ends = [(x, c)]
        scores = x @ memory.keys.T * x.shape[1] ** -0.5
        attention = np.exp(scores - scores.max(axis=1, keepdims=True))
        attention /= attention.sum(axis=1, keepdims=True)
        context = attention @ memory.values
        for layer, (h, c) in zip(above, before, strict=True):
            h, c = layer.step(np.concatenate([x, context], axis=1), h, c)
            ends.append((h, c))
            x = x + h if self._residual else h
        logits = self._softmax(np.tanh(self._output(np.concatenate([x, context], axis=1))))
        values, best, end = _likeliest(logits, count, state.eos)
        h, c = (np.stack(each) for each in zip(*ends, strict=True))
        return Offers(values[None], best[None], end[None], attention[None], state._replace(h=h, c=c))


class _Memory(NamedTuple):
    """An encoded source of S tokens."""

    values: Floats  # (S, C)
    keys: Floats  # (S, H)


class _State(NamedTuple):
    """The state of the decoder for K hypotheses of one sentence."""

    memory: _Memory
    eos: int  # of the target
    h: Floats  # (layers, K, H)
    c: Floats

    def select(self, sentences: Ints, hypotheses: Ints) -> "_State":
        """As `beam.State` says; there is one sentence."""
        return self._replace(h=self.h[:, hypotheses[0]], c=self.c[:, hypotheses[0]])


class _Linear:
    """W x + b, with decoded weights (N, K)."""

    def __init__(self, matrix: Encoding, bias: Floats) -> None:
        self.weight, self._bias = matrix.decode(), bias

    def __call__(self, x: Floats) -> Floats:
        return x @ self.weight.T + self._bias


class _Lstm:
    """A layer in one direction, with decoded weights."""

    def __init__(self, layer: LayerWeights) -> None:
        self._hard, factors = layer.hard, layer.row_factors
        each = (layer.w_x, layer.w_h)
        self._w_x, self._w_h = (
            np.concatenate([one.encoding.decode() for one in gates]) * factors[:, None] for gates in each
        )
        self._bias = (layer.b_x + layer.b_h) * factors

    def sequence(self, x: Floats) -> Floats:
        """Reads x (T, I) from a state of zeros; returns h of each step (T, H)."""
        h = c = np.zeros(self._w_h.shape[1], np.float32)
        out = np.empty((len(x), len(h)), np.float32)
        for t, a in enumerate(x @ self._w_x.T + self._bias):
            out[t], c = h, c = lstm_cell(a + self._w_h @ h, c, self._hard)
        return out

    def step(self, x: Floats, h: Floats, c: Floats) -> tuple[Floats, Floats]:
        """Reads x (K, I) in states h and c (K, H); returns the new ones."""
        return lstm_cell(x @ self._w_x.T + h @ self._w_h.T + self._bias, c, self._hard)


def _likeliest(logits: Floats, count: int, eos: int) -> tuple[Floats, Ints, Floats]:
    """The log-probabilities and the ids of the likeliest tokens (K, count) of logits (K, V), and those of `<eos>`."""
    count = min(count, logits.shape[1])
    best = np.argpartition(-logits, count - 1, axis=1)[:, :count]
    values = np.take_along_axis(logits, best, axis=1)
    order = np.lexsort((best, -values), axis=1)
    top = logits.max(axis=1, keepdims=True)
    total = top + np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    best = np.take_along_axis(best, order, axis=1)
    return np.take_along_axis(values, order, axis=1) - total, best, logits[:, eos] - total[:, 0]
