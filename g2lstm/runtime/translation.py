"""`TextTranslation`: from lines of text to translations, around a search over token ids; with torch or without."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from g2lstm.compression.encodings.base import is_whole
from g2lstm.errors import G2Error
from g2lstm.runtime.beam import MAX_SOURCE, Drawing, Floats, Hypothesis, limits
from g2lstm.runtime.detokenize import check_language, detokenize
from g2lstm.runtime.plain import TranslationParts as TranslationParts
from g2lstm.runtime.sampling import Utf8
from g2lstm.runtime.session import TranslationSession
from g2lstm.runtime.weights import NamedWeights, RunRecipe

if TYPE_CHECKING:
    from g2lstm.text.tokenize import Tokenizer


_WHITE_SPACE = re.compile(r"[ \t\r\n\v\f]+")  # for older tokenizers: ASCII only


def _seed() -> int:
    return int(np.random.default_rng().integers(2**63))


class SearchFacts(NamedTuple):
    """What the recipe says about translating.

    Attributes:
        beam: the number of hypotheses to follow.
        length_penalty: scores are divided by the length to this power.
        is_tokenized: whether spaces separate the tokens of the text.
        language: of the target.
    """

    beam: int
    length_penalty: float
    is_tokenized: bool
    language: str


class Translation(NamedTuple):
    """One translation of a sentence."""

    text: str
    score: float  # log-probability by length, which the search maximises
    log_probability: float
    source: list[str]  # the tokens of the source for people, with the end of sentence
    target: list[str]
    attention: Floats | None  # (target, source): where each target token looked
    target_ids: list[int]  # without the end of sentence
    is_cut: bool = False  # it is as long as the limit allows, so its end is probably missing
    alignment: list[tuple[int, int]] | None = None  # with attention: words of the source and of the target, from 0


class TextTranslation(ABC):
    """A model that translates text.

    Attributes:
        source, target: the tokenizers of both sides.
    """

    source: "Tokenizer"
    target: "Tokenizer"

    @property
    @abstractmethod
    def search_facts(self) -> SearchFacts:
        """How to search unless told otherwise."""

    @abstractmethod
    def _translate(self, sources: Sequence[Sequence[int]], **options: Any) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, all as token ids without `<eos>`."""

    def translate(self, text: str, *, beam: int | None = None, as_text: bool = False, **more: Any) -> str:
        """The best translation of each line of a text, tokenised as the training text was; see `search` for more."""
        if not isinstance(text, str):
            raise G2Error(f"text must be a str, got {type(text).__name__}; for a list of lines, use search(lines)")
        found = self.search(text.removesuffix("\n").split("\n"), beam=beam, as_text=as_text, **more)
        return "\n".join(best[0].text for best in found)

    def search(
        self,
        lines: Sequence[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        max_length: int | None = None,
        max_source: int | None = MAX_SOURCE,
        n_best: int = 1,
        min_length: int = 0,
        with_attention: bool = False,
        as_text: bool = False,
        sample: bool = False,
        temperature: float = 1.0,
        seed: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        **more: Any,
    ) -> list[list[Translation]]:
        """The best translations of each line, best first; the translation of a blank line is empty.

        Args:
            lines: source sentences, tokenised as the training text was; white space around them is ignored.
            beam: the number of hypotheses to follow; this and the next are the recipe's by default.
            length_penalty: scores are divided by length to this power.
            max_length: the maximum number of target tokens; by default twice the source and ten more.
            max_source: lines with more tokens are an error; None for no limit.
            n_best: the number of translations per line.
            min_length: the minimum number of target tokens, up to 1,000.
            with_attention: keep where each target token looked, and which words belong together.
            as_text: return plain text instead of tokens; for German and English.
            sample: draw translations at random instead, in no order; `beam` then has no effect.
            temperature: of drawing: below 1, likely tokens become likelier; 0 always takes the likeliest.
            seed: makes the draw repeatable: a line then gets the same translations among any others.
            progress: called with the sentences done and the total.
            **more: with torch also `eval_gate`: "soft", "tempered" or "hard"; None for the model's own.
        """
        if isinstance(lines, str) or not isinstance(lines, Iterable):
            got = "one string" if isinstance(lines, str) else type(lines).__name__
            raise G2Error(f"lines must be a list of sentences, got {got}; give [text], or use translate(text)")
        lines = list(lines)
        if other := [type(line).__name__ for line in lines if not isinstance(line, str)]:
            raise G2Error(f"each line must be a str, got {other[0]}")
        how = self.search_facts
        if as_text:
            check_language(how.language)
        if not is_whole(min_length, 0, MAX_SOURCE):
            raise G2Error(f"min_length must be 0 to {MAX_SOURCE}, got {min_length!r}")
        if is_whole(max_length, 1, min_length - 1):
            raise G2Error(f"min_length is {min_length}, more than max_length, which is {max_length}")
        lines = [self.cleaned(line) for line in lines]
        sources = self.source.encode_lines(lines)
        has_words = self.target.kind == "word"  # it may produce <unk>, which a source word then replaces
        found = self._translate(
            sources,
            beam=how.beam if beam is None else beam,
            length_penalty=how.length_penalty if length_penalty is None else length_penalty,
            max_length=max_length,
            max_source=max_source,
            n_best=n_best,
            min_length=min_length,
            keep_attention=with_attention or has_words,
            forbidden=self.forbidden,
            drawing=Drawing(temperature, _seed() if seed is None else seed) if sample else None,
            utf8=self._utf8,
            progress=progress,
            **more,
        )
        results = []
        for line, ids, hypotheses in zip(lines, sources, found, strict=True):
            tokens = [*self.source.readable(ids), self.source.token_of(self.source.eos_id)] if ids else []
            most = max(min_length, int(limits(np.array([len(ids)]), max_length)[0]))
            each = []
            for hypothesis in hypotheses:
                text = self.target.decode(hypothesis.tokens)
                if has_words and hypothesis.attention is not None:
                    words = [self.target.token_of(token) for token in hypothesis.tokens]
                    unknown = self.target.token_of(self.target.unk_id)
                    text = " ".join(replace_unknown(words, self._words(line), hypothesis.attention, unknown=unknown))
                if as_text:
                    text = detokenize(text, how.language)
                attention = hypothesis.attention if with_attention else None
                end = self.target.token_of(self.target.eos_id)
                ends = [*self.target.readable(hypothesis.tokens), end] if ids else []
                scores = hypothesis.score, hypothesis.log_probability
                is_cut = len(hypothesis.tokens) >= most
                pairs = None if attention is None else self._alignment(ids, hypothesis.tokens, attention)
                each.append(Translation(text, *scores, tokens, ends, attention, hypothesis.tokens, is_cut, pairs))
            results.append(each)
        return results

    @cached_property
    def _utf8(self) -> Utf8 | None:
        """None if every token of a translation consists of whole characters."""
        return Utf8.of(self.target)

    @property
    def forbidden(self) -> tuple[int, ...]:
        """Token ids that no translation has: sub-words can spell everything, so they need no `<unk>`."""
        return () if self.target.kind == "word" else (self.target.unk_id,)

    def cleaned(self, line: str) -> str:
        """A line as the source tokenizer cleans it.

        Older tokenizers don't: then it is without surrounding white space and, if the text is tokenised, has single
        spaces between words.
        """
        if self.source.is_cleaning:
            from g2lstm.text.clean import clean

            return clean(line)
        return (_WHITE_SPACE.sub(" ", line) if self.search_facts.is_tokenized else line).strip()

    def _alignment(self, source: Sequence[int], target: Sequence[int], attention: Floats) -> list[tuple[int, int]]:
        """Which word between spaces each word of the translation looked at most, token by token."""
        places = attention[: len(target), : len(source)].argmax(axis=1).tolist()
        words, found = word_numbers(self.source, source), word_numbers(self.target, target)
        return sorted({(words[place], number) for place, number in zip(places, found, strict=True)})

    def _words(self, line: str) -> list[str]:
        """The words of a line as the word tokenizer splits them, with their case kept."""
        return [line[start:end] for start, end in self.source.backend.encode(line, add_special_tokens=False).offsets]


def word_numbers(tokenizer: "Tokenizer", ids: Sequence[int]) -> list[int]:
    """The number of the word between spaces that each token belongs to, from 0."""
    from g2lstm.text.tokenize import begins_word

    begins = [tokenizer.kind != "bpe" or begins_word(tokenizer.token_of(token)) for token in ids]
    return [max(0, number - 1) for number in accumulate(begins)]


def replace_unknown(words: Sequence[str], source: Sequence[str], attention: Floats, *, unknown: str) -> list[str]:
    """Replaces each unknown word of a translation by the source word that was attended to most, never by `<eos>`.

    The attention is (len(words) + 1, len(source) + 1), as in a `Hypothesis`.
    """
    if not source:
        return list(words)
    places = attention[: len(words), : len(source)].argmax(axis=1).tolist()
    return [source[place] if word == unknown else word for word, place in zip(words, places, strict=True)]


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
