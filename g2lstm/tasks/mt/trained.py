"""`TrainedTranslationModel`: a translation model with its tokenizers, ready to be used from Python."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from g2lstm.compression.stream import stream
from g2lstm.errors import G2Error
from g2lstm.export.c.translation import Search
from g2lstm.files import write_atomically
from g2lstm.nn.record import evaluating
from g2lstm.runtime.beam import LIMIT_MORE, LIMIT_PER_TOKEN, NOT_NUMBERS, Hypothesis
from g2lstm.runtime.session import TranslationSession
from g2lstm.runtime.translation import SearchFacts, TextTranslation
from g2lstm.runtime.translation import Translation as Translation
from g2lstm.tasks.cross_entropy import cross_entropy
from g2lstm.tasks.mt.beam import translate
from g2lstm.tasks.mt.model import TranslationModel
from g2lstm.tasks.mt.recipe import BleuSection, MtRecipe
from g2lstm.tasks.reading import Encoded, check_length, column, encode, surprisals
from g2lstm.tasks.trained import Metric, Pass, Passes, Progress, Scoring, SpeedTest, SplitScore, Trained
from g2lstm.text.batches import PairBatch, evaluation_batches, pair_batch
from g2lstm.text.corpus import PairCorpus, PairFiles, prepare_pairs, read_pairs
from g2lstm.text.datasets import partial_pairs
from g2lstm.text.tokenize import EOS, Tokenizer

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU


def score(hypotheses: Sequence[str], references: Sequence[str], how: BleuSection) -> dict[str, Any]:
    """How close translations are to their references, one each, from 0 to 100: BLEU and chrF, with signatures."""
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = _metric(how), CHRF(lowercase=how.lowercase)
    scores = {"bleu": _corpus_score(bleu, hypotheses, references)}
    scores["chrf"] = chrf.corpus_score(hypotheses, [references]).score
    return {**scores, "bleu_signature": str(bleu.get_signature()), "chrf_signature": str(chrf.get_signature())}


def check(how: BleuSection) -> None:
    """Raises if sacreBLEU can't compare in this way, better before training than after."""
    if how.tokenize not in ("none", "13a", "intl"):
        _metric(how)


def corpus_chrf(hypotheses: Sequence[str], references: Sequence[str], how: BleuSection) -> float:
    """Only the chrF of `score`."""
    from sacrebleu.metrics.chrf import CHRF

    return float(CHRF(lowercase=how.lowercase).corpus_score(hypotheses, [references]).score)


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], how: BleuSection) -> float:
    """Only the BLEU of `score`, which saves the time that chrF takes."""
    return _corpus_score(_metric(how), hypotheses, references)


