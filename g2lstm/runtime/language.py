"""`LanguageModel`: a language model of a run that reads token by token and writes text, without torch."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from g2lstm.compression.encodings import Encoding
from g2lstm.compression.gate_weights import LayerWeights
from g2lstm.compression.kernel import open_session
from g2lstm.compression.session import Layer
from g2lstm.compression.tokens import TokenSession
from g2lstm.errors import G2Error
from g2lstm.runtime.recipe import RunRecipe
from g2lstm.runtime.sampling import Logits, continuation
from g2lstm.runtime.weights import NamedWeights

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


class LanguageModel(TokenSession):
    """A language model with its tokenizer and a state, which is zero before the first token.

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
        """Continues a prompt; an empty one begins a sentence. The state for `step` stays as it is.

        With the same seed, `g2lstm.load(run).generate` writes the same text.

        Args:
            prompt: the text to continue.
            tokens: the number of tokens to add.
            temperature: below 1, likely words become likelier; 0 always takes the likeliest.
            top_k: draw only from the k likeliest tokens.
            top_p: draw only from the likeliest tokens that together have this probability.
            seed: makes the result repeatable.
            allow_unknown: let the model produce `<unk>`.
        """
        before = self.get_state()
        self.reset()
        try:
            return continue_text(
                self.tokenizer, self.read, prompt, tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p,
                generator=np.random.default_rng(seed), allow_unknown=allow_unknown,
            )  # fmt: skip
        finally:
            self.set_state(before)


def continue_text(
    tokenizer: "Tokenizer",
    read: Callable[[Sequence[int]], Logits],
    prompt: str,
    *,
    tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float,
    generator: np.random.Generator,
    allow_unknown: bool,
) -> str:
    """A prompt and its continuation; `read` and the options are those of `continuation`."""
    if tokens < 0:
        raise G2Error(f"tokens must be at least 0, got {tokens}")
    ids = [tokenizer.eos_id, *token_ids(tokenizer, prompt)]
    forbidden = () if allow_unknown else (tokenizer.unk_id,)
    drawn = continuation(
        read, ids, temperature=temperature, top_k=top_k, top_p=top_p, forbidden=forbidden, generator=generator
    )
    return tokenizer.decode([*ids[1:], *islice(drawn, tokens)])


def token_ids(tokenizer: "Tokenizer", text: str) -> list[int]:
    """Token ids, with the end-of-sentence token between lines."""
    if not isinstance(text, str):
        raise G2Error(f"a text must be a str, got {type(text).__name__}")
    first, *others = (tokenizer.encode(line) for line in text.split("\n"))
    return [*first, *(token for line in others for token in (tokenizer.eos_id, *line))]
