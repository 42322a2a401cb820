"""Perplexity of a token stream, read in order with the state carried on; every token but the first is predicted once.

Reading one token at a time leaves the processor idle, because the weights are fetched again for each token. So a
stretch of the stream is cut into columns that are read side by side, all but the first from a guessed state. Each
column is then read again from the state in which the previous one really ended, until its states agree with those of
the first reading; from there on the first reading was right. LSTMs forget, so only a small part of the stretch is read
twice; a model that does not forget takes as many rounds as there are columns. The result is always the same as that of
reading in order.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.nn.record import evaluating
from g2lstm.tasks.lm.model import LanguageModel, State
from g2lstm.tasks.lm.recipe import CacheSection
from g2lstm.tasks.trained import Progress

Tokens = Tensor | np.ndarray[Any, Any]  # (N,) integers; a memory-mapped array is read a stretch at a time

_CHECK_EVERY = 64  # steps between comparisons of states


class Score(NamedTuple):
    """How well a stream was predicted."""

    nats: float  # the sum of -log p over all predicted tokens
    tokens: int  # how many were predicted
    log_probabilities: Tensor  # (tokens,) float32 on the CPU, in stream order

    @property
    def perplexity(self) -> float:
        """exp(nats / tokens), or infinity if that overflows."""
        try:
            return math.exp(self.nats / self.tokens)
        except OverflowError:
            return math.inf


class Block(NamedTuple):
    """A stretch of the stream as the model sees it: n predictions."""

    features: Tensor  # (n, E), on the model's device
    log_probabilities: Tensor  # (n,), of the targets
    targets: Tensor  # (n,), the tokens to predict


def perplexity(model: LanguageModel, tokens: Tokens, **options: Any) -> Score:
    """The perplexity of a stream; see `read` for the arguments."""
    return score([block.log_probabilities.cpu() for block in read(model, tokens, **options)])


def score(log_probabilities: list[Tensor]) -> Score:
    """The score of a stream from the log-probabilities of its stretches, each (n,)."""
    joined = torch.cat(log_probabilities)
    found = Score(-joined.sum(dtype=torch.float64).item(), len(joined), joined.float())
    if not math.isfinite(found.perplexity):
        raise G2Error(
            f"the perplexity is not finite ({found.nats / found.tokens:g} nats per token): the model's weights are too "
            "large; train it again, with train.clip or a lower learning rate"
        )
    return found


def read(
    model: LanguageModel,
    tokens: Tokens,
    *,
    eval_gate: str | None = None,
    columns: int = 16,
    steps: int = 2048,
    progress: Progress | None = None,
) -> Iterator[Block]:
    """Reads a stream in evaluation mode from a zero state, and yields the model's predictions, in order.

    The model's mode and gates are restored between stretches. How many `columns` of a stretch are read at a time, and
    how many `steps` each has, affects speed and memory, not the result. `progress` is called with the tokens predicted
    so far and the total.
    """
    if len(tokens) < 2:
        raise G2Error(f"a stream needs at least 2 tokens, one to read and one to predict, got {len(tokens)}")
    total, at = len(tokens) - 1, 0
    state = model.initial_state(1)
    while at < total:
        width = columns if total - at >= columns * min(steps, _CHECK_EVERY) else 1
        height = min(steps, (total - at) // width)
        piece = _slice(tokens, at, at + width * height + 1, model)
        with evaluating(model, eval_gate), torch.no_grad():
            stretch = _Stretch(model, piece[:-1].view(width, height), state)
            state = _select(stretch.ends, [width - 1])
            features = stretch.features.flatten(0, 1)
            block = Block(features, -model.token_losses(features, piece[1:]), piece[1:])
        at += width * height
        yield block
        if progress is not None:
            progress(at, total)


def _slice(tokens: Tokens, start: int, stop: int, model: LanguageModel) -> Tensor:
    """tokens[start:stop] as int64 on the model's device, checked against its vocabulary."""
    part = tokens[start:stop]
    ids = part.to(torch.int64) if isinstance(part, Tensor) else torch.from_numpy(part.astype(np.int64))
    wrong = ids[(ids < 0) | (ids >= model.vocabulary_size)]
    if len(wrong):
        raise G2Error(
            f"token id {int(wrong[0])} is outside the model's vocabulary of {model.vocabulary_size}; "
            "encode the text with the tokenizer the model was trained with"
        )
    return ids.to(model.device)


