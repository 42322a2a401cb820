"""`TrainedLanguageModel`: a language model with its tokenizer, ready to be used from Python."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from g2lstm.compression.stream import TokenSession, can_replace, stream
from g2lstm.errors import G2Error
from g2lstm.nn.record import evaluating
from g2lstm.recipes.explain import problems_of
from g2lstm.runtime.language import TextGeneration, token_ids
from g2lstm.tasks.lm.evaluate import cached_perplexity, tune_cache
from g2lstm.tasks.lm.model import LanguageModel
from g2lstm.tasks.lm.recipe import CacheSection, LmRecipe
from g2lstm.tasks.reading import Encoded, check_length, column, encode, surprisals
from g2lstm.tasks.trained import WORDS, Metric, Pass, Passes, Progress, Scoring, SpeedTest, SplitScore, Trained
from g2lstm.text.batches import Columns
from g2lstm.text.clean import check_unicode
from g2lstm.text.corpus import TokenStream, prepare_stream
from g2lstm.text.lines import count_characters
from g2lstm.text.tokenize import EOS, Tokenizer


def reader(model: LanguageModel, eval_gate: str | None = None) -> Callable[[Sequence[int]], NDArray[np.float32]]:
    """A function that reads the next tokens from where it stopped, and returns the logits (V,) after the last."""
    state = None

    def read(tokens: Sequence[int]) -> NDArray[np.float32]:
        nonlocal state
        with evaluating(model, eval_gate), torch.no_grad():
            ids = torch.tensor(tokens, device=model.device).unsqueeze(1)
            features, _, state = model(ids, state)
            logits: NDArray[np.float32] = model.logits(features[-1, 0]).float().numpy(force=True)
            return logits

    return read


def seeded(seed: int | None) -> np.random.Generator:
    """A generator with this seed, or with one that torch's generator draws."""
    return np.random.default_rng(int(torch.randint(2**63 - 1, ())) if seed is None else seed)


_NEXT_WORDS = 10
_SPEED_STEPS = 40


