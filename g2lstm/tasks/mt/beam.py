"""Translation by beam search: the likeliest sentences of a model that predicts one word at a time, in batches."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from g2lstm.errors import G2Error
from g2lstm.nn.record import evaluating
from g2lstm.tasks.mt.model import DecoderState, StepOutput, TranslationModel
from g2lstm.tasks.trained import Progress

MAX_SOURCE = 1000  # tokens; a longer line is rarely a sentence
_USUAL_LENGTH = 50  # batches of longer sources have fewer sentences, to limit memory


@dataclass(frozen=True)
class Hypothesis:
    """A finished sentence."""

    tokens: list[int]  # without `<eos>`
    log_probability: float  # of the tokens and of `<eos>`
    score: float  # log_probability / length**length_penalty, where length counts `<eos>`
    attention: Tensor | None = field(default=None, compare=False)  # (len(tokens) + 1, S) on the CPU, where it looked


def translate(
    model: TranslationModel,
    sources: Sequence[Sequence[int]],
    *,
    source_eos: int,
    target_eos: int,
    max_length: int | None = None,
    max_source: int | None = MAX_SOURCE,
    batch_size: int = 64,
    eval_gate: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> list[list[Hypothesis]]:
    """The best translations of each source, best first. An empty source has one translation, which is empty.

    Sources and translations are token ids without `<eos>`. A translation has at most `max_length` tokens, by default
    twice the source and ten more; a source with more than `max_source` is an error. Batches of long sources have fewer
    than `batch_size` sentences. The size does not change the result, except for rounding where a compressed model
    translates one at a time. Options are those of `beam_search`; kept attention is (len(tokens) + 1, len(source) + 1).
    """
    for name, value in {"batch_size": batch_size, "max_length": max_length}.items():
        if value is not None and value < 1:
            raise G2Error(f"{name} must be at least 1, got {value}")
    for line, source in enumerate(sources, start=1):
        if max_source is not None and len(source) > max_source:
            raise G2Error(
                f"line {line} has {len(source)} tokens, more than max_source, which is {max_source}; "
                "split it into sentences, or raise --max-source"
            )
    results = [[Hypothesis([], 0.0, 0.0)] for _ in sources]
    done = sum(not len(source) for source in sources)
    with evaluating(model, eval_gate), torch.inference_mode():
        for places in _batches([len(source) for source in sources], batch_size):
            batch = [sources[place] for place in places]
            lengths = torch.tensor([len(source) for source in batch])
            padded = pad_sequence([torch.tensor([*source, source_eos]) for source in batch], padding_value=source_eos)
            start = model.start(model.encode(padded.to(model.device), lengths + 1))
            limits = 2 * lengths + 10 if max_length is None else torch.full_like(lengths, max_length)
            limits = limits.to(model.device)
            found = beam_search(model.step, start, len(batch), eos=target_eos, max_lengths=limits, **options)
            for place, best in zip(places, found, strict=True):
                size = len(sources[place]) + 1  # without padding
                looks = [None if one.attention is None else one.attention[:, :size].clone() for one in best]
                results[place] = [replace(one, attention=look) for one, look in zip(best, looks, strict=True)]
            done += len(places)
            if progress is not None:
                progress(done, len(sources))
    return results


def _batches(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """The indices of non-empty sources in batches, the longest first, so that too little memory shows at once."""
    order = sorted((place for place, length in enumerate(lengths) if length), key=lambda place: -lengths[place])
    while order:
        size = max(1, min(batch_size, batch_size * _USUAL_LENGTH // lengths[order[0]]))
        yield order[:size]
        order = order[size:]


def beam_search(
    step: Callable[[Tensor, DecoderState], StepOutput],
    state: DecoderState,
    batch: int,
    *,
    eos: int,
    max_lengths: Tensor,
    beam: int = 5,
    length_penalty: float = 1.0,
    n_best: int = 1,
    forbidden: Sequence[int] = (),
    keep_attention: bool = False,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence, best first; fewer than `n_best` if there are no more.

    Each step keeps the `beam` likeliest unfinished hypotheses. A hypothesis finishes when its `<eos>` is among the
    `beam` likeliest continuations of its sentence; it does not take the place of an unfinished one. A sentence ends
    when `beam` hypotheses have finished, so a beam of 1 is greedy search, or earlier if no unfinished one can still
    beat the best `n_best`, which only saves time. It then leaves the batch.

    Args:
        step: reads a word of each hypothesis, (B, K), and predicts the next.
        state: the state before the first word, with one hypothesis per sentence.
        batch: B, the number of sentences.
        eos: the id of `<eos>`, which begins and ends each sentence.
        max_lengths: (B,) int64 on the model's device, the maximum number of tokens before `<eos>`.
        beam: K, the number of hypotheses kept per sentence.
        length_penalty: log-probabilities are divided by the length to this power; 0 favours short sentences.
        n_best: the number of hypotheses to return per sentence.
        forbidden: ids to leave out, such as that of `<unk>`.
        keep_attention: return the attention of each hypothesis, which takes memory.
    """
    _check(eos, beam, length_penalty, n_best, forbidden)
    length_penalty = float(length_penalty)  # an integer power of integers could overflow
    device = max_lengths.device
    not_words = torch.tensor([eos, *forbidden], device=device)
    found: list[list[Hypothesis]] = [[] for _ in range(batch)]
    # For each sentence in the batch: its number, how many hypotheses have finished, and their best scores.
    numbers, finished = torch.arange(batch, device=device), torch.zeros(batch, dtype=torch.int64, device=device)
    best = torch.full((batch, n_best), -math.inf, device=device)
    # For each unfinished hypothesis: its log-probability, its tokens (B, K, t), and where it looked (B, K, t, S).
    totals, tokens = torch.zeros(batch, 1, device=device), torch.full((batch, 1, 1), eos, device=device)
    looks: Tensor | None = None
    for length in count(1):  # of a hypothesis that finishes now, with <eos>
        output = step(tokens[:, :, -1], state)
        if keep_attention:
            look = output.attention.unsqueeze(2)
            looks = look if looks is None else torch.cat([looks, look], dim=2)
        ends, words = _continuations(output.log_probabilities, totals, max_lengths < length, not_words, beam)

        scores = ends.totals / length**length_penalty
        is_end = scores > -math.inf
        rows, parents = is_end.nonzero()[:, 0], ends.parents[is_end]
        columns = [numbers[rows], tokens[rows, parents, 1:], ends.totals[is_end], scores[is_end]]
        attentions = [None] * len(rows) if looks is None else looks[rows, parents].cpu()
        for number, ids, total, score, attention in zip(*(c.tolist() for c in columns), attentions, strict=True):
            found[number].append(Hypothesis(ids, total, score, attention))

        finished = finished + is_end.sum(dim=1)
        best = torch.cat([best, scores], dim=1).topk(n_best).values
        # Log-probabilities only fall, and the longest sentence divides them most.
        hope = words.totals[:, 0] / (max_lengths + 1) ** length_penalty
        going_on = ((finished < beam) & (hope > best[:, -1])).nonzero().squeeze(1)
        if not len(going_on):
            break
        numbers, finished, best = numbers[going_on], finished[going_on], best[going_on]
        max_lengths, totals, parents = max_lengths[going_on], words.totals[going_on], words.parents[going_on]
        before = (going_on.unsqueeze(1), parents)
        tokens = torch.cat([tokens[before], words.tokens[going_on].unsqueeze(2)], dim=2)
        looks = None if looks is None else looks[before]
        state = output.state.select(going_on, parents)
    return [sorted(one, key=lambda hypothesis: -hypothesis.score)[:n_best] for one in found]


