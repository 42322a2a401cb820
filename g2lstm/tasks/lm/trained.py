"""`TrainedLanguageModel`: a language model with its tokenizer, ready to be used from Python."""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import torch

from g2lstm.compression.model import encoded_matrices
from g2lstm.compression.stream import TokenSession, can_replace, stream
from g2lstm.errors import G2Error
from g2lstm.runs.directory import RunDirectory
from g2lstm.tasks.lm.cache import CacheSettings, cached_perplexity
from g2lstm.tasks.lm.evaluate import Score, perplexity
from g2lstm.tasks.lm.generate import generate
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.lm.recipe import LmRecipe
from g2lstm.text.corpus import TokenStream, prepare_stream
from g2lstm.text.registry import lm_files
from g2lstm.text.tokenize import Tokenizer

_WORTH_PACKING = 40  # packing dense weights takes as long as a session saves in about so many steps


class TrainedLanguageModel:
    """A language model from a run directory.

    Attributes:
        run: its directory.
        recipe: what it was trained by.
        tokenizer: between text and token ids.
        model: the module, in evaluation mode.
    """

    def __init__(self, run: RunDirectory, recipe: LmRecipe, tokenizer: Tokenizer, model: LanguageModel) -> None:
        self.run = run
        self.recipe = recipe
        self.tokenizer = tokenizer
        self.model = model

    def perplexity(self, text: str, *, cache: CacheSettings | None = None, eval_gate: str | None = None) -> float:
        """Of a text, each of whose lines ends with the end-of-sentence token."""
        ids = torch.tensor([*self._ids(text.removesuffix("\n")), self.tokenizer.eos_id])
        return self.score(ids, cache=cache, eval_gate=eval_gate).perplexity

    def score(self, tokens: torch.Tensor, *, cache: CacheSettings | None = None, eval_gate: str | None = None) -> Score:
        """Of a stream of token ids, with or without the cache pointer."""
        if cache is None:
            return perplexity(self.model, tokens, eval_gate=eval_gate)
        return cached_perplexity(self.model, tokens, cache, eval_gate=eval_gate)

    def _ids(self, text: str) -> list[int]:
        """Of the tokens, with the end-of-sentence token between lines."""
        first, *others = (self.tokenizer.encode(line) for line in text.split("\n"))
        return [*first, *(token for line in others for token in (self.tokenizer.eos_id, *line))]

    def split(self, split: str, data_dir: Path | None = None) -> TokenStream:
        """The tokens of a split of the data that the model was trained on."""
        data = self.recipe.data
        files = lm_files(data.name, None if data.path is None else Path(data.path), data_dir)
        if split not in files:
            raise G2Error(f"there is no split {split!r}; choose one of {', '.join(files)}")
        return prepare_stream(files[split], self.tokenizer)

    def stream(self, threads: int | None = None) -> TokenSession:
        """A session whose `step` takes a token id and returns the log-probabilities of the next; see `g2lstm.stream`.

        Args:
            threads: at most so many; torch's number if not given.
        """
        return stream(self.model, threads)

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
        """Continues a prompt; the empty one begins a sentence.

        Args:
            prompt: text.
            tokens: how many tokens to add.
            temperature: below 1 likelier words become likelier still; 0 always takes the likeliest.
            top_k: draw from the k likeliest tokens only.
            top_p: draw from the likeliest tokens whose probabilities sum to p.
            seed: makes the draw repeatable.
            allow_unknown: let the model say `<unk>`.
        """
        if tokens < 0:
            raise G2Error(f"tokens must be at least 0, got {tokens}")
        ids = [self.tokenizer.eos_id, *self._ids(prompt)]
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        forbidden = () if allow_unknown else (self.tokenizer.unk_id,)
        # Compressed models always stream if they can: their text must not depend on how much is asked for.
        is_worth_it = len(ids) + tokens > _WORTH_PACKING or bool(encoded_matrices(self.model))
        continuation = generate(
            self.model,
            ids,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            forbidden=forbidden,
            generator=generator,
            read=self._read_by_session() if is_worth_it and can_replace(self.model) else None,
        )
        return self.tokenizer.decode([*ids[1:], *islice(continuation, tokens)])

    def _read_by_session(self) -> Callable[[Sequence[int]], torch.Tensor]:
        session = self.stream()

        def read(ids: Sequence[int]) -> torch.Tensor:
            return torch.from_numpy(session.step(ids[0]) if len(ids) == 1 else session.sequence(ids)[-1])

        return read