def bleu_by_sentence(texts: Sequence[str], references: Sequence[str], how: BleuSection) -> list[list[int]]:
    """For each sentence its matching n-grams of 1 to 4 words, all its n-grams, its length and the reference's."""
    bleu = _metric(how, effective_order=True)
    scores = [bleu.sentence_score(text, [reference]) for text, reference in zip(texts, references, strict=True)]
    return [[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores]


def _metric(how: BleuSection, *, effective_order: bool = False) -> "BLEU":
    from sacrebleu.metrics.bleu import BLEU

    try:  # `force` only silences a warning that the text looks tokenised
        return BLEU(tokenize=how.tokenize, lowercase=how.lowercase, force=True, effective_order=effective_order)
    except (RuntimeError, ImportError, OSError) as error:  # a package that is not installed, a model not downloaded
        said = " ".join(str(error).split())
        raise G2Error(
            f'evaluate.bleu.tokenize = "{how.tokenize}": {said} Or set it to "char", which needs nothing'
        ) from None


def _corpus_score(bleu: "BLEU", hypotheses: Sequence[str], references: Sequence[str]) -> float:
    if len(hypotheses) != len(references):
        raise G2Error(
            f"there are {len(hypotheses)} translations but {len(references)} references; give one for each translation"
        )
    if not hypotheses:
        raise G2Error("there are no translations to score; give at least one")
    return float(bleu.corpus_score(hypotheses, [references]).score)


SOURCE_TOKENIZER, TARGET_TOKENIZER = "tokenizer.source.json", "tokenizer.target.json"

_USUAL_LENGTH = 24  # batches of longer sentences have fewer sentences, so that memory stays the same
_SPEED_SENTENCES = 16


class TrainedTranslationModel(TextTranslation, Trained):
    """A translation model with its tokenizers; see `Trained`."""

    task = "mt"
    title = "translation model"
    metric = Metric("bleu", "BLEU", higher_is_better=True)
    tokenizer_files = (SOURCE_TOKENIZER, TARGET_TOKENIZER)
    sides = ("source", "target")
    uses = ("translate", "search")
    recipe: MtRecipe
    model: TranslationModel

    @property
    def source(self) -> Tokenizer:  # type: ignore[override]
        """Between source text and token ids."""
        return self.tokenizers[SOURCE_TOKENIZER]

    @property
    def target(self) -> Tokenizer:  # type: ignore[override]
        """Between target text and token ids."""
        return self.tokenizers[TARGET_TOKENIZER]

    @property
    def search_facts(self) -> SearchFacts:
        """How to search unless told otherwise: what the recipe says."""
        data, how = self.recipe.data, self.recipe.evaluate
        return SearchFacts(how.beam, how.length_penalty, data.is_tokenized, data.target)

    def _translate(self, sources: Sequence[Sequence[int]], **options: Any) -> list[list[Hypothesis]]:
        options = {"batch_size": self.recipe.evaluate.batch_size, **options}
        eos = self.source.eos_id, self.target.eos_id
        return translate(self.model, sources, source_eos=eos[0], target_eos=eos[1], **options)

    def stream(self, threads: int | None = None) -> TranslationSession:
        """A session that translates token ids; see `g2lstm.stream`."""
        session: TranslationSession = stream(self.model, threads)
        return session

    def c_search(self) -> Search:
        """How `export_c` lets a program search; `<unk>` is a word that the program itself replaces."""
        how, forbidden = self.search_facts, [] if self.target.kind == "word" else [self.target.unk_id]

        def read(source: Sequence[int], tokens: Sequence[int]) -> npt.NDArray[Any]:
            ids = column([*source, self.source.eos_id], self.model.device)
            features = self.model(ids, torch.tensor([len(ids)]), column(list(tokens), self.model.device))
            return self.model.logits(features[:, 0]).log_softmax(-1).numpy(force=True)

        def score(source: Sequence[int]) -> float:
            options = {"forbidden": forbidden, "utf8": self._utf8}
            found = self._translate([source], beam=how.beam, length_penalty=how.length_penalty, **options)
            return found[0][0].score

        ends = self.source.eos_id, self.target.eos_id
        return Search(*ends, forbidden, how.beam, how.length_penalty, read, score, self._utf8)

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
        sources, references = (lines[: how.samples] for lines in read_pairs(PairFiles(*files)))
        found = self.search(
            sources, beam=beam, length_penalty=penalty, max_source=None, eval_gate=eval_gate, progress=progress
        )
        texts = [best[0].text for best in found]
        if how.save is not None:
            with write_atomically(how.save) as file:
                file.write("".join(f"{text}\n" for text in texts).encode())
        search, trained_on = {"beam": beam, "length_penalty": penalty}, self.partial
        values = score(texts, references, own.bleu) | {"sentences": len(texts), **search}
        return SplitScore(
            values if trained_on is None else {**values, "trained_on": trained_on},
            {"beam": str(beam), "penalty": f"{penalty:g}"},
            bleu_by_sentence(texts, references, own.bleu) if how.by_sentence else None,
        )

    def log_probabilities(
        self, source: Path, target: Path, *, eval_gate: str | None = None, progress: Progress | None = None
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """How likely the model finds given translations, line by line.

        Args:
            source: a file, tokenised as the training text was.
            target: its translation, line by line.
            eval_gate: "soft", "tempered" or "hard"; None for the model's own.
            progress: called with the pairs done and the total.

        Returns:
            The log-probability of each target line with its end, and its number of tokens with the end: (lines,) each.
        """
        corpus, model = prepare_pairs(PairFiles(source, target), self.source, self.target), self.model
        ends, done = (self.source.eos_id, self.target.eos_id), 0
        found = np.zeros(len(corpus))
        with evaluating(model, eval_gate), torch.inference_mode():
            for places, batch in evaluation_batches(corpus, *ends, batch_size=self.recipe.evaluate.batch_size):
                inputs, is_token = batch.inputs.to(model.device), batch.targets >= 0
                features = model(batch.source.to(model.device), batch.source_lengths, inputs)[is_token]
                wanted = batch.targets[is_token].to(model.device)
                nats = cross_entropy(features, model.output_weight, model.softmax_bias, wanted, reduction="none")
                by_pair = torch.zeros(is_token.shape, dtype=torch.float64).masked_scatter(is_token, nats.double().cpu())
                found[places] = -by_pair.sum(0).numpy()
                done += len(places)
                if progress is not None:
                    progress(done, len(corpus))
        if not np.isfinite(found).all():
            raise G2Error(NOT_NUMBERS)
        return found, corpus.target.lengths + 1

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
            more = {"translation": found.text, "produced": [*words, EOS], "attention": found.attention}
        else:
            ids, words = encode(self.target, self.cleaned(target))
            check_length(target, len(ids))
        all_ids = {"source": [*source, self.source.eos_id], "target": [self.target.eos_id, *ids]}
        return all_ids, {"source": [*source_tokens, EOS], "target": [EOS, *words]}, more

    def _forward(self, ids: Mapping[str, list[int]]) -> dict[str, Any]:
        source, target = (column(ids[side], self.model.device) for side in self.sides)
        logits = self.model.logits(self.model(source, torch.tensor([len(source)]), target)[:, 0])
        return {"surprisal": {"target": surprisals(logits, ids["target"])}}

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
            tokens = {"source": batch.source, "target": batch.inputs}
            yield Pass(done, len(chosen), where_tokens(batch, model), tokens)

    def speed_test(self, how: Scoring | None) -> SpeedTest | None:
        """Greedy translation of the first sentences of a split, one at a time."""
        if how is None:
            return None
        lines = [line for line in self.split(how.split, how.data_dir)[0] if line.strip()][:_SPEED_SENTENCES]
        job = partial(self._translate, self.source.encode_lines(lines), beam=1, batch_size=1)
        return SpeedTest(job, len(lines), "sentences/s", f"greedy, one at a time, first {len(lines)} sentences")

    def describe(self) -> dict[str, Any]:
        """The special tokens of either side, how to clean a line, and the recipe's search.

        A source has no token before it. A word model may produce the token of unknown words, which then stands for the
        source word with the most attention.
        """
        facts, how = super().describe(), self.search_facts
        del facts["tokens"]["source"]["begin"]
        search = {
            "beam": how.beam,
            "length_penalty": how.length_penalty,
            "length_limit": {"tokens_per_source_token": LIMIT_PER_TOKEN, "more": LIMIT_MORE},  # ends not counted
            "forbidden": list(self.forbidden),
            "finish": "an end that is among the `beam` likeliest continuations; the search stops after `beam` of them",
            "order": "log_probability / (tokens + 1) ** length_penalty, highest first",
        }
        text = {"strip": True, "single_spaces": how.is_tokenized, "tokenizer_cleans": self.source.is_cleaning}
        return facts | {"text": text, "search": search}


def where_tokens(batch: PairBatch, model: TranslationModel) -> dict[str, Tensor]:
    """For each LSTM by name, where it reads tokens in a batch: (T, B), false at padding."""
    is_source = torch.arange(len(batch.source)).unsqueeze(1) < batch.source_lengths
    sides = {"encoder": (model.encoder, is_source), "decoder": (model.decoder, batch.targets >= 0)}
    return {f"{side}.{k}": is_token for side, (layers, is_token) in sides.items() for k in range(len(layers))}
