"""Translation with a model of torch: in a compiled session if it can, else in torch with the runtime's search."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from g2lstm.errors import G2Error
from g2lstm.nn.record import evaluating
from g2lstm.runtime.beam import MAX_SOURCE, Hypothesis, Ints, Offers, check_lengths, groups, limits
from g2lstm.runtime.drawing import find
from g2lstm.runtime.session import TranslationSession
from g2lstm.tasks.mt.model import DecoderState, TranslationModel
from g2lstm.tasks.mt.session import session_for
from g2lstm.tasks.trained import Progress


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
    packed: bool = True,
    **options: Any,
) -> list[list[Hypothesis]]:
    """The best translations of each source, best first. An empty source has one translation, which is empty.

    Sources and translations are token ids without `<eos>`. A translation has at most `max_length` tokens, by default
    twice the source and ten more; a source with more than `max_source` is an error. Batches of long sources have fewer
    than `batch_size` sentences; their size does not change the result, except for rounding. Options are those of
    `find`; kept attention is (len(tokens) + 1, len(source) + 1). Unless `packed` is false, a session on packed weights
    translates wherever it does the same as the model.
    """
    if batch_size < 1:
        raise G2Error(f"batch_size must be at least 1, got {batch_size}")
    if packed and options.get("drawing") is None:
        with evaluating(model, eval_gate):
            session: TranslationSession | None = session_for(model)
        if session is not None:
            return session.translate(
                sources, source_eos=source_eos, target_eos=target_eos, max_length=max_length, max_source=max_source,
                at_once=batch_size, progress=progress, **options,
            )  # fmt: skip
    sizes = [len(source) for source in sources]
    check_lengths(sizes, max_length, max_source)
    results = [[Hypothesis([], 0.0, 0.0)] for _ in sources]
    done = sizes.count(0)

    def step(tokens: Ints, state: DecoderState, count: int) -> Offers:
        output = model.step(torch.from_numpy(tokens).to(model.device), state)
        log_probabilities = output.log_probabilities
        values, words = log_probabilities.topk(min(count, log_probabilities.size(2)))
        ends = log_probabilities[..., target_eos]
        numbers = [one.double().numpy(force=True) for one in (values, ends)]
        return Offers(numbers[0], words.numpy(force=True), numbers[1], output.attention.numpy(force=True), output.state)

    with evaluating(model, eval_gate), torch.inference_mode():
        for places in groups(sizes, batch_size):
            batch = [sources[place] for place in places]
            lengths = np.array([len(source) for source in batch])
            padded = pad_sequence([torch.tensor([*source, source_eos]) for source in batch], padding_value=source_eos)
            start = model.start(model.encode(padded.to(model.device), torch.from_numpy(lengths) + 1))
            most = limits(lengths, max_length)
            found = find(step, start, batch, eos=target_eos, max_lengths=most, **options)
            for place, best in zip(places, found, strict=True):
                size = len(sources[place]) + 1  # without padding
                looks = [None if one.attention is None else one.attention[:, :size].copy() for one in best]
                results[place] = [replace(one, attention=look) for one, look in zip(best, looks, strict=True)]
            done += len(places)
            if progress is not None:
                progress(done, len(sources))
    return results
