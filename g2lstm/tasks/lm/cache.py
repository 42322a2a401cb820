"""The continuous cache pointer (Grave et al., 2017): words that recently followed a similar state are likely again.

p = (1 - λ) p_model + λ p_cache, where p_cache(w) is proportional to the sum of exp(θ h_t · h_i) over all steps i among
the last `window` that w followed. Only the probability of the actual next token is ever needed.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from g2lstm.tasks.lm.evaluate import Score, Tokens, perplexity, read, score
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.lm.recipe import CacheSection

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
