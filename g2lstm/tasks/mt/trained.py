"""`TrainedTranslationModel`: a translation model with its tokenizers, ready to be used from Python."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from g2lstm.errors import G2Error
from g2lstm.tasks.mt.beam import MAX_SOURCE, Hypothesis, translate
from g2lstm.tasks.mt.bleu import bleu_by_sentence, score
from g2lstm.tasks.mt.detokenize import check_language, detokenize
from g2lstm.tasks.mt.model import TranslationModel
from g2lstm.tasks.mt.recipe import MtRecipe
from g2lstm.tasks.reading import Encoded, check_length, column, encode
from g2lstm.tasks.trained import Metric, Pass, Passes, Progress, Scoring, SpeedTest, SplitScore, Trained
from g2lstm.text.batches import PairBatch, pair_batch
from g2lstm.text.datasets import partial_pairs
from g2lstm.text.pairs import PairCorpus, PairFiles, prepare_pairs, read_pairs
from g2lstm.text.tokenize import EOS, UNK, Tokenizer

SOURCE_TOKENIZER, TARGET_TOKENIZER = "tokenizer.source.json", "tokenizer.target.json"

_WHITE_SPACE = re.compile(r"[ \t\r\n\v\f]+")  # ASCII only; a no-break space is part of a word
_USUAL_LENGTH = 24  # batches of longer sentences have fewer sentences, so that memory stays the same
_SPEED_SENTENCES = 16


class Translation(NamedTuple):
    """One translation of a sentence."""

    text: str
    score: float  # log-probability by length, which the search maximises
    log_probability: float
    source: list[str]  # the tokens of the source for people, with the end of sentence
    target: list[str]
    attention: Tensor | None  # (target, source): where each target token looked
    target_ids: list[int]  # without the end of sentence


class TrainedTranslationModel(Trained):
    """A translation model with its tokenizers; see `Trained`."""

    task = "mt"
    title = "translation model"
    metric = Metric("bleu", "BLEU", higher_is_better=True)
    tokenizer_files = (SOURCE_TOKENIZER, TARGET_TOKENIZER)
    sides = ("source", "target")
    recipe: MtRecipe
    model: TranslationModel

    @property
    def source(self) -> Tokenizer:
        """Between source text and token ids."""
        return self.tokenizers[SOURCE_TOKENIZER]

    @property
    def target(self) -> Tokenizer:
        """Between target text and token ids."""
        return self.tokenizers[TARGET_TOKENIZER]

    def translate(self, text: str, *, beam: int | None = None, as_text: bool = False) -> str:
        """The best translation of each line of a text, tokenised as the training text was; see `search`."""
        found = self.search(text.removesuffix("\n").split("\n"), beam=beam, as_text=as_text)
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
        with_attention: bool = False,
        as_text: bool = False,
        eval_gate: str | None = None,
        progress: Progress | None = None,
    ) -> list[list[Translation]]:
        """The best translations of each line, best first; the translation of a blank line is empty.

        Args:
            lines: source sentences, tokenised as the training text was; white space around them is ignored.
            beam: the number of hypotheses to follow; this and the next are the recipe's by default.
            length_penalty: scores are divided by length to this power.
            max_length: the maximum number of target tokens; by default twice the source and ten more.
            max_source: lines with more tokens are an error; None for no limit.
            n_best: the number of translations per line.
            with_attention: keep where each target token looked.
            as_text: return plain text instead of tokens; for German and English.
            eval_gate: "soft", "tempered" or "hard"; None for the model's own.
            progress: called with the sentences done and the total.
        """
        if isinstance(lines, str):
            raise G2Error("lines must be a list of sentences, got one string; give [text], or use translate(text)")
        if as_text:
            check_language(self.recipe.data.target)
        how = self.recipe.evaluate
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
            batch_size=how.batch_size,
            keep_attention=with_attention or has_words,
            forbidden=() if has_words else (self.target.unk_id,),
            eval_gate=eval_gate,
            progress=progress,
        )
        results = []
        for line, ids, hypotheses in zip(lines, sources, found, strict=True):
            tokens = [*self.source.readable(ids), EOS] if ids else []
            each = []
            for hypothesis in hypotheses:
                text = self.target.decode(hypothesis.tokens)
                if has_words and hypothesis.attention is not None:
                    words = [self.target.token_of(token) for token in hypothesis.tokens]
                    text = " ".join(replace_unknown(words, self._words(line), hypothesis.attention, unknown=UNK))
                if as_text:
                    text = detokenize(text, self.recipe.data.target)
                attention = hypothesis.attention if with_attention else None
                ends = [*self.target.readable(hypothesis.tokens), EOS] if ids else []
                scores = hypothesis.score, hypothesis.log_probability
                each.append(Translation(text, *scores, tokens, ends, attention, hypothesis.tokens))
            results.append(each)
        return results

    def _translate(self, sources: Sequence[Sequence[int]], **options: Any) -> list[list[Hypothesis]]:
        eos = self.source.eos_id, self.target.eos_id
        return translate(self.model, sources, source_eos=eos[0], target_eos=eos[1], **options)

    def cleaned(self, line: str) -> str:
        """A line without surrounding white space and, if the text is tokenised, with single spaces between words."""
        return (_WHITE_SPACE.sub(" ", line) if self.recipe.data.is_tokenized else line).strip()

    def _words(self, line: str) -> list[str]:
        """The words of a line as the word tokenizer splits them, with their case kept."""
        return [line[start:end] for start, end in self.source.backend.encode(line, add_special_tokens=False).offsets]

    def split(self, split: str, data_dir: Path | None = None) -> tuple[list[str], list[str]]:
        """The sources and the references of a split, as they are in the files."""
        return read_pairs(self.files(split, data_dir))

    @property
    def partial(self) -> str | None:
        """How much of its data set the model was trained on; None if it was all of it."""
        name, pairs = self.recipe.data.name, self.facts.get("train_pairs", "")
        return partial_pairs(name, int(pairs)) if name is not None and pairs.isdecimal() and len(pairs) < 16 else None

    def _score(self, files: PairFiles, how: Scoring, eval_gate: str, progress: Progress | None) -> SplitScore:
        own = self.recipe.evaluate
        beam = own.beam if how.beam is None else how.beam
        penalty = own.length_penalty if how.length_penalty is None else how.length_penalty
        sources, references = (lines[: how.samples] for lines in read_pairs(files))
        found = self.search(
            sources, beam=beam, length_penalty=penalty, max_source=None, eval_gate=eval_gate, progress=progress
        )
        texts = [best[0].text for best in found]
        search, trained_on = {"beam": beam, "length_penalty": penalty}, self.partial
        values = score(texts, references, own.bleu) | {"sentences": len(texts), **search}
        return SplitScore(
            values if trained_on is None else {**values, "trained_on": trained_on},
            {"beam": str(beam), "penalty": f"{penalty:g}"},
            bleu_by_sentence(texts, references, own.bleu) if how.by_sentence else None,
        )

    def _encode(self, text: str, target: str | None, eval_gate: str | None) -> Encoded:
        """Also translates the text, in evaluation mode, unless a translation is given."""
        line = self.cleaned(" ".join(text.split("\n")))
        source, source_tokens = encode(self.source, line)
        check_length(text, len(source))
        more: dict[str, Any] = {}
        if target is None:
            found = self.search([line], with_attention=True, eval_gate=eval_gate)[0][0]
            assert found.attention is not None
            ids, words = found.target_ids, found.target[:-1]
            more = {"translation": found.text, "produced": [*words, EOS], "attention": found.attention.numpy()}
        else:
            ids, words = encode(self.target, self.cleaned(target))
            check_length(target, len(ids))
        all_ids = {"source": [*source, self.source.eos_id], "target": [self.target.eos_id, *ids]}
        return all_ids, {"source": [*source_tokens, EOS], "target": [EOS, *words]}, more

    def _forward(self, ids: Mapping[str, list[int]]) -> dict[str, Any]:
        source, target = (column(ids[side], self.model.device) for side in self.sides)
        self.model(source, torch.tensor([len(source)]), target)
        return {}

    def passes(self, split: str, data_dir: Path | None = None) -> Passes:
        """Random pairs, no longer than in training, with the target given."""
        corpus = prepare_pairs(self.files(split, data_dir), self.source, self.target)
        return Passes("pairs", "+".join(corpus.text_sha256), partial(self._read_pairs, corpus))

    def _read_pairs(self, corpus: PairCorpus, samples: int, seed: int) -> Iterator[Pass]:
        model, recipe = self.model, self.recipe
        lengths = np.stack((corpus.target.lengths, corpus.source.lengths))
        kept = np.flatnonzero((lengths.min(0) > 0) & (lengths.max(0) <= recipe.data.max_length))
        chosen = np.random.default_rng(seed).permutation(kept)[:samples]
        if not len(chosen):
            raise G2Error(
                f"all {len(corpus)} pairs have an empty side or more than {recipe.data.max_length} tokens on one"
            )
        longer = lengths.max(0)  # of the two sides
        chosen = chosen[np.argsort(-longer[chosen], kind="stable")]
        done = 0
        while done < len(chosen):
            size = recipe.evaluate.batch_size * min(1.0, _USUAL_LENGTH / longer[chosen[done]])
            pairs = chosen[done : done + max(1, int(size))]
            batch = pair_batch(corpus, pairs, self.source.eos_id, self.target.eos_id)
            model(batch.source.to(model.device), batch.source_lengths, batch.inputs.to(model.device))
            done += len(pairs)
            yield Pass(done, len(chosen), where_tokens(batch, model))

    def speed_test(self, how: Scoring | None) -> SpeedTest | None:
        """Greedy translation of the first sentences of a split, one at a time."""
        if how is None:
            return None
        lines = [line for line in self.split(how.split, how.data_dir)[0] if line.strip()][:_SPEED_SENTENCES]
        job = partial(self._translate, self.source.encode_lines(lines), beam=1, batch_size=1)
        return SpeedTest(job, len(lines), "sentences/s", f"greedy, one at a time, first {len(lines)} sentences")

    def describe(self) -> dict[str, Any]:
        """The special tokens of either side, and the recipe's search."""
        how = self.recipe.evaluate
        return super().describe() | {"search": {"beam": how.beam, "length_penalty": how.length_penalty}}


def where_tokens(batch: PairBatch, model: TranslationModel) -> dict[str, Tensor]:
    """For each LSTM by name, where it reads tokens in a batch: (T, B), false at padding."""
    is_source = torch.arange(len(batch.source)).unsqueeze(1) < batch.source_lengths
    sides = {"encoder": (model.encoder, is_source), "decoder": (model.decoder, batch.targets >= 0)}
    return {f"{side}.{k}": is_token for side, (layers, is_token) in sides.items() for k in range(len(layers))}


def replace_unknown(words: Sequence[str], source: Sequence[str], attention: Tensor, *, unknown: str) -> list[str]:
    """Replaces each unknown word of a translation by the source word that was attended to most, never by `<eos>`.

    The attention is (len(words) + 1, len(source) + 1), as in a `Hypothesis`.
    """
    if not source:
        return list(words)
    places = attention[: len(words), : len(source)].argmax(dim=1).tolist()
    return [source[place] if word == unknown else word for word, place in zip(words, places, strict=True)]
