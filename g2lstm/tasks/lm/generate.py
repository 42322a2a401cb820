"""Sampling from a language model, one token at a time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from g2lstm.nn.record import evaluating
from g2lstm.runtime.sampling import continuation
from g2lstm.tasks.lm.model import LanguageModel


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    eval_gate: str | None = None,
    generator: np.random.Generator | None = None,
    **options: Any,
) -> Iterator[int]:
    """Yields token ids without end that continue a prompt of at least one token, such as the end of a sentence.

    The options are those of `runtime.sampling.continuation`. The model's mode and gates are restored between tokens.
    Without a generator, torch's own seeds one.
    """
    return continuation(reader(model, eval_gate), prompt, generator=generator or seeded(None), **options)


def reader(model: LanguageModel, eval_gate: str | None = None) -> Callable[[Sequence[int]], NDArray[np.float32]]:
    """A function that reads the next tokens from where it stopped, and returns the logits (V,) after the last."""
    state = None

    def read(tokens: Sequence[int]) -> NDArray[np.float32]:
        nonlocal state
        with evaluating(model, eval_gate), torch.no_grad():
            ids = torch.tensor(tokens, device=model.device).unsqueeze(1)
            features, _, state = model(ids, state)
            logits: NDArray[np.float32] = model.logits(features[-1, 0]).float().numpy(force=True)
            return logits

    return read


def seeded(seed: int | None) -> np.random.Generator:
    """A generator with this seed, or with one that torch's generator draws."""
    return np.random.default_rng(int(torch.randint(2**63 - 1, ())) if seed is None else seed)
