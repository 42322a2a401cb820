"""Translation with a model of torch: in a compiled session if it can, else in torch with the runtime's search."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from g2lstm.compression.modules import CompressedLinear
from g2lstm.compression.recurrent import layer_weights
from g2lstm.compression.stream import are_plain, encoding_of
from g2lstm.errors import G2Error
from g2lstm.export.c.translation import Translating
from g2lstm.nn.record import evaluating, lstms
from g2lstm.runtime.beam import MAX_SOURCE, Hypothesis, Ints, Offers, SearchOptions, check_lengths, find, groups, limits
from g2lstm.runtime.plain import TranslationParts
from g2lstm.runtime.session import TranslationSession
from g2lstm.tasks.mt.model import DecoderState, TranslationModel
from g2lstm.tasks.trained import Progress

_OPENED: WeakKeyDictionary[nn.Module, tuple[Any, list[Tensor], TranslationSession]] = WeakKeyDictionary()


def open_session(model: Translating, threads: int | None = None) -> TranslationSession:
    """A session with a copy of the weights; the model is in evaluation mode."""
    parts = model.translation_parts()
    encodings = {id(table): encoding_of(table) for table in (parts.source, parts.target, parts.softmax)}
    first, *above = parts.encoder
    decoder = [one for layer in parts.decoder for one in layer_weights(layer)]
    made = TranslationParts(
        encodings[id(parts.source)], encodings[id(parts.target)], [*layer_weights(first)],
        [one for layer in above for one in layer_weights(layer)], decoder, encoding_of(parts.key),
        (encoding_of(parts.bridge), _bias(parts.bridge)), (encoding_of(parts.output), _bias(parts.output)),
        encodings[id(parts.softmax)], parts.bias.float().numpy(force=True), parts.residual, decoder[0].hard,
    )  # fmt: skip
    if len({one.hard for one in (*made.directions, *made.above, *decoder)}) > 1:
        raise G2Error("the layers of this model differ in their hard gates; give all the same eval_gate and gates")
    return TranslationSession(made, threads)


def session_for(model: nn.Module) -> TranslationSession | None:
    """The session that does what the model does now, kept until its weights change; None if there can be none."""
    if not isinstance(model, Translating):
        return None
    parts = model.translation_parts()
    linears = (parts.key, parts.bridge, parts.output)
    if not all(type(one) in (nn.Linear, CompressedLinear) for one in linears):
        return None
    if not are_plain(model, [*parts.encoder, *parts.decoder], parts.bias):
        return None
    tensors = [one.detach() for one in chain(model.parameters(), model.buffers())]
    key = ([layer.gate_rule() for layer in lstms(model)], torch.get_num_threads(), len(tensors))
    known = _OPENED.get(model)
    # By their values: addresses and versions of tensors missed changes that training makes.
    if known is None or known[0] != key or not all(map(torch.equal, known[1], tensors)):
        known = _OPENED[model] = key, [one.clone() for one in tensors], open_session(model)
    return known[2]


def _bias(linear: nn.Module) -> NDArray[np.float32]:
    assert isinstance(linear.bias, Tensor)
    return linear.bias.detach().float().numpy(force=True)


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
    `SearchOptions`; kept attention is (len(tokens) + 1, len(source) + 1). Unless `packed` is false, a session on packed
    weights translates wherever it does the same as the model.
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
    how, sizes = SearchOptions(target_eos, **options), [len(source) for source in sources]
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
            found = find(step, start, batch, most, how)
            for place, best in zip(places, found, strict=True):
                size = len(sources[place]) + 1  # without padding
                looks = [None if one.attention is None else one.attention[:, :size].copy() for one in best]
                results[place] = [replace(one, attention=look) for one, look in zip(best, looks, strict=True)]
            done += len(places)
            if progress is not None:
                progress(done, len(sources))
    return results
