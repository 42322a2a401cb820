"""Dynamic evaluation (Krause et al., 2018): the model keeps learning from the stream it is scored on.

Each segment is predicted before it is learnt from, so no token is predicted with knowledge of itself. The updates
follow the paper's RMS rule: the step of each weight is scaled by how large its gradients were on the training text.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from g2lstm.errors import G2Error
from g2lstm.nn.record import evaluating, lstms
from g2lstm.tasks.lm.evaluate import Score, Tokens, check_tokens, score, token_slice
from g2lstm.tasks.lm.model import LanguageModel, detach_state
from g2lstm.tasks.trained import Progress


@dataclass(frozen=True)
class DynamicSettings:
    """How the model learns while it is evaluated.

    Attributes:
        segment: the number of tokens predicted between two updates.
        learning_rate: η.
        decay: λ, the pull back towards the trained weights at each update, in [0, 1].
        epsilon: ε, which keeps steps finite where gradients were zero.
    """

    segment: int = 5
    learning_rate: float = 5e-4
    decay: float = 0.02
    epsilon: float = 0.001


def dynamic_perplexity(
    model: LanguageModel,
    tokens: Tokens,
    mean_squares: list[Tensor],
    settings: DynamicSettings | None = None,
    *,
    eval_gate: str | None = None,
    progress: Progress | None = None,
) -> Score:
    """The perplexity of a stream that the model learns from; the weights are restored at the end, whatever happens.

    After each segment w += λ r (w0 - w) - η g / (s + ε), where s is the root of the mean square of the weight's
    gradient on the training text and r = s / mean(s), at most 1 / λ.

    Args:
        model: the model to score.
        tokens: (N,), N >= 2.
        mean_squares: mean squares of each parameter's gradient, from `gradient_mean_squares`.
        settings: how to update; `DynamicSettings()` by default.
        eval_gate: "soft" or "tempered"; None for the model's own. Hard gates have no gradient.
        progress: called with the tokens predicted so far and the total.
    """
    check_tokens(tokens)
    _check_gate(model, eval_gate)
    settings = DynamicSettings() if settings is None else settings
    parameters = list(model.parameters())
    rates, pulls = _rates(parameters, settings, mean_squares)
    total, parts = len(tokens) - 1, []
    state = model.initial_state(1)
    with evaluating(model, eval_gate), _restored(parameters) as trained, torch.enable_grad():
        for at in range(0, total, settings.segment):
            piece = token_slice(tokens, at, min(at + settings.segment, total) + 1, model)
            features, _, state = model(piece[:-1].unsqueeze(1), state)
            losses = model.token_losses(features.flatten(0, 1), piece[1:])
            parts.append(-losses.detach().cpu())
            gradients = torch.autograd.grad(losses.mean(), parameters)
            state = detach_state(state)
            with torch.no_grad():
                for p, g, p0, rate, pull in zip(parameters, gradients, trained, rates, pulls, strict=True):
                    p.add_((p0 - p).mul_(pull)).sub_(g * rate)
            if progress is not None:
                progress(min(at + settings.segment, total), total)
    return score(parts)


def gradient_mean_squares(
    model: LanguageModel,
    tokens: Tokens,
    *,
    batch: int = 20,
    segment: int = 5,
    updates: int = 500,
    eval_gate: str | None = None,
    progress: Progress | None = None,
) -> list[Tensor]:
    """The mean square of each weight's gradient over the first segments of a training stream.

    Args:
        model: with its trained weights; it is not changed.
        tokens: (N,), the training stream, cut into `batch` columns.
        batch: the number of columns.
        segment: the tokens of each column that give one gradient.
        updates: the maximum number of gradients.
        eval_gate: how gates are computed.
        progress: called with the gradients taken so far and the total.
    """
    check_tokens(tokens)
    _check_gate(model, eval_gate)
    length = (len(tokens) - 1) // max(batch, 1)
    count = min(updates, length // max(segment, 1))
    if batch < 1 or segment < 1 or count < 1:
        raise G2Error(
            f"{len(tokens)} tokens are too few for {batch} columns of {segment}; give more tokens, or a smaller batch"
        )
    parameters = list(model.parameters())
    squares = [torch.zeros_like(p) for p in parameters]
    state = model.initial_state(batch)
    with evaluating(model, eval_gate), torch.enable_grad():
        for k in range(count):
            columns = [
                token_slice(tokens, b * length + k * segment, b * length + (k + 1) * segment + 1, model)
                for b in range(batch)
            ]
            piece = torch.stack(columns, dim=1)
            features, _, state = model(piece[:-1], state)
            loss = model.token_losses(features.flatten(0, 1), piece[1:].flatten()).mean()
            state = detach_state(state)
            for square, gradient in zip(squares, torch.autograd.grad(loss, parameters), strict=True):
                square.addcmul_(gradient, gradient, value=1 / count)
            if progress is not None:
                progress(k + 1, count)
    return squares


def _rates(
    parameters: list[nn.Parameter], settings: DynamicSettings, mean_squares: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """For each parameter, the factor of its gradient and the factor of the way back to its trained value."""
    if [p.shape for p in parameters] != [square.shape for square in mean_squares]:
        raise G2Error(
            "mean_squares must hold one tensor for each parameter of the model, of its shape; "
            "take them from gradient_mean_squares of the same model"
        )
    roots = [square.sqrt() for square in mean_squares]
    mean = torch.cat([root.flatten() for root in roots]).mean().clamp_min(torch.finfo(roots[0].dtype).tiny)
    rates = [settings.learning_rate / (root + settings.epsilon) for root in roots]
    pulls = [(settings.decay * root / mean).clamp_max_(1.0) for root in roots]
    return rates, pulls


@contextmanager
def _restored(parameters: list[nn.Parameter]) -> Iterator[list[Tensor]]:
    """Yields copies of the parameters, and restores them at the end."""
    trained = [p.detach().clone() for p in parameters]
    try:
        yield trained
    finally:
        with torch.no_grad():
            for p, p0 in zip(parameters, trained, strict=True):
                p.copy_(p0)


def _check_gate(model: LanguageModel, eval_gate: str | None) -> None:
    if "hard" in ([eval_gate] if eval_gate else [layer.eval_gate for layer in lstms(model)]):
        raise G2Error("hard gates have no gradient to learn from; use eval_gate='soft' or 'tempered'")
