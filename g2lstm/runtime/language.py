"""`LanguageModel`: a language model of a run that reads token by token and writes text, without torch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression.encodings import Encoding
from g2lstm.compression.encodings.base import is_whole
from g2lstm.compression.gate_weights import LayerWeights
from g2lstm.compression.kernel import open_session
from g2lstm.compression.session import Layer, TokenSession
from g2lstm.errors import G2Error
from g2lstm.runtime.sampling import Logits, Utf8, check_seed, continuation
from g2lstm.runtime.weights import NamedWeights, RunRecipe

if TYPE_CHECKING:
    from g2lstm.text.tokenize import Tokenizer


class LanguageParts(NamedTuple):
    """The weights of a language model, in the order in which they compute.

    Attributes:
        embedding: (V, E).
        layers: each reads the one before.
        residual: for each layer, whether its input is added to its output.
        softmax: (V, H), the embedding itself if they are tied.
        bias: (V,), of the softmax.
        hard: the gates that are 1[a >= 0] instead of a sigmoid.
    """

    embedding: Encoding
    layers: list[LayerWeights]
    residual: list[bool]
    softmax: Encoding
    bias: NDArray[np.float32]
    hard: str


def language_parts(
    recipe: RunRecipe, weights: NamedWeights, tokenizer: "Tokenizer", eval_gate: str | None
) -> LanguageParts:
    """Takes a language model apart; raises if its weights fit neither each other nor the tokenizer."""
    gates, residual = recipe.gates(eval_gate), recipe.get("model.residual", False)
    embedding = weights.matrix("embedding.weight")
    softmax = weights.matrix("softmax_weight") if "softmax_weight" in weights else embedding
    bias = weights.vector("softmax_bias", len(tokenizer))
    layers = [weights.layer(f"layers.{k}.", gates) for k in range(weights.count("layers.{}.weight_ih_l0"))]
    rows = {"the embedding": embedding.shape[0], "the softmax": softmax.shape[0]}
    weights.check({name: (found, len(tokenizer)) for name, found in rows.items()})
    adds = [residual and one.hidden == one.w_x[0].encoding.shape[1] for one in layers]
    return LanguageParts(embedding, layers, adds, softmax, bias, gates.hard)


class TextGeneration(ABC):
    """A language model that writes text.

    Attributes:
        tokenizer: between text and token ids.
    """

    tokenizer: "Tokenizer"

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Callable[[Sequence[int]], Logits]]:
        """Reads the next token ids, at first from a state of zeros; returns the logits (V,) after the last."""

    def _generator(self, seed: int | None) -> np.random.Generator:
        return np.random.default_rng(seed)

    def generate(
        self,
        prompt: str = "",
        *,
        tokens: int = 50,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int | None = None,
        allow_unknown: bool = False,
    ) -> str:
        """Continues a prompt; an empty one begins a sentence. With or without torch, the same seed gives the same text.

        Args:
            prompt: the text to continue.
            tokens: the number of tokens to add.
            temperature: below 1, likely words become likelier; 0 always takes the likeliest.
            top_k: draw only from the k likeliest tokens.
            top_p: draw only from the likeliest tokens that together have this probability.
            seed: makes the result repeatable.
            allow_unknown: let the model produce `<unk>`.
        """
        if not is_whole(tokens, 0):
            raise G2Error(f"tokens must be a whole number of at least 0, got {tokens!r}")
        check_seed(seed)
        ids = [self.tokenizer.eos_id, *token_ids(self.tokenizer, prompt)]
        forbidden = () if allow_unknown else (self.tokenizer.unk_id,)
        with self._reading() as read:
            drawn = continuation(
                read, ids, temperature=temperature, top_k=top_k, top_p=top_p, forbidden=forbidden,
                utf8=self._utf8, generator=self._generator(seed),
            )  # fmt: skip
            new = list(islice(drawn, tokens))
        return self.tokenizer.decode([*ids[1:], *(new if self._utf8 is None else self._utf8.finished(new))])

    @cached_property
    def _utf8(self) -> Utf8 | None:
        """None if every token consists of whole characters."""
        return Utf8.of(self.tokenizer)


class LanguageModel(TextGeneration, TokenSession):
    """A language model with its tokenizer and a state, which is zero before the first token and which `generate` keeps.

    Attributes:
        tokenizer: between text and token ids.
        vocabulary_size: V.
    """

    def __init__(self, parts: LanguageParts, tokenizer: "Tokenizer", threads: int | None = None) -> None:
        each = zip(parts.layers, parts.residual, strict=True)
        layers = [one.session_layer(residual) for one, residual in each]
        softmax = Layer.softmax(parts.softmax, parts.bias)
        super().__init__(open_session(layers, parts.hard, threads, softmax), parts.embedding)
        self.tokenizer = tokenizer

    @contextmanager
    def _reading(self) -> Iterator[Callable[[Sequence[int]], Logits]]:
        before = self.get_state()
        self.reset()
        try:
            yield self.read
        finally:
            self.set_state(before)


def token_ids(tokenizer: "Tokenizer", text: str) -> list[int]:
    """Token ids, with the end-of-sentence token between lines."""
    if not isinstance(text, str):
        raise G2Error(f"a text must be a str, got {type(text).__name__}")
    first, *others = (tokenizer.encode(line) for line in text.split("\n"))
    return [*first, *(token for line in others for token in (tokenizer.eos_id, *line))]