class _Continuations(NamedTuple):
    """Hypotheses made one token longer, the likeliest of each sentence first; a total of -inf means none."""

    totals: Tensor  # (B, n), log-probabilities
    parents: Tensor  # (B, n), the hypotheses they continue
    tokens: Tensor  # (B, n), the tokens they add


def _continuations(
    log_probabilities: Tensor, totals: Tensor, must_end: Tensor, not_words: Tensor, beam: int
) -> tuple[_Continuations, _Continuations]:
    """The continuations with `<eos>` that are among the `beam` likeliest, and the `beam` likeliest with words.

    Only the best continuations of each hypothesis are compared, because going through all words is what takes time.
    Log-probabilities are (B, K, V), and their totals so far (B, K). Sentences that `must_end` (B,) have reached their
    maximum length; `not_words` are `<eos>` and the forbidden ids.
    """
    values, words = log_probabilities.topk(min(beam + len(not_words), log_probabilities.size(2)))
    if values[..., 0].isnan().any():
        raise G2Error("the model's log-probabilities are not numbers (NaN): its weights are broken; train it again")
    is_no_word = torch.isin(words, not_words) | must_end.view(-1, 1, 1)
    end = not_words[:1]
    values = torch.cat([log_probabilities[..., end], values.masked_fill(is_no_word, -math.inf)], dim=2)
    words = torch.cat([end.expand_as(words[..., :1]), words], dim=2)
    offers = values.size(2)  # of each hypothesis; the first is <eos>

    # There is one <eos> for each of at most `beam` hypotheses, so twice as many continuations have enough words.
    flat = (totals.unsqueeze(2) + values).flatten(1)
    best, places = flat.topk(min(2 * beam, flat.size(1)))
    parents, tokens, is_end = places // offers, words.flatten(1).gather(1, places), places % offers == 0
    ends = best.masked_fill(~is_end, -math.inf)[:, :beam]
    going_on, order = best.masked_fill(is_end, -math.inf).topk(min(beam, best.size(1)))
    return (
        _Continuations(ends, parents[:, :beam], tokens[:, :beam]),
        _Continuations(going_on, parents.gather(1, order), tokens.gather(1, order)),
    )


def _check(eos: int, beam: int, length_penalty: float, n_best: int, forbidden: Sequence[int]) -> None:
    if not isinstance(beam, int) or not 1 <= beam <= 1000:
        raise G2Error(f"beam must be a whole number from 1 to 1000, got {beam}; 1 is greedy search, 5 is usual")
    if not 0 <= length_penalty <= 10:
        raise G2Error(
            f"length_penalty must be from 0 to 10, got {length_penalty}; "
            "0 is none, 1 compares sentences by their mean log-probability"
        )
    if not isinstance(n_best, int) or not 1 <= n_best <= beam:
        raise G2Error(f"n_best must be from 1 to the beam of {beam}, got {n_best}; a wider beam finds more")
    if eos in forbidden:
        raise G2Error(f"<eos>, token id {eos}, is forbidden, so no sentence could end; remove it from forbidden")
