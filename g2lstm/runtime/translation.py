"""`TranslationModel`: the translation model of a run, without torch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from g2lstm.runtime.beam import Hypothesis
from g2lstm.runtime.plain import TranslationParts as TranslationParts
from g2lstm.runtime.recipe import RunRecipe
from g2lstm.runtime.session import TranslationSession
from g2lstm.runtime.translating import SearchFacts, TextTranslation
from g2lstm.runtime.weights import NamedWeights

if TYPE_CHECKING:
    from g2lstm.text.tokenize import Tokenizer


def translation_parts(
    recipe: RunRecipe, weights: NamedWeights, source: "Tokenizer", target: "Tokenizer", eval_gate: str | None
) -> TranslationParts:
    """Takes a translation model apart; raises if its weights fit neither each other nor the tokenizers."""
    gates = recipe.gates(eval_gate)
    embedding = weights.matrix("target_embedding.weight")
    own = weights.matrix("source_embedding.weight") if "source_embedding.weight" in weights else embedding
    softmax = weights.matrix("softmax_weight") if "softmax_weight" in weights else embedding
    directions = [weights.layer("encoder.0.", gates, ending) for ending in ("_l0", "_l0_reverse")]
    above = [weights.layer(f"encoder.{k}.", gates) for k in range(1, weights.count("encoder.{}.weight_ih_l0"))]
    decoder = [weights.layer(f"decoder.{k}.", gates) for k in range(weights.count("decoder.{}.weight_ih_l0"))]
    H, E = directions[0].hidden, embedding.shape[1]
    C = H if above else 2 * H
    key, bridge, output = (weights.matrix(f"{name}.weight") for name in ("attention.key", "bridge", "output"))
    made = TranslationParts(
        own, embedding, directions, above, decoder, key,
        (bridge, weights.vector("bridge.bias", len(decoder) * H)), (output, weights.vector("output.bias", E)),
        softmax, weights.vector("softmax_bias", len(target)), recipe.get("model.residual", False), gates.hard,
    )  # fmt: skip
    widths = [E, *[2 * H] * bool(above), *[H] * (len(above) - 1), E, *[H + C] * (len(decoder) - 1)]
    found = [one.w_x[0].encoding.shape[1] for one in (directions[1], *above, *decoder)]
    weights.check(
        {
            "the source embedding": (own.shape, (len(source), E)),
            "the target embedding": (embedding.shape, (len(target), E)),
            "the softmax": (softmax.shape, (len(target), E)),
            "the inputs of the layers": (found, widths),
            "the widths of the layers": ({one.hidden for one in (*directions, *above, *decoder)}, {H}),
            "attention.key": (key.shape, (H, C)),
            "bridge": (bridge.shape, (len(decoder) * H, C)),
            "output": (output.shape, (E, H + C)),
        }
    )
    return made


def search_facts(recipe: RunRecipe) -> SearchFacts:
    """What the recipe says about translating."""
    beam, penalty = recipe.get("evaluate.beam", 5), recipe.get("evaluate.length_penalty", 1.0)
    return SearchFacts(beam, penalty, recipe.get("data.is_tokenized", True), recipe.get("data.target", ""))


class TranslationModel(TextTranslation):
    """A translation model with its tokenizers.

    Attributes:
        source, target: the tokenizers of both sides.
    """

    def __init__(
        self,
        parts: TranslationParts,
        facts: SearchFacts,
        source: "Tokenizer",
        target: "Tokenizer",
        threads: int | None = None,
    ) -> None:
        self.source, self.target, self._facts = source, target, facts
        self._session = TranslationSession(parts, threads)

    @property
    def search_facts(self) -> SearchFacts:
        """How to search unless told otherwise: what the recipe says."""
        return self._facts

    def _translate(self, sources: Sequence[Sequence[int]], **options: Any) -> list[list[Hypothesis]]:
        source_eos, target_eos = self.source.eos_id, self.target.eos_id
        return self._session.translate(sources, source_eos=source_eos, target_eos=target_eos, **options)
