"""A text as a model reads it: what each gate of each layer does at each token, and in which mode."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from g2lstm.errors import G2Error
from g2lstm.nn.checks import NOISY_METHODS
from g2lstm.nn.lstm import GatedLSTM
from g2lstm.nn.record import GateRecord, evaluating, lstms
from g2lstm.text.tokenize import Tokenizer, printable

MAX_TOKENS = 1000  # in a text; statistics are for longer ones
GATES = ("input", "forget", "output")

Floats = npt.NDArray[np.float32]
# A text by side, as token ids and as tokens for people; and what else a `Reading` has.
Encoded = tuple[dict[str, list[int]], dict[str, list[str]], dict[str, Any]]

_NUMBERED = re.compile(r"(layer|encoder|decoder)s?\.(\d+)")


@dataclass(frozen=True)
class Place:
    """One direction of one layer."""

    name: str  # the module's in its model, such as "encoder.0", with ".l0", ".l1" and so on if it has several layers
    direction: str  # "forward", or "backward" if it reads from the end
    title: str  # for people, such as "encoder 1, backward"

    @property
    def side(self) -> str:
        """The text it reads: "source" or "target" in a translation model, otherwise "text"."""
        return {"encoder": "source", "decoder": "target"}.get(self.name.split(".")[0], "text")


def places(name: str, lstm: nn.Module) -> list[Place]:
    """The places in an LSTM, in the order of its gates: l0, l0_reverse, l1, ...; `name` is "" if it is the model."""
    assert isinstance(lstm, GatedLSTM | nn.LSTM)
    found = []
    for index in range(lstm.num_layers):
        own = ".".join([name] * bool(name) + [f"l{index}"] * (lstm.num_layers > 1)) or "lstm"
        directions = {"forward": ", forward", "backward": ", backward"} if lstm.bidirectional else {"forward": ""}
        found += [Place(own, direction, title_of(own) + ending) for direction, ending in directions.items()]
    return found


def title_of(name: str) -> str:
    """A name for people: "layer 1" for "layers.0", "encoder 2" for "encoder.1"; other modules keep their name."""
    numbered = _NUMBERED.fullmatch(name)
    return f"{numbered[1]} {int(numbered[2]) + 1}" if numbered else name


@dataclass(frozen=True, eq=False)
class LayerReading(Place):
    """The gates of one direction of one layer, float32 (T, H): a row for each token it read."""

    input: Floats
    forget: Floats
    output: Floats


@dataclass(frozen=True, eq=False)
class Reading:
    """A text as a model read it.

    Attributes:
        tokens: what was read, by side: "text" in a language model, otherwise "source" and "target". "text" and "target"
            begin with the `<eos>` before the first word, "source" ends with one.
        layers: the gates, layer by layer.
        mode: evaluation or training, in words.
        unknown: by side, the positions of tokens that are not in the vocabulary.
        surprisal: by side, -log2 of the probability that the model gave each token but the first: bits. The source of a
            translation model has none.
        next_words: in a language model, the likeliest next tokens and their probabilities.
        next_texts: what each of them adds to the text.
        translation: in a translation model, its own translation, which the decoder then read. This and the next two are
            empty if a target was given.
        produced: the tokens of the translation and its `<eos>`; each follows the token at its position in "target".
        attention: (T, S), where the model looked for each of these.
    """

    tokens: dict[str, list[str]]
    layers: list[LayerReading]
    mode: str
    unknown: dict[str, list[int]]
    surprisal: dict[str, list[float]] = field(default_factory=dict)
    next_words: list[tuple[str, float]] = field(default_factory=list)
    next_texts: list[str] = field(default_factory=list)
    translation: str = ""
    produced: list[str] = field(default_factory=list)
    attention: Floats | None = None


@contextmanager
def in_mode(model: nn.Module, *, eval_gate: str | None = None, training: bool = False, seed: int = 0) -> Iterator[str]:
    """Puts a model into evaluation or training mode, without gradients; restores it and torch's generator at the end.

    Training mode has noise, temperature and dropout, drawn from `seed`. Yields a description of the mode.
    """
    if training and eval_gate is not None:
        raise G2Error(f"eval_gate={eval_gate!r} is for evaluation, and training mode has its own gates; choose one")
    with evaluating(model, eval_gate), torch.no_grad(), torch.random.fork_rng(devices=[]):
        if training:
            torch.manual_seed(seed)
            model.train()
        yield _mode_of(model)


def _mode_of(model: nn.Module) -> str:
    """A description of the mode that a model is in."""
    layers = lstms(model)
    if not model.training:
        return f"evaluation, {layers[0].eval_gate} gates" if layers else "evaluation"
    if layers and layers[0].method in NOISY_METHODS:
        gates = "binary gates" if layers[0].method == "binary" else "the gates"
        return f"training, noise in {gates} (tau {layers[0].tau:g}, rate {layers[0].noise_rate:g}), dropout"
    if layers and layers[0].method == "sharpened":
        return f"training, sharpened gates (tau {layers[0].tau:g}) without noise, dropout"
    return "training, no noise, dropout"


def encode(tokenizer: Tokenizer, line: str) -> tuple[list[int], list[str]]:
    """The token ids of a line, without `<eos>`, and the tokens for people; unknown words as they were written."""
    encoding = tokenizer.encoding(line)
    tokens = tokenizer.readable(encoding.ids)
    for place, (token, (start, end)) in enumerate(zip(encoding.ids, encoding.offsets, strict=True)):
        if token == tokenizer.unk_id:
            tokens[place] = printable(line[start:end])
    return list(encoding.ids), tokens


def check_length(text: str, tokens: int) -> None:
    """Raises unless a text has words, and no more tokens than people can look at."""
    if not text.strip() or not tokens:
        raise G2Error("the text is empty; give a sentence, such as 'the company said it will grow'")
    if tokens > MAX_TOKENS:
        raise G2Error(
            f"the text has {tokens:,} tokens, and at most {MAX_TOKENS:,} can be shown; give a sentence, or look at "
            "statistics over a split of the data instead"
        )


def layer_readings(model: nn.Module, record: GateRecord) -> list[LayerReading]:
    """The gates in a record that has one call of each LSTM, with a batch of one."""
    modules: Mapping[str, nn.Module] = dict(model.named_modules())
    layers = []
    for name, (gates,) in record.items():
        for index, place in enumerate(places(name, modules[name])):
            i, f, o = (getattr(gates, gate)[index][:, 0].float().cpu().numpy() for gate in GATES)
            layers.append(LayerReading(place.name, place.direction, place.title, i, f, o))
    return layers


def surprisals(logits: Tensor, ids: list[int]) -> list[float]:
    """Bits of each token but the first, from the logits (T, V) after each token."""
    likely = logits[:-1].double().log_softmax(-1)
    wanted = torch.tensor(ids[1:], device=logits.device).unsqueeze(1)
    bits: list[float] = (likely.gather(1, wanted)[:, 0] / -math.log(2)).tolist()
    return bits


def column(ids: list[int], device: torch.device) -> Tensor:
    """Token ids as a batch of one sequence, (T, 1)."""
    return torch.tensor(ids, device=device).unsqueeze(1)