class _Stretch:
    """Reads the rows of tokens (K, L) in sequence, from a state of batch 1."""

    def __init__(self, model: LanguageModel, tokens: Tensor, state: State) -> None:
        self.model, self.tokens = model, tokens
        columns, length = tokens.shape
        current = model.initial_state(columns)
        _assign(current, [0], state)
        self.features = model.softmax_bias.new_empty(columns, length, model.lstms[-1].hidden_size)
        self.seen: dict[int, State] = {}  # by step, the states of all columns where they are compared
        for place in range(0, length, _CHECK_EVERY):
            self.seen[place] = current
            current = self._advance(list(range(columns)), place, current)
        self.ends = current
        # Each is read again from where the previous one is now known to end. The first of them starts from a true
        # state, so every round settles at least one; a column with a new end makes the next one pending.
        pending = list(range(1, columns))
        while pending:
            pending = [column + 1 for column in self._reread(pending) if column + 1 < columns]

    def _reread(self, columns: list[int]) -> list[int]:
        """Reads columns again until they agree with what was seen; returns those that never did."""
        current = _select(self.ends, [column - 1 for column in columns])
        for place, before in self.seen.items():
            agrees = _agrees(current, _select(before, columns))
            going_on = [k for k, is_same in enumerate(agrees) if not is_same]
            columns, current = [columns[k] for k in going_on], _select(current, going_on)
            if not columns:
                return []
            _assign(before, columns, current)
            current = self._advance(columns, place, current)
        _assign(self.ends, columns, current)
        return columns

    def _advance(self, columns: list[int], place: int, current: State) -> State:
        window = slice(place, place + _CHECK_EVERY)
        features, _, current = self.model(self.tokens[columns, window].t(), current)
        self.features[columns, window] = features.transpose(0, 1)
        return current


def _select(state: State, columns: list[int]) -> State:
    return [(h[:, columns], c[:, columns]) for h, c in state]


def _assign(state: State, columns: list[int], values: State) -> None:
    for (h, c), (new_h, new_c) in zip(state, values, strict=True):
        h[:, columns], c[:, columns] = new_h, new_c


def _agrees(one: State, other: State) -> list[bool]:
    """For each column, whether its states are equal up to rounding."""
    tolerance = torch.finfo(one[0][0].dtype).eps ** 0.75
    same = [
        ((a - b).abs() <= tolerance * (1 + b.abs())).all(dim=-1).squeeze(0)
        for pair, other_pair in zip(one, other, strict=True)
        for a, b in zip(pair, other_pair, strict=True)
    ]
    return torch.stack(same).all(dim=0).tolist()


_ROWS = 128  # predictions at a time, so that their scores against the window stay in the processor's cache
_WINDOWS = (100, 200, 500, 1000, 2000, 4000)
_THETAS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5)