class TrainedLanguageModel(TextGeneration, Trained):
    """A language model with its tokenizer; see `Trained`."""

    task = "lm"
    title = "language model"
    metric = Metric("perplexity", "perplexity", higher_is_better=False)
    tokenizer_files = ("tokenizer.json",)
    sides = ("text",)
    uses = ("generate", "perplexity")
    recipe: LmRecipe
    model: LanguageModel

    @property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]
        """Between text and token ids."""
        return self.tokenizers["tokenizer.json"]

    def perplexity(self, text: str, *, cache: CacheSection | None = None, eval_gate: str | None = None) -> float:
        """The perplexity of a text, optionally with a cache pointer; every line ends with the end-of-sentence token.

        All tokens are predicted, the first as the beginning of a line.
        """
        check_unicode(text)
        if not text.strip():
            raise G2Error("the text is empty, so it has no perplexity; give at least one word")
        end = self.tokenizer.eos_id
        ids = torch.tensor([end, *token_ids(self.tokenizer, text.removesuffix("\n")), end])
        return cached_perplexity(self.model, ids, cache, eval_gate=eval_gate).perplexity

    def split(self, split: str, data_dir: Path | None = None) -> TokenStream:
        """The tokens of a split of the data that the model was trained on."""
        return prepare_stream(self.files(split, data_dir), self.tokenizer)

    def _score(self, files: Path, how: Scoring, eval_gate: str, progress: Progress | None) -> SplitScore:
        how = self.tune(how, progress)
        cache = self.cache_settings(how) if how.cache or _own_cache(how) else None
        stream = prepare_stream(files, self.tokenizer, cache=how.prepared)
        most = len(stream) if how.samples is None else how.samples * self.recipe.evaluate.bptt + 1
        tokens = torch.from_numpy(stream.read(0, min(len(stream), most)))
        found = cached_perplexity(self.model, tokens, cache, eval_gate=eval_gate, progress=progress)
        by_sentence = None
        if how.by_sentence:
            ends = (tokens[1:] == self.tokenizer.eos_id).numpy()
            by_sentence = nats_by_sentence(-found.log_probabilities.double().numpy(), ends)
        facts = {} if cache is None else {"cache": f"{cache.window},{cache.theta:g},{cache.lambda_:g}"}
        values = {"perplexity": found.perplexity, "tokens": found.tokens, **facts}
        values["unknown_share"] = (tokens[1:] == self.tokenizer.unk_id).double().mean().item()
        if len(tokens) == len(stream):
            values["bits_per_character"] = found.nats / math.log(2) / count_characters(files)
        return SplitScore(values, facts, by_sentence)

    def check_scoring(self, how: Scoring) -> None:
        """Raises for options that belong to another task, or contradict each other."""
        super().check_scoring(how)
        if how.tune_cache and _own_cache(how):
            raise G2Error("--tune-cache chooses window, theta and lambda itself; leave out either them or --tune-cache")

    def cache_settings(self, how: Scoring) -> CacheSection:
        """The recipe's settings of the cache, except for what `how` sets."""
        recipe = self.recipe.evaluate.cache.model_dump(by_alias=True)
        try:
            return CacheSection.model_validate(recipe | _own_cache(how))
        except ValidationError as error:
            raise G2Error(f"wrong cache settings: {'; '.join(problems_of(error, CacheSection))}") from None

    def tune(self, how: Scoring, progress: Progress | None = None) -> Scoring:
        """The same scoring with the settings of the cache that are best on the validation split."""
        if not how.tune_cache:
            return how
        valid = self.split("valid", how.data_dir)
        tokens = torch.from_numpy(valid.read(0, len(valid)))
        best = tune_cache(self.model, tokens, eval_gate=how.eval_gate, progress=progress)
        how = replace(how, tune_cache=False, cache_window=best.window)
        return replace(how, cache_theta=best.theta, cache_lambda=best.lambda_)

    def _encode(self, text: str, target: str | None, eval_gate: str | None) -> Encoded:
        if target is not None:
            raise G2Error("a language model reads one text; a target is for translation models")
        ids, tokens = [], []
        for line in text.strip("\n").split("\n"):
            line_ids, line_tokens = encode(self.tokenizer, line)
            ids += [self.tokenizer.eos_id, *line_ids]
            tokens += [EOS, *line_tokens]
        check_length(text, len(ids) - 1)
        return {"text": ids}, {"text": tokens}, {}

    def _forward(self, ids: Mapping[str, list[int]]) -> dict[str, Any]:
        model, count = self.model, min(_NEXT_WORDS, len(self.tokenizer))
        features, _, _ = model(column(ids["text"], model.device))
        logits = model.logits(features[:, 0])
        probabilities, likeliest = logits[-1].softmax(-1).topk(count)
        words = self.tokenizer.readable(likeliest.tolist())
        return {
            "next_words": list(zip(words, probabilities.tolist(), strict=True)),
            "next_texts": [self.tokenizer.bytes_of(token).decode(errors="ignore") for token in likeliest.tolist()],
            "surprisal": {"text": surprisals(logits, ids["text"])},
        }

    def passes(self, split: str, data_dir: Path | None = None) -> Passes:
        """The first windows, as validation reads them: columns side by side, with the state carried over."""
        stream = self.split(split, data_dir)
        return Passes("windows", stream.text_sha256, partial(self._read_windows, stream))

    def _read_windows(self, stream: TokenStream, samples: int, seed: int) -> Iterator[Pass]:
        model, how = self.model, self.recipe.evaluate
        columns = Columns(stream, min(how.batch_size, samples, len(stream) - 1))
        total = min(samples, columns.local_batch * -(-columns.rows // how.bptt))
        state, done = model.initial_state(columns.local_batch), 0
        for window in columns.windows(how.bptt):
            width = min(columns.local_batch, total - done)
            state = [(h[:, :width], c[:, :width]) for h, c in state]
            tokens = window.tokens[:, :width]
            _, _, state = model(tokens.to(model.device), state)
            done += width
            yield Pass(done, total, {}, {"text": tokens})
            if done == total:
                return

    def speed_test(self, how: Scoring | None) -> SpeedTest:
        """Some steps of a session, on random tokens."""
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(self.model.vocabulary_size, (_SPEED_STEPS,), generator=generator).tolist()
        session = self.stream()
        return SpeedTest(
            lambda: [session.step(token) for token in tokens], len(tokens), "steps/s", "streaming, batch 1"
        )

    def _made_up(self, count: int) -> list[str]:
        texts = (self.generate(tokens=WORDS.stop, temperature=0.7, seed=seed) for seed in range(count))
        return [line for text in texts if (line := text.strip().split("\n")[0])]

    def stream(self, threads: int | None = None) -> TokenSession:
        """A session that takes a token id and returns the log-probabilities of the next; see `g2lstm.stream`."""
        return stream(self.model, threads)

    def _generator(self, seed: int | None) -> np.random.Generator:
        return seeded(seed)

    def _reading(self) -> AbstractContextManager[Callable[[Sequence[int]], npt.NDArray[Any]]]:
        """Reads with a session, if it does everything that the model does; a subclass may do more."""
        is_same = type(self.model) is LanguageModel and can_replace(self.model)
        return nullcontext(self.stream().read if is_same else reader(self.model))


def _own_cache(how: Scoring) -> dict[str, Any]:
    given = {"window": how.cache_window, "theta": how.cache_theta, "lambda": how.cache_lambda}
    return {name: value for name, value in given.items() if value is not None}


def nats_by_sentence(nats: npt.NDArray[np.float64], ends: npt.NDArray[np.bool_]) -> list[list[float]]:
    """For each line the sum of -log p (n,) and the number of tokens; `ends` (n,) is true where a line ends."""
    starts = np.flatnonzero(np.concatenate([[True], ends[:-1]]))
    sums = np.add.reduceat(nats, starts)
    counts = np.diff(np.append(starts, len(nats)))
    return [[round(float(total), 4), int(count)] for total, count in zip(sums, counts, strict=True)]
