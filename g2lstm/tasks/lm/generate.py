"""Sampling from a language model, one token at a time."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.nn.record import evaluating
from g2lstm.tasks.lm.model import LanguageModel


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    forbidden: Sequence[int] = (),
    eval_gate: str | None = None,
    generator: torch.Generator | None = None,
    read: Callable[[Sequence[int]], Tensor] | None = None,
) -> Iterator[int]:
    """Yields token ids without end that continue a prompt of at least one token, such as the end of a sentence.

    The options are those of `TrainedLanguageModel.generate`; `forbidden` ids, such as `<unk>`, are never drawn. The
    model's mode and gates are restored between tokens. If `read` is given, it replaces the model's forward pass, and
    `eval_gate` is ignored: it takes the next tokens and returns the logits (V,) after the last of them.
    """
    if not 0 <= temperature < math.inf:
        raise G2Error(f"temperature must be a finite number of at least 0, got {temperature}; 1 is the model's own")
    if top_k is not None and top_k < 1:
        raise G2Error(f"top_k must be at least 1, got {top_k}; None means all tokens")
    if not 0 < top_p <= 1:
        raise G2Error(f"top_p is a probability and must lie in (0, 1], got {top_p}; 1 means all tokens")

    def continuation() -> Iterator[int]:
        tokens = prompt
        advance = _reader(model, eval_gate) if read is None else read
        while True:
            logits = advance(tokens)
            logits[list(forbidden)] = -math.inf
            tokens = [choose(logits, temperature, top_k, top_p, generator)]
            yield tokens[0]

    return continuation()


def _reader(model: LanguageModel, eval_gate: str | None) -> Callable[[Sequence[int]], Tensor]:
    state = None

    def read(tokens: Sequence[int]) -> Tensor:
        nonlocal state
        with evaluating(model, eval_gate), torch.no_grad():
            ids = torch.tensor(tokens, device=model.device).unsqueeze(1)
            features, _, state = model(ids, state)
            return model.logits(features[-1, 0])

    return read


def choose(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
) -> int:
    """Draws a token from logits (V,); the arguments are those of `generate`."""
    if not logits.max().isfinite():  # NaN counts as the highest
        raise G2Error("the model gives logits that are not finite: its weights are too large; train it again")
    if temperature == 0:
        return int(logits.argmax())
    ordered, order = logits.double().sort(descending=True)
    # Relative to the highest logit, so that a tiny temperature gives zeros rather than infinities.
    probabilities = ((ordered - ordered[0]) / temperature).softmax(dim=0)
    if top_k is not None:
        probabilities[top_k:] = 0
    if top_p < 1:
        # A token is kept if those before it have not reached top_p, so the likeliest always is.
        probabilities = probabilities / probabilities.sum()
        probabilities[probabilities.cumsum(0) - probabilities >= top_p] = 0
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])