class CacheMemory:
    """The states of recent steps and the tokens that followed them; several windows and θ share the work."""

    def __init__(self, windows: Sequence[int], thetas: Sequence[float]) -> None:
        self.windows, self.thetas = windows, thetas
        self._size = max(windows)
        self._features: Tensor | None = None  # (n, E), n <= size
        self._following: Tensor | None = None  # (n,)

    def probabilities(self, features: Tensor, targets: Tensor) -> Tensor:
        """p_cache of each target (n,) from the steps before its state, one of `features` (n, E); remembers them all.

        Returns (windows, thetas, n) in float64; NaN for a step with no steps before it.
        """
        past, following = self._features, self._following
        if past is None or following is None:
            past, following = features[:0], targets[:0]
        offset = len(past)
        past, following = torch.cat([past, features]), torch.cat([following, targets])
        parts = [
            self._block(past, following, offset + at, min(_ROWS, len(features) - at))
            for at in range(0, len(features), _ROWS)
        ]
        self._features, self._following = past[-self._size :].clone(), following[-self._size :].clone()
        return torch.cat(parts, dim=2)

    def _block(self, past: Tensor, following: Tensor, start: int, rows: int) -> Tensor:
        """p_cache for the steps start ... start + rows - 1 of `past`: (windows, thetas, rows)."""
        size, stop = self._size, start + rows
        first = max(start - size, 0)
        missing = size - (start - first)  # at the start of the stream the window is not full
        scores = past.new_full((rows, size + rows), -math.inf)
        scores[:, missing:] = past[start:stop] @ past[first:stop].t()
        nexts = torch.cat([following.new_full((missing,), -1), following[first:stop]])
        # Step r looks back at columns r ... r + size - 1. In a skewed view, where a column is a lag, no mask is needed.
        lags = scores.as_strided((rows, size), (size + rows + 1, 1))
        matches = nexts.as_strided((rows, size), (1, 1)) == following[start:stop, None]

        # Exponentials are relative to each window's own highest score; relative to the highest of all windows,
        # those of the shortest window might all be 0.
        result = past.new_empty(len(self.windows), len(self.thetas), rows, dtype=torch.float64)
        for k, window in enumerate(self.windows):
            near = lags[:, size - window :]
            below = near - near.amax(dim=1, keepdim=True).clamp_min(torch.finfo(past.dtype).min)
            where = matches[:, size - window :].nonzero(as_tuple=True)
            for j, theta in enumerate(self.thetas):
                weights = (below * theta).exp_()
                matched = past.new_zeros(rows).index_add_(0, where[0], weights[where])
                result[k, j] = matched.double() / weights.sum(dim=1)
        return result


def cached_perplexity(model: LanguageModel, tokens: Tokens, cache: CacheSection | None, **options: Any) -> Score:
    """The perplexity of a stream, perhaps with a cache; the options are those of `g2lstm.tasks.lm.evaluate.read`."""
    if cache is None:
        return perplexity(model, tokens, **options)
    memory = CacheMemory([min(cache.window, len(tokens))], [cache.theta])  # no more room than the stream needs
    parts = []
    for block in read(model, tokens, **options):
        from_cache = memory.probabilities(block.features, block.targets)[0, 0]
        parts.append(mix(block.log_probabilities, from_cache, cache.lambda_).cpu())
    return score(parts)


def mix(log_probabilities: Tensor, from_cache: Tensor, share: float) -> Tensor:
    """log((1 - λ) p_model + λ p_cache) in float64; log p_model where the cache is empty (NaN)."""
    model = log_probabilities.double().exp()
    return torch.where(from_cache.isnan(), model, torch.lerp(model, from_cache, share)).log()


def tune_cache(
    model: LanguageModel,
    tokens: Tokens,
    *,
    windows: Sequence[int] = _WINDOWS,
    thetas: Sequence[float] = _THETAS,
    **options: Any,
) -> CacheSection:
    """Finds the window, θ and λ with the lowest perplexity on a stream, which should be the validation set.

    The model reads the stream once for all windows and θ. The loss is convex in λ, so the best λ for each pair is found
    without a grid. The options are those of `g2lstm.tasks.lm.evaluate.read`.
    """
    memory = CacheMemory(windows, thetas)
    plain, cached = [], []
    for block in read(model, tokens, **options):
        cached.append(memory.probabilities(block.features, block.targets).float().cpu())
        plain.append(block.log_probabilities.cpu())
    log_probabilities, from_cache = torch.cat(plain), torch.cat(cached, dim=2).double()
    tried = []
    for k, window in enumerate(memory.windows):
        for j, theta in enumerate(memory.thetas):
            share = _best_share(log_probabilities, from_cache[k, j])
            mixed = mix(log_probabilities, from_cache[k, j], share)
            tried.append((score([mixed]).perplexity, {"window": window, "theta": theta, "lambda": share}))
    _, best = min(tried, key=lambda each: each[0])
    return CacheSection.model_validate(best)


def _best_share(log_probabilities: Tensor, from_cache: Tensor) -> float:
    """The λ with the lowest loss, to 4 digits: where the derivative of the mean log-probability changes sign."""
    model = log_probabilities.double().exp()
    difference = torch.where(from_cache.isnan(), 0.0, from_cache - model)
    low, high = 0.0, 0.9999
    for _ in range(16):
        middle = (low + high) / 2
        if (difference / (model + middle * difference)).mean() > 0:
            low = middle
        else:
            high = middle
    return round(low, 4)
