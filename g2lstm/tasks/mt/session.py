"""The session of a translation model: `TranslationSession` on the weights of the torch model, packed or dense."""

from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from g2lstm.compression.layers import layer_weights
from g2lstm.compression.modules import CompressedLinear
from g2lstm.compression.stream import are_plain, encoding_of
from g2lstm.errors import G2Error
from g2lstm.export.c.translation import Translating
from g2lstm.nn.record import lstms
from g2lstm.runtime.plain import TranslationParts
from g2lstm.runtime.session import TranslationSession

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
