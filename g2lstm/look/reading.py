"""`read_sentence`: what each gate of a trained model does at each word of a text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from g2lstm.errors import G2Error
from g2lstm.look.mode import in_mode
from g2lstm.look.places import Place, places
from g2lstm.look.tokens import encode
from g2lstm.nn.record import GateRecord, record_gates
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.lm.trained import TrainedLanguageModel
from g2lstm.tasks.mt.model import TranslationModel
from g2lstm.tasks.mt.trained import TrainedTranslationModel
from g2lstm.text.tokenize import EOS, Tokenizer

MAX_TOKENS = 1000  # of a text; longer ones are for statistics, not for eyes
GATES = ("input", "forget", "output")
_NEXT_WORDS = 10

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LayerReading:
    """The gates of one direction of one layer, float32 (T, H): a row for each token that it read.

    Attributes:
        place: which layer and direction.
        input: its input gates.
        forget: its forget gates.
        output: its output gates.
    """

    place: Place
    input: Floats
    forget: Floats
    output: Floats

    @property
    def name(self) -> str:
        """Of the layer in the model, such as "layers.0" or "encoder.1"."""
        return self.place.name

    @property
    def direction(self) -> str:
        """Of reading: "forward" or "backward"."""
        return self.place.direction

    @property
    def title(self) -> str:
        """For people, such as "encoder 1, backward"."""
        return self.place.title

    @property
    def side(self) -> str:
        """Whose tokens it read: "text", "source" or "target"."""
        return self.place.side


@dataclass(frozen=True, eq=False)
class Reading:
    """A text as a model read it.

    Attributes:
        tokens: those that were read, by side. "text" of a language model and "target" begin with the `<eos>` before the
            first word, "source" ends with one.
        layers: the gates, layer by layer.
        mode: evaluation or training, in words.
        unknown: by side, the places of tokens that the vocabulary lacks.
        next_words: of a language model, the likeliest tokens after the text, and their probabilities.
        translation: of a translation model, what it made of the text, and what the decoder then read. This and the next
            two are empty if a target was given.
        produced: the tokens of the translation and its `<eos>`: each follows the token at its place in "target".
        attention: (T, S), where the model looked for each of them.
    """

    tokens: dict[str, list[str]]
    layers: list[LayerReading]
    mode: str
    unknown: dict[str, list[int]]
    next_words: list[tuple[str, float]] = field(default_factory=list)
    translation: str = ""
    produced: list[str] = field(default_factory=list)
    attention: Floats | None = None


def read_sentence(
    trained: TrainedLanguageModel | TrainedTranslationModel,
    text: str,
    *,
    target: str | None = None,
    eval_gate: str | None = None,
    training: bool = False,
    seed: int = 0,
) -> Reading:
    """Reads a text; a translation model also translates it, and reads its own translation, or the one that is given.

    One call at a time for each model, whose mode is changed meanwhile.

    Args:
        trained: the model and its tokenizers.
        text: of at most 1000 tokens, tokenised as the training text was. A language model reads every line's end.
        target: a translation that the decoder reads instead of its own, so that models can be compared word by word.
        eval_gate: "soft", "tempered" or "hard"; None for the model's own.
        training: look at the gates as they are in training, with noise. The translation is made without.
        seed: of noise and dropout.
    """
    if not text.strip():
        raise G2Error("the text is empty; give a sentence, such as 'the company said it will grow'")
    if isinstance(trained, TrainedTranslationModel):
        return _read_translation(trained, text, target, eval_gate, training, seed)
    if target is not None:
        raise G2Error("a language model reads one text; a target is for translation models")
    return _read_language(trained, text, eval_gate, training, seed)


def _read_language(
    trained: TrainedLanguageModel, text: str, eval_gate: str | None, training: bool, seed: int
) -> Reading:
    model, tokenizer = trained.model, trained.tokenizer
    ids, tokens = [], []
    for line in text.strip("\n").split("\n"):
        encoded = encode(tokenizer, line)
        ids += [tokenizer.eos_id, *encoded.ids]
        tokens += [EOS, *encoded.shown]
    _check_length(len(ids) - 1)
    with in_mode(model, eval_gate=eval_gate, training=training, seed=seed) as mode, record_gates(model) as record:
        features, _, _ = model(_column(ids, model))
        probabilities, likeliest = model.logits(features[-1, 0]).softmax(-1).topk(min(_NEXT_WORDS, len(tokenizer)))
    words = tokenizer.readable(likeliest.tolist())
    return Reading(
        tokens={"text": tokens},
        layers=_layers(model, record),
        mode=mode,
        unknown={"text": _unknown(tokenizer, ids)},
        next_words=list(zip(words, probabilities.tolist(), strict=True)),
    )


def _read_translation(
    trained: TrainedTranslationModel, text: str, given: str | None, eval_gate: str | None, training: bool, seed: int
) -> Reading:
    model = trained.model
    line = trained.cleaned(" ".join(text.split("\n")))
    source, source_tokens = encode(trained.source, line)
    _check_length(len(source))
    own: dict[str, Any] = {}
    if given is None:
        found = trained.search([line], with_attention=True, eval_gate=eval_gate)[0][0]
        assert found.attention is not None
        target, words = found.target_ids, found.target[:-1]
        own = {"translation": found.text, "produced": [*words, EOS], "attention": found.attention.numpy()}
    else:
        target, words = encode(trained.target, trained.cleaned(given))
        _check_length(len(target))
    source, inputs = [*source, trained.source.eos_id], [trained.target.eos_id, *target]
    with in_mode(model, eval_gate=eval_gate, training=training, seed=seed) as mode, record_gates(model) as record:
        model(_column(source, model), torch.tensor([len(source)]), _column(inputs, model))
    return Reading(
        tokens={"source": [*source_tokens, EOS], "target": [EOS, *words]},
        layers=_layers(model, record),
        mode=mode,
        unknown={"source": _unknown(trained.source, source), "target": _unknown(trained.target, inputs)},
        **own,
    )


def _column(ids: list[int], model: LanguageModel | TranslationModel) -> Tensor:
    return torch.tensor(ids, device=model.softmax_bias.device).unsqueeze(1)


def _check_length(tokens: int) -> None:
    if not tokens:
        raise G2Error("the text has no words in it; give a sentence")
    if tokens > MAX_TOKENS:
        raise G2Error(
            f"the text has {tokens:,} tokens, and at most {MAX_TOKENS:,} can be looked at; give a sentence, or look at "
            "statistics over a split of the data instead"
        )


def _unknown(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    return [place for place, token in enumerate(ids) if token == tokenizer.unk_id]


def _layers(model: nn.Module, record: GateRecord) -> list[LayerReading]:
    """Of a record of one call for each LSTM, with a batch of one."""
    modules: Mapping[str, nn.Module] = dict(model.named_modules())
    layers = []
    for name, (gates,) in record.items():
        for index, place in enumerate(places(name, modules[name])):
            i, f, o = (getattr(gates, gate)[index][:, 0].float().cpu().numpy() for gate in GATES)
            layers.append(LayerReading(place, i, f, o))
    return layers
