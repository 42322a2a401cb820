"""Translation as a task: data, loss, batches of pairs, validation."""

import math
from collections.abc import Container, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from g2lstm.errors import G2Error
from g2lstm.recipes.sections import ModelSection
from g2lstm.tasks.cross_entropy import Guide, cross_entropy, guided_cross_entropy, smoothing_penalty
from g2lstm.tasks.mt.automatic import complete, look_at
from g2lstm.tasks.mt.model import TranslationModel
from g2lstm.tasks.mt.recipe import MtRecipe
from g2lstm.tasks.mt.trained import TrainedTranslationModel, check, corpus_bleu, corpus_chrf, where_tokens
from g2lstm.tasks.task import Learner, StepLoss, Task, TrainingData, ValidationBatch, shown_perplexity
from g2lstm.text.batches import PairBatch, TrainingBatches, evaluation_batches
from g2lstm.text.corpus import PairCorpus, PairFiles, prepare_pairs, prepare_tokenizers, read_pairs
from g2lstm.text.tokenize import Tokenizer

_LEAST_SCORE = 1.0  # BLEU or chrF that says which weights are better; below it, chance decides, so the loss does


class TranslationLoss(nn.Module):
    """The model and its training loss in one forward call."""

    def __init__(self, model: TranslationModel, smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing

    def forward(
        self, source: Tensor, lengths: Tensor, inputs: Tensor, targets: Tensor, guide: Guide | None = None
    ) -> tuple[Tensor, Tensor]:
        """The loss to differentiate and the cross entropy, each a sum over the target tokens."""
        wanted = targets >= 0
        features, ids = self.model(source, lengths, inputs)[wanted], targets[wanted]
        weight, bias = self.model.output_weight, self.model.softmax_bias
        smoothing = self.smoothing
        if guide is None:
            total = nats = cross_entropy(features, weight, bias, ids, reduction="sum")
        else:
            total, nats = guided_cross_entropy(features, weight, bias, ids, guide)
            smoothing *= 1 - guide.share
        if smoothing:
            total = total + smoothing * smoothing_penalty(features, weight, bias, ids).sum()
        return total, nats.detach()


class TranslationLearner(Learner):
    """Reads batches of sentence pairs of similar length, in a new order each epoch; `valid` needs its texts."""

    recipe: MtRecipe
    model: TranslationModel

    def _take(self, data: TrainingData) -> None:
        check(self.recipe.evaluate.bleu)
        self.module = TranslationLoss(self.model, self.recipe.train.label_smoothing)
        self.valid = data.valid
        self.observed = len(self.valid) // 2 // self.recipe.evaluate.batch_size  # batches are sorted by length
        self.translator = TrainedTranslationModel(self.recipe, self.model, *data.tokenizers)
        self.eos = [tokenizer.eos_id for tokenizer in data.tokenizers]
        self.batches = self._batches(data.train, self.rank, self.world_size)
        self.epoch = -1
        self.start_epoch()

    def _batches(self, train: PairCorpus, rank: int, world_size: int) -> TrainingBatches:
        settings = self.recipe.train.model_dump(include={"batch_size", "batch_tokens", "seed"})
        longest = self.recipe.data.max_length
        return TrainingBatches(train, *self.eos, max_length=longest, rank=rank, world_size=world_size, **settings)

    @property
    def facts(self) -> dict[str, str]:
        """The checksums of the texts, and how many training pairs there are and are used."""
        corpus, kept = self.batches.corpus, self.batches.kept
        return {
            "train_sha256": "+".join(corpus.text_sha256),
            "train_pairs": str(len(corpus)),
            "train_pairs_kept": str(kept),
            "valid_sha256": "+".join(self.valid.text_sha256),
        }

    @property
    def remarks(self) -> list[str]:
        """The pairs, how BLEU reads a language without spaces, the model, and how many pairs are left out."""
        batches, data = self.batches, self.recipe.data
        said = []
        if data.path is not None and batches.corpus.files is not None:
            look = look_at(batches.corpus.files)
            said.append(f"{data.source} to {data.target}: {look}")
            if look.is_tokenized != data.is_tokenized:
                said[0] += f"; read as {'tokenised' if data.is_tokenized else 'plain'} text (data.is_tokenized)"
        if remark := bleu_remark(self.recipe):
            said.append(remark)
        layers = f"{len(self.model.encoder)} + {len(self.model.decoder)} layers of {self.recipe.model.hidden} units"
        said.append(self.summary(layers, self.valid.source, self.valid.target))
        if not (left_out := batches.too_long + batches.empty):
            return said
        return [
            *said,
            f"{left_out:,} of {len(batches.corpus):,} pairs are left out: {batches.too_long:,} have more than "
            f"{self.recipe.data.max_length} tokens on a side (data.max_length), {batches.empty:,} an empty side",
        ]

    def start_epoch(self) -> None:
        """Shuffles the batches again."""
        self.epoch, self.index = self.epoch + 1, 0
        self.plan, self.planned_for = self.batches.plan(self.epoch), self.world_size

    @property
    def epoch_progress(self) -> float:
        """The share of batches that have been read."""
        return self.index / len(self.plan)

    def next_batch(self) -> PairBatch | None:
        """The next batch of this epoch."""
        if self.index >= len(self.plan):
            return None
        batch = self.batches.batch(self.plan, self.index)
        self.index += 1
        return batch

    def loss(self, module: nn.Module, batch: PairBatch) -> StepLoss:
        """The mean over the whole batch; gradients are averaged, so each process counts in proportion to its tokens."""
        inputs, targets, guide = self._inputs(batch), batch.targets.to(self.device), None
        if self.teacher is not None:
            with torch.no_grad():
                guide = self.guide(self.teacher(*inputs)[targets >= 0])
        total, nats = module(*inputs, targets, guide)
        share = self.world_size / batch.target_tokens
        return StepLoss(total * share, nats.item() * share, batch.target_tokens)

    def _validation_batches(self) -> Iterator[ValidationBatch]:
        for _, batch in evaluation_batches(self.valid, *self.eos, batch_size=self.recipe.evaluate.batch_size):
            yield ValidationBatch(self.model(*self._inputs(batch)), batch.targets, where_tokens(batch, self.model))

    def _judge(self, loss: float) -> tuple[dict[str, float], float]:
        """Perplexity of the references, and BLEU of greedy translations."""
        # Random weights never end a sentence, and the loop reports a loss that is not finite.
        is_random = self.epoch == self.index == 0 and self.recipe.train.finetune_from is None
        best_by = self.recipe.train.best_by
        scores = {"bleu": 0.0, **({"chrf": 0.0} if best_by == "chrf" else {}), "perplexity": shown_perplexity(loss)}
        if math.isfinite(loss) and not is_random:
            scores |= self._validation_scores(scores)
        if best_by == "loss":
            return scores, loss
        return scores, -scores[best_by] if scores[best_by] >= _LEAST_SCORE else 0.0

    def _validation_scores(self, wanted: Container[str]) -> dict[str, float]:
        sources, references = self._valid_texts
        texts = [best[0].text for best in self.translator.search(sources, beam=1, max_source=None)]
        metrics = {"bleu": corpus_bleu, "chrf": corpus_chrf}
        how = self.recipe.evaluate.bleu
        return {name: metric(texts, references, how) for name, metric in metrics.items() if name in wanted}

    @cached_property
    def _valid_texts(self) -> tuple[list[str], list[str]]:
        assert self.valid.files is not None, "validation needs the texts, not only their tokens"
        return read_pairs(self.valid.files)

    def _inputs(self, batch: PairBatch) -> tuple[Tensor, Tensor, Tensor]:
        return batch.source.to(self.device), batch.source_lengths, batch.inputs.to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Which batch of which epoch comes next."""
        return {"epoch": self.epoch, "index": self.index, "planned_for": self.planned_for}

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Goes to a saved position; the epoch keeps its batches even if the number of processes has changed."""
        state = states[0]
        self.epoch, self.index = int(state["epoch"]), int(state["index"])
        self.planned_for = int(state.get("planned_for", len(states)))
        batches = self.batches
        if self.planned_for != self.world_size:
            batches = self._batches(batches.corpus, 0, self.planned_for)
        self.plan = batches.plan(self.epoch)
        if not 0 <= self.index <= len(self.plan.bounds):
            raise ValueError(f"batch {self.index} is not one of {len(self.plan.bounds)}")
        smallest = int((self.plan.bounds[:, 1] - self.plan.bounds[:, 0]).min())
        if smallest < self.world_size:
            raise G2Error(
                f"this epoch was started with {self.planned_for} process(es) and has a batch of {smallest} pair(s), "
                f"which {self.world_size} processes can't share; use at most {smallest} until the epoch ends"
            )


class MtTask(Task[MtRecipe, TranslationModel, TrainedTranslationModel]):
    """Translation."""

    recipe, model, learns, trained = MtRecipe, TranslationModel, TranslationLearner, TrainedTranslationModel

    def arguments(self, section: ModelSection) -> dict[str, Any]:
        """The recipe's keys, where `layers` is for the encoder and, unless set otherwise, for the decoder too."""
        keys = super().arguments(section)
        layers = keys.pop("layers")
        return {**keys, "encoder_layers": layers, "decoder_layers": keys["decoder_layers"] or layers}

    def complete(self, tables: dict[str, Any]) -> None:
        """Adds what a look at own pairs decides."""
        complete(tables)

    def train_tokenizers(self, files: PairFiles, kind: str, **settings: Any) -> Sequence[Tokenizer]:
        """The tokenizers of source and target."""
        return prepare_tokenizers(files, kind, **settings)

    def tokenise(self, files: PairFiles, *tokenizers: Tokenizer) -> PairCorpus:
        """The sentence pairs."""
        return prepare_pairs(files, *tokenizers)

    def weights_per_token(self, recipe: MtRecipe, words: int) -> int:
        """One half of the model reads the source and the other the target: a token goes through half the weights."""
        return (self.count_weights(recipe, words, words) - words * recipe.model.embedding) // 2


def bleu_remark(recipe: MtRecipe) -> str:
    """How BLEU reads a language without spaces; empty for other languages."""
    tokenize = recipe.evaluate.bleu.tokenize
    if tokenize in ("none", "13a", "intl"):
        return ""
    said = f"BLEU counts what sacreBLEU's tokenizer {tokenize!r} makes of the text (evaluate.bleu.tokenize)"
    return said + "; chrF chooses the best weights (train.best_by)" * (recipe.train.best_by == "chrf")
