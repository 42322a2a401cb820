"""A translation model as C: encoder, decoder and beam search."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from g2lstm.compression.encodings import Encoding
from g2lstm.compression.recurrent import layer_weights
from g2lstm.compression.stream import encoding_of
from g2lstm.export.c.program import Buffer, Function, Program, Value, padded, part, whole, width
from g2lstm.export.c.source import body, constants, kernel, place, size
from g2lstm.export.c.step import Sizes, declarations
from g2lstm.export.c.text import array, comment, template
from g2lstm.runtime.sampling import Utf8
from g2lstm.version import __version__

MAX_SOURCE = 50


@dataclass(frozen=True)
class TranslationParts:
    """How a translation model computes, and how it searches; `tasks/mt/model.py` describes the model.

    Attributes:
        source, target: the embeddings.
        encoder: the layers; the first reads in both directions.
        key, bridge, output: linear layers.
        decoder: the layers.
        residual: whether the input of upper layers is added to their output.
        softmax: the weights (V, E), or a module with such a `weight`.
        bias: (V,), of the softmax.
    """

    source: nn.Module
    target: nn.Module
    encoder: Sequence[nn.Module]
    key: nn.Module
    bridge: nn.Module
    decoder: Sequence[nn.Module]
    output: nn.Module
    residual: bool
    softmax: nn.Module | Tensor
    bias: Tensor


@runtime_checkable
class Translating(Protocol):
    """A translation model that can become C."""

    def translation_parts(self) -> TranslationParts:
        """Its parts."""


@dataclass(frozen=True)
class Search:
    """How a trained model searches.

    Attributes:
        source_end, target_end: the tokens that end a sentence.
        forbidden: tokens that no translation holds.
        beam, length_penalty: unless the caller chooses others.
        read: the log-probabilities (T, V) of the model in Python after each of some target tokens, given a source.
        score: that of its best translation of a source.
        utf8: keeps tokens that are parts of characters from making anything but characters.
    """

    source_end: int
    target_end: int
    forbidden: Sequence[int]
    beam: int
    length_penalty: float
    read: Callable[[Sequence[int], Sequence[int]], NDArray[Any]]
    score: Callable[[Sequence[int]], float]
    utf8: Utf8 | None = None


class Translator:
    """The functions of a translation model."""

    def __init__(self, parts: TranslationParts) -> None:
        self.program = Program()
        tables: dict[int, Encoding] = {}

        def encoded(table: nn.Module | Tensor) -> Encoding:  # one for all that are tied
            return tables.setdefault(id(table), encoding_of(table))

        self.source, self.target = encoded(parts.source), encoded(parts.target)
        first, *above = parts.encoder
        forward, backward = layer_weights(first)
        self.hidden = forward.hidden
        self.backward = Function(self.program, "s->backward.")
        x = self.backward.lookup(self.source, "source embedding")
        self.backward.copy(self.backward.recurrent(x, backward, "encoder 0 backward")[0], "out")
        self.forward = Function(self.program, "s->forward.")
        x = self.forward.lookup(self.source, "source embedding")
        x = (*self.forward.recurrent(x, forward, "encoder 0")[0], *whole(Buffer(self.hidden, "x")))
        for index, layer in enumerate(above, start=1):
            [weights] = layer_weights(layer)
            out = self.forward.recurrent(x, weights, f"encoder {index}")[0]
            x = self.forward.each("{0} + {1}", x, out) if parts.residual and index > 1 else out
        self.values, key = width(x), encoding_of(parts.key)
        self.keys = key.shape[0]
        self.forward.copy(self.forward.linear(x, key, None, "attention key"), "keys")
        self.forward.copy(x, "values")
        self._start(parts)
        self._decode(parts, encoded(parts.softmax))
        self.scratch = place(self.program.functions)

    def _start(self, parts: TranslationParts) -> None:
        self.start = Function(self.program)
        h = self.start.linear(whole(Buffer(self.values, "x")), encoding_of(parts.bridge), _bias(parts.bridge), "bridge")
        h = self.start.each("tanhf({0})", h)
        for number in range(len(parts.decoder)):
            self.start.copy(part(h, number * self.hidden, self.hidden), f"d->h{number}")

    def _decode(self, parts: TranslationParts, softmax: Encoding) -> None:
        self.decode = step = Function(self.program, "d->")
        x = step.lookup(self.target, "target embedding")
        context: Value = ()
        for number, layer in enumerate(parts.decoder):
            [weights] = layer_weights(layer)
            out = step.recurrent((*x, *context), weights, f"decoder {number}")[0]
            x = step.each("{0} + {1}", x, out) if parts.residual and number else out
            if not number:
                context = step.call("attend({0}, s, {to});", x, size=self.values, feature="softmax")
        features = step.linear((*x, *context), encoding_of(parts.output), _bias(parts.output), "output")
        features = step.each("tanhf({0})", features)
        logits = step.linear(features, softmax, parts.bias.float().numpy(force=True), "softmax")
        step.copy(step.log_softmax(logits), "out")


def _bias(linear: nn.Module) -> NDArray[np.float32]:
    bias = linear.bias
    assert isinstance(bias, Tensor)
    return bias.detach().float().numpy()


def translation_sources(
    translator: Translator, search: Search, name: str, title: str, texts: Sequence[str] = ()
) -> tuple[dict[str, str], Sizes]:
    """The content of NAME.h and NAME.c, and what they need."""
    program, scratch, upper = translator.program, translator.scratch, name.upper()
    functions = {one: getattr(translator, one) for one in ("forward", "backward", "start", "decode")}
    beam = max(search.beam, 1)
    names = {
        "name": name,
        "upper": upper,
        "title": comment(title),
        "version": __version__,
        "values": translator.values,
        "keys": translator.keys,
        "hidden": translator.hidden,
        "begin": search.target_end,
        "end": search.target_end,
        "source_end": search.source_end,
    }
    target_size, longest = translator.target.shape[0], 2 * MAX_SOURCE + 10
    state = 4 * (MAX_SOURCE + 1) * (translator.values + translator.keys + 1) + 4 * target_size + 24
    state += 4 * sum(_floats(functions[one]) for one in ("forward", "backward"))
    state += 8 * beam * (_floats(functions["decode"]) + longest + 1)
    macs = functions["forward"].macs + functions["backward"].macs
    kinds, more = _pieces(search.utf8)
    sizes = Sizes(size(program) + more, state, scratch.bytes, functions["decode"].macs, macs)
    header = Template(template("translation.h", ())).substitute(
        names,
        table="\n".join(f"   {line}" for line in sizes.lines()),
        max_source=MAX_SOURCE,
        max_beam=beam,
        source_size=translator.source.shape[0],
        target_size=target_size,
        beam=search.beam,
        length_penalty=float(search.length_penalty),
        decoder=_fields(functions["decode"], 4),
        forward=_fields(functions["forward"], 8),
        backward=_fields(functions["backward"], 8),
        scratch="\n".join(f"    {line}" for line in scratch.fields()),
        more=declarations(name, texts),
    )
    features = ("words",) if search.utf8 is None else ("pieces",)
    source = Template(template("translation.c", features)).substitute(
        names,
        kernel=kernel(program),
        constants=constants(program),
        pieces=kinds,
        is_word=" && ".join(f"token != {one}" for one in (f"{upper}_END", *search.forbidden)),
        **{one: body(function, scratch) for one, function in functions.items()},
    )
    return {f"{name}.h": header, f"{name}.c": source}, sizes


def _pieces(utf8: Utf8 | None) -> tuple[str, int]:
    """The tables that keep characters whole, and their bytes: the kind of each token, and what it leaves unfinished."""
    if utf8 is None:
        return "", 0
    after, kinds = np.unique(utf8.after, axis=1, return_inverse=True)
    each, by_kind = kinds.reshape(-1).astype(np.uint8), after.T.astype(np.int8)
    return array("uint8_t", "kinds", each) + array("int8_t", "after", by_kind), each.nbytes + by_kind.nbytes


def _fields(function: Function, indent: int) -> str:
    return "\n".join(f"{' ' * indent}float {place}[{padded(one.size)}];" for place, (one, _) in function.states.items())


def _floats(function: Function) -> int:
    return sum(padded(one.size) for one, _ in function.states.values())
