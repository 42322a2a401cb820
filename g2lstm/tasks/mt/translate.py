"""Translating many sentences: beam search in batches of similar length, with results in the order of the sources."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.nn.mode import evaluating
from g2lstm.tasks.mt.beam import Hypothesis, beam_search
from g2lstm.tasks.mt.model import TranslationModel

Progress = Callable[[int, int], None]  # sentences done, and the total

MAX_SOURCE = 1000  # tokens; a longer line is rarely a sentence
_USUAL_LENGTH = 50  # batches of longer sources have fewer sentences, to limit memory


def translate(
    model: TranslationModel,
    sources: Sequence[Sequence[int]],
    *,
    source_eos: int,
    target_eos: int,
    beam: int = 5,
    length_penalty: float = 1.0,
    max_length: int | None = None,
    max_source: int | None = MAX_SOURCE,
    n_best: int = 1,
    batch_size: int = 64,
    keep_attention: bool = False,
    forbidden: Sequence[int] = (),
    eval_gate: str | None = None,
    progress: Progress | None = None,
) -> list[list[Hypothesis]]:
    """The best translations of each source, best first. An empty source has one translation, which is empty.

    Args:
        model: the model; its mode and gates are restored at the end.
        sources: token ids of each sentence, without `<eos>`.
        source_eos: the id of `<eos>` in the source vocabulary.
        target_eos: the id of `<eos>` in the target vocabulary.
        beam: like the next, as in `beam_search`.
        length_penalty: as in `beam_search`.
        max_length: the maximum number of tokens before `<eos>`; by default twice the source and ten more.
        max_source: sources with more tokens are an error; None for no limit.
        n_best: the number of translations to return per source.
        batch_size: sentences translated at a time, fewer if they are long. It does not change the result, except for
            rounding where a compressed model translates one at a time.
        keep_attention: return the attention of each translation, (len(tokens) + 1, len(source) + 1).
        forbidden: target ids to leave out, such as that of `<unk>`.
        eval_gate: "soft", "tempered" or "hard"; None for the model's own.
        progress: called with the sentences translated so far and the total.
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
    device = model.softmax_bias.device
    with evaluating(model, eval_gate), torch.inference_mode():
        for places in _batches([len(source) for source in sources], batch_size):
            batch = [sources[place] for place in places]
            lengths = torch.tensor([len(source) for source in batch])
            memory = model.encode(_pad(batch, source_eos).to(device), lengths + 1)
            limits = 2 * lengths + 10 if max_length is None else torch.full_like(lengths, max_length)
            found = beam_search(
                model.step,
                model.start(memory),
                len(batch),
                eos=target_eos,
                max_lengths=limits.to(device),
                beam=beam,
                length_penalty=length_penalty,
                n_best=n_best,
                forbidden=forbidden,
                keep_attention=keep_attention,
            )
            for place, best in zip(places, found, strict=True):
                results[place] = [_without_padding(one, len(sources[place]) + 1) for one in best]
            done += len(places)
            if progress is not None:
                progress(done, len(sources))
    return results


def replace_unknown(words: Sequence[str], source: Sequence[str], attention: Tensor, *, unknown: str) -> list[str]:
    """Replaces each unknown word of a translation by the source word that was attended to most.

    Args:
        words: the words of the translation.
        source: the words of the source, one token each.
        attention: (len(words) + 1, len(source) + 1), as in a `Hypothesis`; `<eos>` is never copied.
        unknown: the token of unknown words.
    """
    if not source:
        return list(words)
    places = attention[: len(words), : len(source)].argmax(dim=1).tolist()
    return [source[place] if word == unknown else word for word, place in zip(words, places, strict=True)]


def _batches(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """The indices of non-empty sources in batches, the longest first, so that a lack of memory shows at once."""
    order = sorted((place for place, length in enumerate(lengths) if length), key=lambda place: -lengths[place])
    while order:
        size = max(1, min(batch_size, batch_size * _USUAL_LENGTH // lengths[order[0]]))
        yield order[:size]
        order = order[size:]


def _pad(sources: Sequence[Sequence[int]], eos: int) -> Tensor:
    """Sources as (S, B), each ended and padded with `<eos>`; the longest comes first."""
    size = len(sources[0]) + 1
    return torch.tensor([[*source, *[eos] * (size - len(source))] for source in sources]).t()


def _without_padding(hypothesis: Hypothesis, size: int) -> Hypothesis:
    if hypothesis.attention is None:
        return hypothesis
    return replace(hypothesis, attention=hypothesis.attention[:, :size].clone())
